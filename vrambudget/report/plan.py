"""A plan as text, as HTML, and as rows for pandas or polars."""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from vrambudget.planning.choices import Choice
from vrambudget.planning.plan import Plan
from vrambudget.report.tabular import Column, Format, html_table, render_rows
from vrambudget.units import format_bytes

_RECIPES = [
    Column("layout", "trains"),
    Column("batch", "batch", "right"),
    Column("grad_accum", "times", "right"),
    Column("peak_bytes", "of the GPU", "right", format_bytes),
    Column("left_bytes", "left", "right", format_bytes),
    Column("costs", "costs", "left", ", ".join),
]
_LAYOUTS = [
    Column("layout", "layout"),
    Column("batch", "batch each", "right"),
    Column("grad_accum", "times", "right"),
    Column("peak_bytes", "of each GPU", "right", format_bytes),
    Column("left_bytes", "left", "right", format_bytes),
    Column("network_bytes", "sent in a step", "right", format_bytes),
    Column("recomputes", "recomputes", "left", lambda again: "forward" if again else "-"),
    Column("host_bytes", "main memory", "right", format_bytes),
]


def render_plan(found: Plan, output: Format = "table") -> str:
    """Return a plan as a table, CSV or Markdown."""
    table = render_rows(_columns(found), [_row(choice) for choice in found.choices], output)
    if output == "csv":
        return table
    head = [_verdict(found), "", table] if found.choices else [_verdict(found)]
    return "\n".join([*head, *_rest(found)])


def plan_html(found: Plan) -> str:
    """Return a plan as an HTML fragment."""
    rows = [_row(choice) for choice in found.choices]
    commands = [choice.command for choice in found.choices]
    table = html_table(_columns(found), rows, commands) if rows else ""
    ways = "".join(
        f"<p>{escape(way.what)}: <code>{escape(way.command)}</code></p>" for way in found.ways_out
    )
    left_out = "".join(f"<p>left out: {escape(reason)}</p>" for reason in found.left_out)
    return f"<p><b>{escape(_verdict(found))}</b></p>{table}{ways}{left_out}"


def _columns(found: Plan) -> list[Column]:
    if found.gpus == 1:
        return _RECIPES
    uses_host = any(choice.host_bytes for choice in found.choices)
    return _LAYOUTS if uses_host else _LAYOUTS[:-1]


def _row(choice: Choice) -> dict[str, Any]:
    sizes = {name: choice.fields.get(name, 1) for name in ("batch", "grad_accum")}
    peak_bytes, left_bytes = held(choice)
    return {**asdict(choice), **sizes, "peak_bytes": peak_bytes, "left_bytes": left_bytes}


def held(choice: Choice) -> tuple[int, int]:
    """Return what a choice takes of a GPU, and leaves: no more than there is."""
    if choice.gpus > 1:
        return choice.peak_bytes, choice.left_bytes
    return choice.peak_bytes + min(choice.left_bytes, 0), max(choice.left_bytes, 0)


def filled(choices: Sequence[Choice]) -> list[str]:
    """Return what it means that a choice leaves nothing, if one does."""
    if all(each.left_bytes > 0 for each in choices):
        return []
    return ["left 0 B: PyTorch fills the GPU, and returns its cache where it needs more"]


def _verdict(found: Plan) -> str:
    tokens = f"{found.block} tokens a sequence"
    if not found.gpus:
        return f"{found.model} does not fit on {found.most} x {found.gpu}, at {tokens}"
    if found.counted:
        return f"{found.model} on {found.gpus} x {found.gpu}, {tokens}: what fits, the best first"
    if found.gpus > 1:
        return (
            f"{found.model} needs {found.gpus} x {found.gpu}, at {tokens};"
            " what fits, the cheapest first"
        )
    room = format_bytes(found.capacity_bytes)
    return f"{found.model} on {found.gpu}, {room}, {tokens}: what fits, the best first"


def _rest(found: Plan) -> list[str]:
    return [*(_of_choices(found) if found.choices else []), *_of_one(found), *_left_out(found)]


def _left_out(found: Plan) -> list[str]:
    """Return what a plan of compiled jobs has not."""
    if not found.left_out:
        return []
    return ["", "left out:", *(f"  {reason}" for reason in found.left_out)]


def _of_one(found: Plan) -> list[str]:
    """Return what would fit one GPU, where nothing does as it was asked for."""
    if not found.ways_out:
        return []
    ways = (f"  {way.command}\n    {way.what}" for way in found.ways_out)
    return ["", f"one {found.gpu} does with less:", *ways]


def _of_choices(found: Plan) -> list[str]:
    nccl = format_bytes(found.choices[0].nccl_bytes)
    notes = [f"left: beside {nccl} for NCCL's buffers"] if found.gpus > 1 else []
    notes += filled(found.choices)
    if found.goal == "any" and found.choices[0].trains != "full":
        finds = "`--goal full` finds how many GPUs they take"
        notes += [f"all weights do not fit: {f'for one, {finds}' if found.counted else finds}"]
    commands = (f"  {each.command}" for each in found.choices)
    return ["", *notes, "the report of each:", *commands]
