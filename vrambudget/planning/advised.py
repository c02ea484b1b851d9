"""Advice: what would help a job, with the peak that each change leads to. Plain, frozen data."""

import shlex
from dataclasses import asdict, dataclass
from typing import Any

from vrambudget.planning.changes import Cost
from vrambudget.planning.choices import gpu_word, model_word
from vrambudget.planning.tensors import HeldTensors
from vrambudget.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Option:
    """A change, or several, with the predicted peak. `options`: for the command line."""

    options: str
    words: tuple[str, ...]
    cost: Cost
    device_peak_bytes: int
    saved_bytes: int
    fits: bool | None  # None where no GPU was named


@dataclass(frozen=True, slots=True)
class Advice:
    """What would help, the cheapest first, and the largest tensors at the peak."""

    fits: bool | None
    device_peak_bytes: int
    options: tuple[Option, ...]
    largest: tuple[HeldTensors, ...]
    capacity_bytes: int | None = None  # of the GPU, where one was named
    spare_bytes: int = 0  # by how much its context may be larger than assumed
    plan: str | None = None  # the command that finds how many GPUs it takes

    def __repr__(self) -> str:
        """Return one line."""
        enough = [option.options for option in self.options if option.fits]
        first = f", the cheapest that is enough: {enough[0]}" if enough else ""
        return f"<Advice: {len(self.options)} changes, {len(enough)} of them enough{first}>"

    def __str__(self) -> str:
        """Return the tables that a report ends with."""
        from vrambudget.report.advice import render_advice  # noqa: PLC0415 - reports know advice

        return render_advice(self)

    def _repr_html_(self) -> str:
        from vrambudget.report.html import advice_section  # noqa: PLC0415 - likewise

        return advice_section(self)

    def records(self) -> list[dict[str, Any]]:
        """Return a flat record for each option, as pandas and polars accept them; bytes as int."""
        return [{**asdict(option), "words": "; ".join(option.words)} for option in self.options]


def plan_of(scenario: Scenario) -> str | None:
    """Return the command that finds how many GPUs a job takes, None where no plan is for it."""
    job = scenario.job
    if scenario.gpu is None or job.mode != "train" or job.mesh.ranks > 1:
        return None
    words = [model_word(scenario), "--gpu", gpu_word(scenario), "--block", str(job.block)]
    return f"vrambudget plan {shlex.join(words)}"
