"""PyTorch's own samples of its operations (OpInfo), on the virtual GPU and on the fake one.

    python tests/opinfo_exam.py card FILE       under `vrambudget rehearse`, till it ends by itself
    python tests/opinfo_exam.py counted FILE    on fake tensors, as a step runs
    python tests/opinfo_exam.py compare CARD COUNTED

Each sample is called once, then its first output's backward pass runs. A row has the bytes that
were requested: forward's peak, what stays with the output, backward's peak, and what stays of
gradients. Both sides need the PyTorch of one version, the card's its CUDA build. `--only NAME`
takes some operations and has every allocation.

Source: torch/testing/_internal/common_methods_invocations.py (op_db).
"""

# ruff: noqa: SLF001, T201, PLC0415 - a command; each side imports what the other has not

import argparse
import gc
import json
import signal
import sys
import types
import unittest
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import torch

MOST = 6  # samples of an operation, spread over all
LONGEST = 30  # seconds for one sample
sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))


def samples(only):
    """Yield names and samples, on the host; seeded, so both sides get the same."""
    from torch.testing._internal.common_methods_invocations import op_db

    for op in op_db:
        name = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
        if not op.dtypes or (only and name not in only):
            continue
        dtype = torch.float32 if torch.float32 in op.dtypes else max(op.dtypes, key=str)
        wants = op.supports_autograd and dtype in op.backward_dtypes
        torch.manual_seed(0)
        try:
            found = list(op.sample_inputs("cpu", dtype, requires_grad=wants))
        except Exception as error:  # noqa: BLE001 - a sample that cannot be made is reported
            yield name, op, None, repr(error)
            continue
        for i in range(0, len(found), -(-len(found) // MOST)):
            yield f"{name} {i}", op, found[i], ""


def mapped(value, change):
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, list | tuple):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    return value


def outputs(value):
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [x for item in value for x in outputs(item)]
    return []


def too_long(*_):
    raise TimeoutError


def rows_of(file):
    """Return a file's rows by sample; a later one counts."""
    lines = file.read_text().splitlines() if file.exists() else []
    return dict(json.loads(line) for line in lines)


def exam(only, side, file):
    """Write a row for each sample: four sizes, or why there are none.

    A sample that ends the process is left out when it is started again.
    """
    had = set(rows_of(file))
    signal.signal(signal.SIGALRM, too_long)
    with file.open("a", buffering=1) as out:
        for name, row in _rows(only, side, had):
            print(json.dumps([name, row]), file=out)


def _rows(only, side, had):
    for name, op, sample, error in samples(only):
        if name in had:
            continue
        if sample is None:
            yield name, error
            continue
        yield name, "it ended the process"
        print(name if only else "", end="\n" if only else "")
        signal.alarm(LONGEST)
        try:
            row = side(op, (sample.input, *sample.args), sample.kwargs)
        except Exception as error:  # noqa: BLE001 - reported
            row = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        signal.alarm(0)
        yield name, row


def called(op, args, kwargs, mark):
    """Call an operation, then backward of its first output that has one."""
    mark()
    result = op(*args, **kwargs)
    mark()
    roots = [x for x in outputs(result) if x.requires_grad and x.grad_fn is not None]
    if roots:
        root = roots[0]
        del roots
        root.backward(torch.ones_like(root))
    mark()
    return result


def on_card(op, args, kwargs):
    def put(x):
        return x.detach().to("cuda").requires_grad_(x.requires_grad)  # a move, so it is known

    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    args, kwargs = mapped((args, kwargs), put)
    found = []

    def mark():
        stats = torch.cuda.memory_stats()
        found.append(stats["requested_bytes.all.peak"])
        found.append(stats["requested_bytes.all.current"])
        torch.cuda.reset_peak_memory_stats()

    held = called(op, args, kwargs, mark)
    del held
    return [n - found[1] for n in found[2:]]


def counted_side(log):
    from vrambudget.eager import numbers
    from vrambudget.eager.running import inside, on_the_gpu
    from vrambudget.engine.context import Platform, recording
    from vrambudget.tape.events import Purpose
    from vrambudget.traced import kernels

    version = tuple(int(n) for n in torch.__version__.split(".")[:2])

    def side(op, args, kwargs):
        kernels.unchecked.clear()
        numbers.assumed.clear()
        with recording(Platform(torch=version)) as tape, on_the_gpu() as mode:
            args, kwargs = mapped((args, kwargs), lambda x: mode.lay(x, Purpose.INPUTS))
            places = []
            with inside(mode):
                held = called(op, args, kwargs, lambda: places.append(len(tape.events)))
            sums, now = [0], 0
            for storage, change in tape.changes():
                now += change * tape.sizes[storage]
                sums.append(now)
            if log:
                for storage, change in tape.changes(places[0], places[2]):
                    print(f"  {change:+d} {tape.sizes[storage]} {tape.operations[storage]}")
                print("  --")
            del held
        base = sums[places[0]]
        row = []
        for start, stop in pairwise(places):
            row += [max(sums[start : stop + 1]) - base, sums[stop] - base]
        return [*row, sorted({*kernels.unchecked, *numbers.assumed})]

    return side


def on_card_in_detail(op, args, kwargs):
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    try:
        return on_card(op, args, kwargs)
    finally:
        for entry in torch.cuda.memory._snapshot()["device_traces"][0]:
            if entry["action"] in {"alloc", "free_completed"}:
                made = [f["name"] for f in entry["frames"] if "at::native" in f["name"]]
                print(f"  {entry['action'][:5]} {entry['size']} {made[:1]}")
        torch.cuda.memory._record_memory_history(enabled=None)
        print("  --")


def compare(card, token_counts):
    """Return lines: operations by how they come out."""
    kinds = defaultdict(list)
    for name, row in card.items():
        ours = token_counts.get(name, "missing")
        op = name.split()[0]
        if isinstance(row, str):
            kinds["not run on the card", op].append(row)
        elif isinstance(ours, str):
            kinds["refused", op].append(ours)
        elif row == ours[: len(row)]:
            kinds["equal", op].append("")
        else:
            listed = "listed" if ours[-1] else "SILENT"
            kinds[f"differs, {listed}", op].append(f"{name}: card {row}, counted {ours}")
    return kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["card", "counted", "compare"])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME")
    asked = parser.parse_args()
    if asked.what == "compare":
        kinds = compare(*(rows_of(file) for file in asked.files))
        for kind in sorted({kind for kind, _ in kinds}):
            found = {op: lines for (k, op), lines in kinds.items() if k == kind}
            print(f"{kind}: {len(found)} operations, {sum(map(len, found.values()))} samples")
            if kind != "equal":
                for op, lines in found.items():
                    print(f"    {op} ({len(lines)}): {lines[0]}")
        return
    if asked.what == "card":
        side = on_card_in_detail if asked.only else on_card
        torch.ones(1, device="cuda")
    else:
        side = counted_side(bool(asked.only))
    exam(asked.only, side, asked.files[0])


if __name__ == "__main__":
    main()
