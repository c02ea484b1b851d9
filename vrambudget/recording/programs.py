"""A program of several recordings of one model, at different sizes and precisions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vrambudget.program.form import COUNT, Program, Row
from vrambudget.program.guards import holds
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.folding import Folded, Instruction, folded_rows
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import Merger, Precision, UnfitError, code_of
from vrambudget.recording.models import outermost
from vrambudget.recording.rounds import code_with_rounds
from vrambudget.recording.sized import whole_patches

PRECISIONS: dict[str, Precision] = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp16": ("float16", "float16"),
    "fp32": ("float32", "float32"),
    "amp-bf16": ("float32", "bfloat16"),
    "bf16-amp": ("bfloat16", "bfloat16"),  # frozen weights in 16 bit, in a region
}
_CACHES = "transformers.cache_utils"
"""Where a decoder caches that is asked not to (UMT5's); one that is checkpointed does not."""
_FEW = 3  # layers of which none can recur


@dataclass(slots=True)
class Probe:
    """One recording: the sizes and the precision that it was made at."""

    sizes: dict[str, int]
    precision: str
    recording: Listener


@dataclass(slots=True)
class RecordedModel:
    """What a program says besides what was recorded."""

    source: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    when: dict[str, Any] = field(default_factory=dict)  # the job that was recorded
    derived: dict[str, str] = field(default_factory=dict)  # sizes that others decide
    depths: dict[str, str] = field(default_factory=dict)  # of stacks: their keys
    folds: dict[str, list[int]] = field(default_factory=dict)  # of stacks that are not called
    is_nested: bool = False  # stacks within others are folded, too, and pieces of a video
    lone: list[Probe] = field(default_factory=list)  # one token, one row: where they fit
    activations: dict[int, str] = field(default_factory=dict)  # of instructions: their keys
    given: dict[int, str] = field(default_factory=dict)
    """Instructions that some jobs do without, and what the others feed or say."""
    builds: list[tuple[str, Any, list[Any]]] = field(default_factory=list)
    """Keys that decide how the model is built: another value, and the facts of each probe."""


def program_of(probes: Sequence[Probe], model: RecordedModel) -> Program:
    """Return the program. Raises UnfitError where the recordings are not one."""
    problems = [text for probe in probes for text in probe.recording.problems]
    if problems:
        raise UnfitError(problems[0])
    merger, code, alone = _merged(probes, model)
    recordings = [probe.recording for probe in probes]
    facts = [r.facts for r in recordings]
    first = facts[0]
    program = Program(source=_source(first, model), keys=model.keys)
    if first["positions"] is not None:
        found = merger.merge([f["positions"] for f in facts], "positions")
        program.source["positions"] = str(found).removeprefix("=")
        if first["padding"] is not None:
            program.source["padding"] = first["padding"]
    program.when = {key: [value] for key, value in model.when.items()}
    program.sizes = dict.fromkeys(probes[0].sizes, None) | dict(model.derived)
    same_length = [p for p in probes if len(p.recording.rows) == len(recordings[0].rows)]
    own = Merger(Fitter([p.sizes for p in same_length]), [])
    guards = [*guards_of([p.recording for p in same_length], own)]
    program.guards = [g for g in guards if all(holds(g, probe.sizes) for probe in alone)]
    for text in model.derived.values():
        a, _, b = text.partition("//")
        program.guards.append([a, "%", b, True, "whole heads"])
    program.inputs = [
        [name, *merger.merge([f["inputs"][name] for f in facts], name), recordings[0].inputs[name]]
        for name in first["inputs"]
    ]
    held = [name for name in first["outputs"] if name is not None]
    loss = first["loss"]
    logits = next((n for n in held if n != loss), loss)
    if any((f["outputs"], f["loss"]) != (first["outputs"], loss) for f in facts):
        raise UnfitError("the recordings return different tensors")
    others: list[Any] = [n for n in held if n not in {loss, logits}]
    numbers: dict[str, int] = {}
    code = [(state, _shared(row, numbers, program.effects)) for state, row in _marked(code, model)]
    built = [_built(facts, merger), *(_built(f[: len(facts)], merger) for *_, f in model.builds)]
    stacks = _stacks_of(first)
    if model.when.get("use_cache") is False and any(_CACHES in g[4] for g in guards):
        stacks = {name: (n, False) for name, (n, _) in stacks.items()}
    code, others = _fold(program, model, stacks, code, others, built)
    for _, key, _, period, layers, _ in program.stacks:
        if key is not None and period is not None:
            program.guards = [*_to_the_last(program.guards, key, layers)]
    program.built = built[0]
    for (key, value, _), rows in zip(model.builds, built[1:], strict=True):
        program.builds.append([key, value, rows])
    program.code = list(_with_states(code))
    program.guards += whole_patches(repr((program.effects, built)))
    program.result = {"loss": _one_loss(program.code, loss), "logits": logits}
    program.result |= _others(others, first.get("cached", ()))
    return program


def _merged(probes: Sequence[Probe], model: RecordedModel) -> tuple[Merger, list[Any], list[Probe]]:
    """Return the merged code, and which of the lone probes it is the code of."""
    alone = [probe for probe in model.lone if not probe.recording.problems]
    error: UnfitError | None = None
    for chosen in (alone, *([probe] for probe in alone if len(alone) > 1), []):
        every = [*probes, *chosen]
        fitter = Fitter([probe.sizes for probe in every])
        precisions = [PRECISIONS[probe.precision] for probe in every]
        regions = ["amp" in probe.precision for probe in every]
        merger = Merger(fitter, precisions, regions)
        try:
            if model.is_nested:
                code = code_with_rounds([probe.recording for probe in every], merger)
            else:
                code = code_of([probe.recording.rows for probe in every], merger)
        except UnfitError as problem:
            error = problem
            continue
        own = Merger(
            Fitter([probe.sizes for probe in probes]),
            merger.precisions[: len(probes)],
            regions[: len(probes)],
        )
        return own, code, list(chosen)
    assert error is not None  # noqa: S101 - each way failed
    raise error


def _marked(code: list[Instruction], model: RecordedModel) -> Iterator[Instruction]:
    """Yield the code: activations by their keys, what some jobs do without between marks."""
    within: str | None = None
    for at, (state, (word, value)) in enumerate(code):
        if model.given.get(at) != within:
            within = model.given.get(at)
            yield state, ("given", within)
        if at in model.activations:
            yield state, (word, [f"activation.{model.activations[at]}", *value[1:]])
        else:
            yield state, (word, value)
    if within:
        yield code[-1][0], ("given", None)


def _stacks_of(facts: dict[str, Any]) -> dict[str, tuple[int, bool]]:
    """Return how many layers each stack has, and whether they are checkpointed."""
    return {name: (n, name in facts["checkpointed"]) for name, n in facts["stacks"].items()}


def _fold(  # noqa: PLR0917 - the program as far as it is made
    program: Program,
    model: RecordedModel,
    stacks: dict[str, tuple[int, bool]],
    code: list[Instruction],
    others: list[Any],
    built: list[list[Row]],
) -> tuple[list[Instruction], list[Any]]:
    """Fold each stack of the code and of the ways of building, as far as its layers recur."""
    waiting = outermost(stacks)
    while waiting:
        stack = waiting.pop(0)
        layers, checkpoints = stacks[stack]
        folds = stack in model.depths or (model.is_nested and layers > _FEW)
        folded = Folded(code, stack, layers, model.folds.get(stack)) if folds else None
        rows = [] if folded is None else [folded_rows(each, folded) for each in built]
        if folded is None or None in rows or folded.period is None:
            if model.is_nested:
                inner = {s: n for s, n in stacks.items() if s.startswith(f"{stack}.")}
                waiting = [*outermost(inner), *waiting]
            program.stacks.append([stack, model.depths.get(stack), 0, None, layers, checkpoints])
            continue
        code, others = folded.rows(others)
        built[:] = [row for row in rows if row is not None]
        row = [stack, model.depths.get(stack), folded.first, folded.period, layers, checkpoints]
        program.stacks.append(row)
    return code, others


def _others(names: list[Any], cached: Sequence[str]) -> dict[str, list[Any]]:
    """Return what else is returned, a cache apart from the rest; a cycle's are {"each": name}."""
    kept = [n for n in names if (n["each"] if isinstance(n, dict) else n) in cached]
    found = {"others": [n for n in names if n not in kept]}
    return found | ({"cached": kept} if kept else {})


def _one_loss(code: list[Row], loss: str | None) -> str | None:
    """Return the loss's name, which is one whether Trainer counts labels and divides it or not."""
    start = next((at for at, row in enumerate(code) if row == ("given", COUNT)), None)
    if start is None or loss is None:
        return loss
    at = next(at for at in range(start, len(code)) if code[at][0] == "del")
    plain = str(code[at][1])
    code[at] = ("write", [plain, loss])
    return plain


def _source(facts: dict[str, Any], model: RecordedModel) -> dict[str, Any]:
    names = ("class", "accepts_loss_kwargs", "is_named_for_causal_lm")
    return {**model.source, **{name: facts[name] for name in names}}


def _shared(row: Row, numbers: dict[str, int], effects: list[Any]) -> Row:
    """Return a call with the number of its effects, which stand once."""
    word, value = row
    if word != "call":
        return row
    key = repr(value[0])
    if key not in numbers:
        numbers[key] = len(effects)
        effects.append(value[0])
    return word, [numbers[key], *value[1:]]


def _with_states(code: Sequence[tuple[list[Any], Row]]) -> Iterator[Row]:
    """Yield rows, and `at` where the state changes."""
    here: list[Any] | None = None
    for state, (word, value) in code:
        if word in {"repeat", "next", "given"}:
            here = None
        elif word != "del" and state != here:
            here = state
            yield "at", state
        yield word, value


def guards_of(recordings: Sequence[Listener], merger: Merger) -> Iterator[list[Any]]:
    """Yield what the model's code compared: both sides, and how it came out, each once."""
    groups: list[dict[Any, list[Any]]] = []
    for recording in recordings:
        own: dict[Any, list[Any]] = {}
        for found in recording.comparisons:
            own.setdefault((found.place, found.operator), []).append(found)
        groups.append(own)
    seen = set[str]()
    for key in dict.fromkeys(k for own in groups for k in own):
        rows = [own.get(key, []) for own in groups]
        if len({len(row) for row in rows}) > 1:
            raise UnfitError(f"{key[0]} compares sizes {sorted({len(r) for r in rows})} times")
        for each in zip(*rows, strict=True):
            sides = [
                _side([getattr(x, s) for x in each], merger, key[0]) for s in ("left", "right")
            ]
            outcomes = {x.outcome for x in each}
            if len(outcomes) > 1:
                raise UnfitError(f"a branch depends on the size: {sides} at {key[0]}")
            constant = all(s.lstrip("-").isdigit() for s in sides) or sides[0] == sides[1]
            row = [sides[0], key[1], sides[1], outcomes.pop(), key[0]]
            if not constant and repr(row[:4]) not in seen:
                seen.add(repr(row[:4]))
                yield row


def _to_the_last(guards: list[list[Any]], key: str, layers: int) -> Iterator[list[Any]]:
    """Yield guards; what each layer's place is held against, the last one's is, at any depth."""
    for left, sign, right, *rest in guards:
        before = [left, sign, str(layers - 2), *rest]
        last = right == str(layers - 1) and before in guards
        yield [left, sign, f"{key}-1" if last else right, *rest]


def _side(values: list[Any], merger: Merger, place: str) -> str:
    if any(isinstance(x, float) for x in values):
        if len(set(values)) > 1 or float(values[0]) != int(values[0]):
            raise UnfitError(f"a size is compared with {values[0]} at {place}")
        values = [int(x) for x in values]
    return str(merger.merge(values, place)).removeprefix("=")


def _built(facts: Sequence[dict[str, Any]], merger: Merger) -> list[Row]:
    """Return how the model is built: storages by the names of what they hold, then modules."""
    labels: dict[int, str] = {}
    for name, place, *_ in (*facts[0]["parameters"], *facts[0]["buffers"]):
        if place is not None:
            labels.setdefault(place, name)
    _label_temporaries(facts[0]["build"], labels)
    merged = merger.merge([f["build"] for f in facts], "build")
    rows: list[Row] = []
    for event in merged:
        if event[0] == "new":
            rows.append(("new", [labels[event[1]], *event[2:]]))
        else:
            rows.append(("free", labels[event[1]]))
    for name, kind in facts[0]["modules"].items():
        if name:
            rows.append(("module", [name, kind]))
    for word in ("parameters", "buffers"):
        for value in merger.merge([f[word] for f in facts], word):
            name, place, *rest = value
            label = name if place is None else labels[place]
            rows.append(("weight" if word == "parameters" else "buffer", [name, label, *rest]))
    return rows


def _label_temporaries(events: list[Any], labels: dict[int, str]) -> None:
    """Name what no parameter lies in by the module that the next parameter belongs to."""
    order = [event[1] for event in events if event[0] == "new"]
    counts: dict[str, int] = {}
    near = ""
    for number in reversed(order):
        if number in labels:
            near = labels[number].rpartition(".")[0]
            continue
        counts[near] = counts.get(near, 0) + 1
        labels[number] = f"{near}.~{counts[near]}" if near else f"~{counts[near]}"
