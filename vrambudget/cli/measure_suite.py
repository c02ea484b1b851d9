"""`vrambudget measure --suite`: run a suite's jobs, one process each, and show each at once.

A line for each job: bytes as estimated and as measured. Its record is appended to a file before the
next job begins, so that an interrupted suite goes on where it was: jobs whose records are there, of
the same GPU and versions, are not run again. Out of memory is a result.

A time limit is kept: no job begins that would end after it if it took as long as the longest yet.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.cli import DONE, FAILED
from vrambudget.cli.records import append_record
from vrambudget.cli.streams import put, say
from vrambudget.config.gpus import Gpu
from vrambudget.config.record import gpu_of_record, read_records
from vrambudget.errors import VramBudgetError
from vrambudget.measure.record import look, measure_job
from vrambudget.measure.suite import SuiteName, SuiteRow, rows_of, sized
from vrambudget.units import format_bytes
from vrambudget.validate import PEAKS, Check, validate

_COUNTERS = ("allocated", "reserved")
_LINE = "{:<44}  {:>11} {:>11} {:>9}  {:>11} {:>11} {:>9}\n"
_SEND = "docs/measure.md says how to send records"


_MINUTES: Mapping[SuiteName, float] = {"quick": 10}
"""How long a suite takes at most, where nothing else is said."""


def run_suite(suite: SuiteName, output: Path | None, minutes: float | None = None) -> int:
    """Run a suite to its end, or for so many minutes. Returns 2 where a job was not measured."""
    clock = _Clock(_MINUTES.get(suite) if minutes is None else minutes)
    machine = look()
    gpu = gpu_of_record(machine)
    file = output or Path(f"measured-{gpu.key or 'gpu'}.jsonl")
    found = _FoundJob(file, machine)
    put(f"{gpu.name}, {format_bytes(gpu.capacity_bytes)}; records go to {file}\n")
    head = ("estimate", "measured", "error")
    put(_LINE.format("allocated, then reserved", *head, *head))
    rows = list(rows_of(suite))
    for number, row in enumerate(rows):
        if clock.is_up():
            found.left = len(rows) - number
            break
        found.measure(row, gpu)
    put(f"{found.summary()}\n")
    return FAILED if found.failed else DONE


class _Clock:
    """Knows when another job might end too late."""

    def __init__(self, minutes: float | None) -> None:
        self.end = None if minutes is None else time.monotonic() + 60 * minutes
        self.last, self.longest = time.monotonic(), 0.0

    def is_up(self) -> bool:
        """Whether to begin no more jobs; it is asked before each."""
        now = time.monotonic()
        self.longest, self.last = max(self.longest, now - self.last), now
        return self.end is not None and now + self.longest > self.end


class _FoundJob:
    """What a suite found so far, in this run and in those before it."""

    def __init__(self, file: Path, machine: Mapping[str, Any]) -> None:
        self.file, self.machine = file, machine
        self.checks: list[Check] = []
        self.failed = self.skipped = self.left = 0
        before = read_records(file) if file.exists() else []
        mine = (machine["card"], machine["versions"])
        self._before = {r["id"]: r for r in before if (r.get("card"), r.get("versions")) == mine}

    def measure(self, row: SuiteRow, gpu: Gpu) -> None:
        """Measure a row, or show what is known of it."""
        missing = [name for name in row.needs if name not in self.machine["versions"]]
        if missing:
            return self._skip(row, f"needs {' and '.join(missing)}")
        try:
            job = sized(row, gpu, self.machine["versions"])
        except VramBudgetError as error:  # what its model does not have
            return self._skip(row, error.message)
        if job is None:
            return self._skip(row, "no size of it fits")
        record = self._before.get(job["id"])
        if record is None:
            try:
                record = measure_job(job, machine=self.machine)
            except VramBudgetError as error:
                self.failed += 1
                say(f"{row.id}: {error.render()}")
                return None
            append_record(record, self.file)
        (check,) = validate([record])
        self.checks.append(check)
        put(_line(check))
        return None

    def _skip(self, row: SuiteRow, why: str) -> None:
        self.skipped += 1
        say(f"{row.id}: not measured: {why}")

    def summary(self) -> str:
        """Return how it went, in a line."""
        full = [check for check in self.checks if check.ran_out_of_memory]
        exact = [check for check in self.checks if all(check.error(c) == 0 for c in PEAKS)]
        words = [
            f"{len(self.checks)} jobs: {len(exact)} equal to the byte",
            f"{len(full)} out of memory, {sum(c.foreseen for c in full)} of them foreseen",
            f"{self.skipped} not measured, {self.failed} failed",
        ]
        if self.left:
            words.append(f"{self.left} left as time was up: the same command goes on with them")
        return f"{'; '.join(words)}. {_SEND}"


def _line(check: Check) -> str:
    if check.problem is not None:
        return f"{check.id:<44}  not compared: {check.problem}\n"
    if check.ran_out_of_memory:
        return f"{check.id:<44}  out of memory, {'' if check.foreseen else 'NOT '}foreseen\n"
    cells: list[str] = []
    for counter in _COUNTERS:
        error = check.error(counter)
        cells += [format_bytes(check.predicted[counter]), format_bytes(check.measured[counter])]
        cells.append("exact" if error == 0 else f"{100 * (error or 0):+.2g} %")
    return _LINE.format(check.id, *cells)
