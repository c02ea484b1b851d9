"""A program held against its trace, byte for byte, at sizes that were no probes."""

from collections.abc import Sequence
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.errors import VramBudgetError
from vrambudget.program.catalog import of_programs
from vrambudget.program.config import ProgramConfig
from vrambudget.program.form import Program
from vrambudget.recording.keys import Values
from vrambudget.recording.runs import traced
from vrambudget.scenario import platform_of
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

JOBS: tuple[Values, ...] = (
    {"batch": 2, "block": 37, "precision": "amp-bf16"},
    {"batch": 7, "block": 59, "precision": "bf16"},
    {"batch": 2, "block": 43, "precision": "fp16"},
)
Peaks = tuple[int, int, int]


class UnequalError(VramBudgetError):
    """A program that does not do what its model does."""


def peaks(config: ModelConfig, job: Job) -> Peaks:
    """Return requested, allocated and reserved bytes at the peak."""
    peak = replay(simulate(config, job, platform_of(None, job.torch)).tape).peak
    return peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes


def check(program: Program, values: Values, jobs: Sequence[Values] = JOBS, **fields: Any) -> int:
    """Return at how many sizes the program equals its trace. Raises UnequalError at another."""
    longer = fields.pop("block", 40) - 40
    batch = {"batch": fields.pop("batch")} if "batch" in fields else {}
    jobs = [{**own, "block": own["block"] + longer, **batch} for own in jobs]
    if "target" in program.sizes:
        jobs = [{**own, "target_len": own["block"] - 8} for own in jobs]
    return sum(
        _equal(program, values, {**fields, **own}, f"{own['batch']} x {own['block']}")
        for own in jobs
    )


def _equal(program: Program, values: Values, fields: Values, where: str) -> bool:
    config, job = traced(values, **{"steps": 2, **fields})
    played = of_programs(values, [program]).for_job(job)
    if not isinstance(played, ProgramConfig):  # else the trace would be held against itself
        raise UnequalError(f"the program has no {job.task}")
    expected, actual = peaks(config, job), peaks(played, job)
    if actual != expected:
        raise UnequalError(
            f"the program comes to {actual} bytes at {where}, the traced model to {expected}",
            hint="it was not written; the trace itself is `vrambudget` with torch installed",
        )
    return True
