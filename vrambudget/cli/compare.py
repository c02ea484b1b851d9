"""`vrambudget compare MODEL ...`: the estimate, a rehearsal, and on a GPU a measurement.

A rehearsal needs PyTorch's CUDA build but no GPU; VRAMBUDGET_PYTHON names the Python that has it.
`--events` shows the first allocation in which estimate and rehearsal differ. The estimate follows
the rules of the versions that ran, unless --torch or --transformers name others. Exit code 0: equal
to the byte; 1: different; 2: the job could not be compared.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_job_options, job_fields
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.cli.streams import say
from vrambudget.compare import Allocation, after_first_step, first_difference, of_events, of_tape
from vrambudget.errors import VramBudgetError
from vrambudget.measure.record import measure_job, record_of
from vrambudget.rehearse.events import JobRehearsal, rehearse_job
from vrambudget.report.tabular import Column, render_rows
from vrambudget.scenario import DEFAULT_GPU, Scenario, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

_CONTEXT = 6  # allocations shown before the first that differs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("model", nargs="?", help="a model's name, a config.json, or a hub id")
    parser.add_argument("--gpu", default=DEFAULT_GPU, metavar="GPU", help="the virtual GPU")
    parser.add_argument(
        "--events", action="store_true", help="show the first allocation that differs"
    )
    parser.add_argument("--measure", action="store_true", help="run on this machine's GPU as well")
    add_job_options(parser)
    add_output_options(parser)


def run(args: argparse.Namespace) -> int:
    """Compare and print."""
    fields = job_fields(args)
    scenario = resolve(args.model, gpu=args.gpu, **fields)
    assert scenario.gpu is not None  # noqa: S101 - the option has a default
    available_bytes = scenario.gpu.available_bytes
    fields["steps"] = scenario.job.steps  # as many as are rehearsed
    job = record_of(scenario)
    rehearsal = rehearse_job(
        job, gpu=scenario.gpu, events=args.events, routing=scenario.job.routing
    )
    if "oom" in rehearsal.measured:
        raise VramBudgetError("the rehearsal ran out of memory", hint="name a larger --gpu")
    versions = {k: v for k, v in rehearsal.versions.items() if k in ("torch", "transformers")}
    scenario = resolve(args.model, gpu=scenario.gpu, **{**versions, **fields})
    tape = estimated(scenario)
    rows = _rows(tape, rehearsal, measure_job(job)["measured"] if args.measure else None)
    if rows[-1]["estimate"] > available_bytes:  # where PyTorch returns cached segments
        say("note: more is reserved than this GPU has: name a larger --gpu to compare those bytes")
    events = _compared(scenario, tape, rehearsal) if args.events else ""
    emit(_render(rows, rehearsal, events, args), args)
    return DONE if all(row["estimate"] == row["rehearsal"] for row in rows) else DOES_NOT_FIT


def estimated(scenario: Scenario) -> Tape:
    """Return the tape of a job, on a GPU whose benchmarks find no padded product faster."""
    config = scenario.config
    if scenario.job.compile:
        config = config.model_copy(update={"pads": False})
    return simulate(config, scenario.job, scenario.platform).tape


def _rows(
    tape: Tape, rehearsal: JobRehearsal, measured: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    peak = replay(tape).peak
    rows = [
        {
            "peak": name,
            "estimate": getattr(peak, f"{name}_bytes"),
            "rehearsal": rehearsal.measured[f"peak_{name}"],
        }
        for name in ("requested", "allocated", "reserved")
    ]
    if measured is not None:
        for row in rows:
            row["measurement"] = measured.get(f"peak_{row['peak']}")
    return rows


def _render(
    rows: Sequence[Mapping[str, Any]],
    rehearsal: JobRehearsal,
    events: str,
    args: argparse.Namespace,
) -> str:
    output = chosen_format(args)
    if output == "json":
        found = {"gpu": rehearsal.gpu, "versions": rehearsal.versions, "peaks": rows}
        return json.dumps({**found, **({"events": events} if events else {})}, indent=2)
    table = render_rows(_columns(args.measure), rows, output)
    if output == "csv":
        return table
    versions = ", ".join(f"{name} {version}" for name, version in rehearsal.versions.items())
    head = f"rehearsed on a virtual {rehearsal.gpu}; {versions}"
    return "\n\n".join(filter(None, (head, table, events)))


def _columns(measured: bool) -> list[Column]:  # noqa: FBT001 - private
    names = ["estimate", "rehearsal", *(["measurement"] if measured else [])]
    return [Column("peak", "peak bytes"), *(Column(n, n, "right", _bytes) for n in names)]


def _bytes(n: int | None) -> str:
    return "-" if n is None else f"{n:,}"


def _compared(scenario: Scenario, tape: Tape, rehearsal: JobRehearsal) -> str:
    both = of_tape(tape), of_events(rehearsal.events)
    if scenario.job.compile:
        return _first_difference(scenario, *map(after_first_step, both))
    return _first_difference(scenario, *both)


def _first_difference(
    scenario: Scenario, expected: Sequence[Allocation], actual: Sequence[Allocation]
) -> str:
    found = first_difference(expected, actual)
    if found is None:
        count = len(expected)
        return f"all {count:,} allocations of {scenario.job.steps} steps are equal, in order"
    start = max(found.index - _CONTEXT, 0)
    lines = [f"allocation {found.index:,} differs; before it, equal in both:"]
    lines += [f"  {a.bytes:>15,} B  {a.label}" for a in actual[start : found.index]]
    lines += _side("estimate", found.expected, found.expected_alive_bytes)
    lines += _side("rehearsal", found.actual, found.actual_alive_bytes)
    return "\n".join(lines)


def _side(name: str, allocation: Allocation | None, alive_bytes: int) -> list[str]:
    if allocation is None:
        return [f"{name}: no more allocations"]
    lines = [f"{name}: {alive_bytes:,} B alive, then"]
    lines += [f"  freed {label}" for label in allocation.freed]
    return [*lines, f"  {allocation.bytes:>15,} B  {allocation.label}"]
