"""`vrambudget validate RECORDS.jsonl`: predict every record, show the errors and a summary."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from math import floor
from pathlib import Path
from typing import Any

from vrambudget.cli import DONE
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.cli.streams import say
from vrambudget.config.record import read_records, record_files
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import LINES, escaped, json_text
from vrambudget.report.tabular import Column, render_rows
from vrambudget.validate import (
    COUNTERS,
    DEVICE,
    KINDS,
    Check,
    Summary,
    grouped,
    side_by_side,
    summarise,
    validate,
)


def _error(error: float | None) -> str:
    if error is None:
        return "-"
    return "exact" if error == 0 else f"{100 * error:+.2g} %"


def _bytes(n: int | None) -> str:
    return "-" if n is None else f"{n:,}"


def _share(share: float) -> str:
    """Return a share, rounded down: only what is whole is 100 %."""
    return f"{floor(1000 * share) / 10:g} %"


_COLUMNS = [
    Column("id", "record"),
    Column("counter", "bytes"),
    Column("predicted", "predicted", "right", _bytes),
    Column("measured", "measured", "right", _bytes),
    Column("error", "error", "right", _error),
]
_SOURCE = Column("source", "source")
_SUMMARY = [
    Column("counter", "bytes"),
    Column("records", "records", "right"),
    Column("median", "median", "right", lambda error: f"{100 * error:.2g} %"),
    Column("worst", "worst", "right", _error),
    Column("exact", "exact", "right", _share),
    Column("under", "under-estimated", "right", _share),
]


_GROUPS = [
    Column("kind", "records of"),
    Column("records", "", "right"),
    Column("exact", "all exact", "right", _share),
    Column("allocated", "allocated", "right", _error),
    Column("reserved", "reserved", "right", _error),
    Column("worst_record", "worst record"),
]
_STARTS = [
    Column("kind", "starts of vLLM"),
    Column("starts", "", "right"),
    Column("weights", "weights equal", "right", _share),
    Column("median", "KV tokens: median", "right", lambda error: f"{100 * error:.2f} %"),
    Column("worst", "worst", "right", lambda error: f"{100 * error:+.2f} %"),
    Column("worst_start", "worst start"),
]
_JOB = "job"
_JOBS = [
    Column("id", "peak allocated"),
    Column("card", "card"),
    Column("torch", "torch"),
    Column("estimate", "estimate", "right", _bytes),
    Column("virtual", "rehearsal", "right", _bytes),
    Column("published", "published", "right", _bytes),
    Column("real", "measurement", "right", _bytes),
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "records", type=Path, nargs="+", metavar="RECORDS", help="files, or folders of such files"
    )
    parser.add_argument(
        "--by",
        choices=(*KINDS, _JOB),
        action="append",
        help="one row for each kind of record; may be repeated;"
        " job: estimate, rehearsal and measurement side by side",
    )
    parser.add_argument(
        "--as-plain",
        action="store_true",
        help="predict the plain loop, whatever script a record is of: what its options change",
    )
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the comparison. Returns 2 if no record could be compared."""
    files = [file for path in args.records for file in record_files(path)]
    records = [record for file in files for record in read_records(file)]
    if any("printed" in record for record in records):
        emit(_starts(records, chosen_format(args)), args)
        return DONE
    checks = list(validate(records, as_plain=args.as_plain))
    if args.by:
        text = _grouped(checks, args.by, chosen_format(args))
    else:
        text = _render(checks, summarise(checks), chosen_format(args))
    emit(text, args)
    if args.by or chosen_format(args) == "csv":
        for remark in _remarks(checks):  # such rows have no place for them
            say(remark)
    problems = [check.problem for check in checks if check.problem is not None]
    if len(problems) == len(checks):
        raise VramBudgetError(
            f"none of {len(checks)} records could be compared", hint=f"the first: {problems[0]}"
        )
    return DONE


def _starts(records: Sequence[Mapping[str, Any]], output: Any) -> str:
    """Return the table of servers' starts. Raises VramBudgetError for jobs among them."""
    from vrambudget.serving.logs import by_kind, start_of  # noqa: PLC0415 - asked for seldom

    if not all("printed" in record for record in records):
        raise VramBudgetError("starts of servers and jobs have tables of their own: name one kind")
    return render_rows(_STARTS, [asdict(row) for row in by_kind(map(start_of, records))], output)


def _grouped(checks: Sequence[Check], kinds: Sequence[str], output: Any) -> str:
    """Return one table after another; JSON and CSV have one list of rows."""
    if _JOB in kinds:
        if len(kinds) > 1:
            raise VramBudgetError("--by job cannot be combined with another --by")
        return render_rows(_JOBS, [asdict(row) for row in side_by_side(checks)], output)
    tables = [[asdict(group) for group in grouped(checks, kind)] for kind in kinds]
    if output in ("json", "csv"):
        return render_rows(_GROUPS, [row for rows in tables for row in rows], output)
    return "\n\n".join(render_rows(_GROUPS, rows, output) for rows in tables)


def _render(checks: Sequence[Check], summaries: Sequence[Summary], output: Any) -> str:
    if output == "json":
        records = [{**asdict(check), "error": _errors(check)} for check in checks]
        summary = [asdict(summary) for summary in summaries]
        return json_text({"records": records, "summary": summary})
    rows = [row for check in checks for row in _rows(check, repeat_id=output == "csv")]
    columns = [_SOURCE, *_SUMMARY] if len({check.source for check in checks}) > 1 else _SUMMARY
    if output == "csv":
        return render_rows(_COLUMNS, rows, output)
    parts = [
        render_rows(_COLUMNS, rows, output) if rows else "",
        "\n".join(_remarks(checks)),
        render_rows(columns, [asdict(summary) for summary in summaries], output),
    ]
    return "\n\n".join(part for part in parts if part)


def _errors(check: Check) -> dict[str, float]:
    return {c: error for c in (*COUNTERS, DEVICE) if (error := check.error(c)) is not None}


def _rows(check: Check, *, repeat_id: bool) -> Iterator[dict[str, Any]]:
    for n, (counter, error) in enumerate(_errors(check).items()):
        yield {
            "id": check.id if repeat_id or n == 0 else "",
            "counter": counter,
            "predicted": check.predicted[counter],
            "measured": check.measured[counter],
            "error": error,
        }


def _remarks(checks: Sequence[Check]) -> Iterator[str]:
    """Yield what the tables do not show: out of memory, and what could not be compared."""
    for check in checks:
        if check.ran_out_of_memory:
            name = escaped(check.id)
            yield f"{name}: out of memory, {'' if check.foreseen else 'NOT '}foreseen"
        if check.problem is not None:
            yield f"not compared: {escaped(check.id)}: {escaped(check.problem, keep=LINES)}"
