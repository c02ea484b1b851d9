"""A plan as text, as HTML, and as rows for pandas or polars."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from vrambudget.escaping import escape
from vrambudget.planning.choices import Choice, how_many
from vrambudget.planning.layouts import MACHINE
from vrambudget.planning.plan import AS_ASKED, Plan
from vrambudget.report.tabular import Column, Format, html_table, render_rows
from vrambudget.units import format_bytes

_TOKENS = Column("block", "tokens", "right")
_BATCH = Column("batch", "batch per GPU", "right")
_TIMES = Column("grad_accum", "accumulated", "right", lambda n: "-" if n == 1 else f"{n} times")
_PEAK = Column("peak_bytes", "memory used", "right", format_bytes)
_LEFT = Column("left_bytes", "left", "right", format_bytes)
_RECIPES = [
    Column("layout", "recipe"),
    _TOKENS,
    Column("batch", "batch", "right"),
    _TIMES,
    _PEAK,
    _LEFT,
    Column("costs", "gives up", "left", ", ".join),
]
_LAYOUTS = [
    Column("layout", "layout"),
    _BATCH,
    _TIMES,
    Column("global_batch", "global batch", "right"),
    _PEAK,
    _LEFT,
    Column("sent_per_sequence_bytes", "sent per sequence", "right", format_bytes),
    Column("recomputes", "recomputes", "left", lambda again: "forward" if again else "-"),
    Column("host_bytes", "main memory", "right", format_bytes),
]
_MOST_REASONS = 3


def render_plan(found: Plan, output: Format = "table") -> str:
    """Return a plan as a table, CSV or Markdown."""
    tables = list(_tables(found))
    if output == "csv":
        columns, choices = tables[0] if tables else (_RECIPES, [])
        return render_rows(columns, [row_of(choice, found) for choice in choices], output)
    parts = [headline(found)]
    parts += [_nothing(found)] if found.alternatives and not found.choices else []
    for n, (columns, choices) in enumerate(tables):
        rows = [row_of(choice, found) for choice in choices]
        between = ["", _of_multi_gpu(found)] if n else []
        parts += [*between, "", render_rows(columns, rows, output)]
    return "\n".join([*parts, *_notes(found), *_not_considered(found), *_left_out(found)])


def plan_html(found: Plan) -> str:
    """Return a plan as an HTML fragment."""
    parts = [f"<p><b>{escape(headline(found))}</b></p>"]
    parts += (
        [f"<p>{escape(_nothing(found))}</p>"] if found.alternatives and not found.choices else []
    )
    for n, (columns, choices) in enumerate(_tables(found)):
        parts += [f"<p>{escape(_of_multi_gpu(found))}</p>"] if n else []
        rows = [row_of(choice, found) for choice in choices]
        parts.append(html_table(columns, rows, [choice.command for choice in choices]))
    rest = (line.strip() for line in (*_not_considered(found), *_left_out(found)))
    return "".join([*parts, *(f"<p>{escape(line)}</p>" for line in rest if line)])


def _tables(found: Plan) -> Iterator[tuple[list[Column], Sequence[Choice]]]:
    """Yield what is trained with less, then what is as it was asked."""
    if others := [each.choice for each in found.alternatives]:
        yield _columns(others, found), others
    if found.choices:
        yield _columns(found.choices, found), found.choices


def _columns(choices: Sequence[Choice], found: Plan) -> list[Column]:
    """Return the columns of one GPU's recipes, or of layouts: those that say something."""
    if choices[0].gpus == 1:
        return [each for each in _RECIPES if each is not _TOKENS or not found.inputs]
    uses_host = any(choice.host_bytes for choice in choices)
    layouts = _LAYOUTS if uses_host else _LAYOUTS[:-1]
    says_row = found.inputs or choices[0] in found.choices
    return layouts if says_row else [layouts[0], _TOKENS, *layouts[1:]]


def row_of(choice: Choice, found: Plan) -> dict[str, Any]:
    """Return a choice as a plan's table shows it."""
    sizes = {name: choice.fields.get(name, 1) for name in ("batch", "grad_accum")}
    sizes["block"] = choice.fields.get("block", found.block)
    peak_bytes, left_bytes = held(choice)
    row = {**asdict(choice), **sizes, "peak_bytes": peak_bytes, "left_bytes": left_bytes}
    if choice.fields.get("loop", "plain") != "plain" and choice not in found.choices:
        row["layout"] = f"{choice.layout}, loop {choice.fields['loop']}"
    return row


def held(choice: Choice) -> tuple[int, int]:
    """Return what a choice takes of a GPU, and leaves: no more than there is."""
    if choice.gpus > 1:
        return choice.peak_bytes, choice.left_bytes
    return choice.peak_bytes + min(choice.left_bytes, 0), max(choice.left_bytes, 0)


def filled(choices: Sequence[Choice]) -> list[str]:
    """Return what it means that a choice leaves nothing, if one does."""
    if all(each.left_bytes > 0 for each in choices):
        return []
    return ["left 0 B: PyTorch fills the GPU with its cache, and returns it where memory is needed"]


def headline(found: Plan) -> str:
    """Return the answer: the best recipe of one GPU, or how many it takes."""
    if found.alternatives:
        first = found.alternatives[0]
        says_more = "loop" in first.choice.fields or (first.what == AS_ASKED and found.is_named)
        return _one(found, first.choice) + (f"; {first.what}" if says_more else "")
    if not found.choices:
        return _nothing(found)
    if found.gpus == 1:
        return _one(found, found.choices[0])
    return _of_multi_gpu(found)


def _one(found: Plan, choice: Choice) -> str:
    row = found.inputs or f"{choice.fields.get('block', found.block):,} tokens a sequence"
    per_gpu = " per GPU" if choice.gpus > 1 else ""
    each = f"batch {choice.fields.get('batch', 1)}{per_gpu}, {row}"
    gpus = f"{_gpus(found, choice.gpus)} ({format_bytes(found.capacity_bytes)})"
    return f"{found.model} trains on {gpus}: {choice.layout}; {each}"


def _of_multi_gpu(found: Plan) -> str:
    """Return what several GPUs do, as it was asked."""
    if not found.choices:
        return _nothing(found)
    best = found.choices[0]
    does, fewer = ("trains on", "") if found.is_named else ("needs", "")
    if found.not_considered and not found.is_named:
        does, fewer = "trains on", "; fewer may do with what was not considered"
    row = found.inputs or f"{found.block:,} tokens a sequence"
    as_asked = f", for {row}" if found.alternatives else ""
    return (
        f"{found.model} {does} {_gpus(found, found.gpus)}{as_asked}: {best.layout};"
        f" batch {best.fields.get('batch', 1)} per GPU, {row}{fewer}"
    )


def _nothing(found: Plan) -> str:
    """Return that nothing was found: too large where it was computed, no rule where it was not."""
    first = found.alternatives[0].choice if found.alternatives else None
    fields = first.fields if first else {}
    changed = "loop" in fields and fields.get("block", found.block) == found.block
    loop = " in a plain PyTorch loop" if changed else ""
    if first and first.gpus == 1 and not found.is_named and found.goal in {"any", "lora"}:
        more = ", or add --goal full to see how many train all weights"
        lora = " with lora" if found.goal == "lora" else ""
        margin = f" with {format_bytes(found.margin_bytes)} left free" if found.margin_bytes else ""
        return (
            f"{found.block:,} tokens{loop}{lora} do not fit one such GPU{margin}:"
            f" name several (--gpu 2xGPU){more if found.goal == 'any' else ''}"
        )
    at = f"{found.model} at {found.inputs or f'{found.block:,} tokens a sequence'}{loop}"
    where = _gpus(found, found.most if found.is_named else 1)
    if found.most > 1 and not found.is_named:
        where += f", nor on up to {found.most}"
    if not found.not_considered:
        return f"does not fit on {where}: {at}"
    if not found.any_modelled:
        return f"no layout of {found.model} on {where} has rules: whether it fits is not known"
    what = "layout" if found.is_named else "recipe or layout"
    return f"no {what} that has rules fits {at} on {where}; others were not considered"


def _gpus(found: Plan, gpus: int) -> str:
    """Return "2 x 8 x NVIDIA H100", "one NVIDIA H100"; a GPU of a size has its article."""
    if gpus > 1:
        return how_many(gpus, found.per_node, " x ") + found.gpu
    return found.gpu if found.gpu.startswith("a ") else f"one {found.gpu}"


def _not_considered(found: Plan) -> list[str]:
    """Return why layouts were not considered, and what estimates them."""
    reasons = found.not_considered
    if not reasons:
        return []
    more = [f"  and {len(reasons) - _MOST_REASONS} more"] if len(reasons) > _MOST_REASONS else []
    each = found.per_node or (found.most if found.is_named else MACHINE)
    return [
        "",
        "not considered:",
        *(f"  {reason}" for reason in reasons[:_MOST_REASONS]),
        *more,
        "  rehearse your own script to see one:",
        f"  vrambudget rehearse --gpu GPU -- torchrun --nproc-per-node {each} train.py",
    ]


def _left_out(found: Plan) -> list[str]:
    """Return what a plan of compiled jobs has not."""
    reasons = [f"  {reason}" for reason in found.left_out]
    return ["", "left out:", *reasons] if reasons else []


def _notes(found: Plan) -> list[str]:
    shown = [*(each.choice for each in found.alternatives), *found.choices]
    if not shown:
        more = "" if found.offload else "; --offload tries shards in main memory, too"
        fewest = "leave the number out of --gpu to see how many GPUs it takes"
        return ["", f"{fewest}{more}"] if found.is_named else []
    notes = []
    if multi_gpu := [choice for choice in shown if choice.gpus > 1]:
        nccl = format_bytes(multi_gpu[0].nccl_bytes)
        notes.append(f"left: after {nccl} for NCCL's buffers; sent: by each GPU")
    if found.margin_bytes:
        less = format_bytes(found.margin_bytes)
        notes.append(
            f"each fits with {less} less, should the CUDA context be larger"
            + "; a desktop takes 0.3 to 1.6 GB more: --margin 2GiB" * ("RTX" in found.gpu)
        )
    notes += filled(shown)
    if found.goal == "any" and found.choices and found.choices[0].trains != "full":
        notes.append("training all weights does not fit; --goal full says how many GPUs do")
    commands = [f"  {each.command}" for each in shown]
    return ["", *notes, "the report of each:", *commands]
