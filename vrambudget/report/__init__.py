"""Reports: functions from a budget, or from rows, to text. Nothing here prints.

render(budget, "table")      table, json, csv or markdown
"""

from dataclasses import asdict, fields

from vrambudget.budget import Budget, Device, OutOfMemory
from vrambudget.report.tabular import FORMATS, WIDTH, Format, csv_text

__all__ = ["FORMATS", "Format", "render"]


def render(
    budget: Budget, output: Format = "table", *, colour: bool = False, width: int = WIDTH
) -> str:
    """Return the budget in a format; a table is `width` columns wide."""
    if output == "json":
        return budget.to_json()
    if output == "csv":
        row = flat(budget)
        return csv_text(list(row), [list(row.values())])
    from vrambudget.report.table import render_table  # noqa: PLC0415 - JSON needs none

    return render_table(budget, colour=colour, markdown=output == "markdown", width=width)


def flat(budget: Budget) -> dict[str, object]:
    """Return the budget as one row: parts and keys joined by a point; every row has all columns."""
    parts = {
        "job": budget.job,
        "parameters": asdict(budget.parameters),
        "peak": asdict(budget.peak),
        "breakdown": budget.breakdown,
        "device": _values(Device, budget.device),
        "out_of_memory": _values(OutOfMemory, budget.out_of_memory),
    }
    joined = {f"{part}.{key}": parts[part][key] for part in parts for key in parts[part]}
    notes = {"not_modelled": "; ".join(budget.not_modelled), "warnings": "; ".join(budget.warnings)}
    return {"model": budget.model, **joined, **notes}


def _values(kind: type, part: Device | OutOfMemory | None) -> dict[str, object]:
    return {field.name: getattr(part, field.name, None) for field in fields(kind)}
