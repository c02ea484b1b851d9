"""A budget: what a job takes at its peak, and whether it fits on a GPU. Plain, frozen data.

Every report is a function of a `Budget`, which can be saved as JSON. All sizes are bytes. `peak`
and `breakdown` are those on a GPU that is large enough; `out_of_memory` is what happens on the
given one. `Budget.check` has the invariants.

The JSON is the dataclass, field for field, under `"schema": 1`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from vrambudget.bounded import read_object
from vrambudget.declared import RefusedError, coerced
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import escaped, for_terminal, json_text

SCHEMA: Final = 1
Verdict = Literal["fits", "tight", "does not fit"]
_SPARE_BYTES: Final = 258 * 2**20  # the widest range that was published for one GPU: an H100's


def spare_bytes(assumed: int, lowest: int, highest: int) -> int:
    """Return what to leave free of a GPU: by how much its context may be larger than assumed.

    From `lowest` to `highest` was published. Where that is one figure, nobody knows the range: then
    it is assumed to be as wide as the widest that is known.
    """
    return highest - assumed if highest > lowest else _SPARE_BYTES


BLOCK_ROUNDING: Final = "block rounding"
"""The allocator's share of the peak: blocks are multiples of 512 bytes, and some are not split.

It is the only part of a breakdown that is not a purpose on the tape.
"""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How many parameters a model has; shared ones count once."""

    total: int
    trainable: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The maximum of each counter, and when allocated bytes reach theirs."""

    requested_bytes: int  # as tensors ask
    allocated_bytes: int  # torch.cuda.max_memory_allocated()
    reserved_bytes: int  # torch.cuda.max_memory_reserved()
    step: int  # from 1
    phase: str
    operation: str


@dataclass(frozen=True, slots=True)
class Step:
    """Allocated bytes along one step of the loop; peaks are those up to its end."""

    after_forward_bytes: int | None
    after_backward_bytes: int | None  # None in evaluation
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and what the job leaves of it: peak = reserved + CUDA context."""

    name: str
    capacity_bytes: int
    context_bytes: int
    peak_bytes: int
    headroom_bytes: int  # capacity - peak: negative where the peak is above the GPU
    fits: bool
    context_range: tuple[int, int] | None = None  # bytes: the lowest and the highest published
    context_source: str = ""  # whose figure the context is

    @property
    def is_tight(self) -> bool:
        """Whether it fits only if the context is small and nothing else uses the GPU."""
        low_high = self.context_range or (self.context_bytes, self.context_bytes)
        return self.fits and self.headroom_bytes < spare_bytes(self.context_bytes, *low_high)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Where the given GPU is full: the request that fails, with what is allocated by then."""

    step: int  # from 1
    phase: str
    operation: str
    requested_bytes: int
    allocated_bytes: int


@dataclass(frozen=True, slots=True)
class FullAt:
    """How many tokens a row of a generation has when the GPU is full, the prompt among them."""

    tokens: int
    is_exact: bool  # else it is full at so many at the latest


@dataclass(frozen=True, slots=True)
class RankPeak:
    """What one rank takes at its peak."""

    rank: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int


@dataclass(frozen=True, slots=True)
class MultiGpu:
    """Several GPUs: how their ranks share the work, what those that differ take, what is outside.

    `peaks` are those of the ranks that were traced; a single one stands for all. Neither
    `host_bytes` nor NCCL's buffers, which depend on the links between the GPUs, are in a budget's
    peak.
    """

    ranks: int
    parallel: str
    peaks: tuple[RankPeak, ...]
    host_bytes: int  # in main memory, of each rank
    nccl_groups: int
    nccl_bytes: tuple[int, int]  # from, to: of all groups


@dataclass(frozen=True, slots=True)
class Budget:
    """What a job takes; `breakdown`: what is alive, by purpose, when most is allocated."""

    model: str
    job: Mapping[str, Any]  # every field of Job, resolved
    parameters: Parameters
    peak: Peak
    breakdown: Mapping[str, int]
    steps: tuple[Step, ...]
    device: Device | None = None
    out_of_memory: OutOfMemory | None = None
    not_modelled: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    distributed: MultiGpu | None = None
    full_at: FullAt | None = None  # of a generation whose cache grows

    @property
    def fits(self) -> bool | None:
        """Whether the job runs on its GPU; None if no GPU was named."""
        return None if self.device is None else self.device.fits

    @property
    def verdict(self) -> Verdict | None:
        """The same in three values: "tight" fits if nothing else uses the GPU."""
        if self.device is None:
            return None
        if not self.device.fits:
            return "does not fit"
        return "tight" if self.device.is_tight else "fits"

    def __bool__(self) -> bool:
        """Raise VramBudgetError: whether it fits is `fits`, which is None without a GPU."""
        raise VramBudgetError(
            "a budget is neither true nor false",
            hint="ask budget.fits: True, False, or None where no GPU was named",
        )

    def __repr__(self) -> str:
        """Return one line."""
        return f"<Budget of {escaped(self.model)}: {str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        from vrambudget.report import render  # noqa: PLC0415 - to show itself, upwards

        return for_terminal(render(self))

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook shows."""
        from vrambudget.report.notebook import budget_html  # noqa: PLC0415 - upwards, too

        return budget_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's own
        """Print what IPython shows in a terminal."""
        del cycle
        printer.text(str(self))

    def check(self) -> "Budget":
        """Return self. Raises AssertionError if two numbers contradict each other."""
        for problem in self._contradictions():
            raise AssertionError(problem)
        return self

    def _contradictions(self) -> list[str]:
        peak, device = self.peak, self.device
        parts = sum(self.breakdown.values())
        rules = {
            f"the parts add up to {parts} of {peak.allocated_bytes}": parts == peak.allocated_bytes,
            "a part is negative": min(self.breakdown.values(), default=0) >= 0,
            "the peaks are out of order": (
                0 <= peak.requested_bytes <= peak.allocated_bytes <= peak.reserved_bytes
            ),
            "more parameters are trained than there are": (
                0 <= self.parameters.trainable <= self.parameters.total
            ),
            "the peak is in no step": 1 <= peak.step <= len(self.steps),
            "the last step does not end at the peak": bool(self.steps)
            and self.steps[-1].peak_allocated_bytes == peak.allocated_bytes
            and self.steps[-1].peak_reserved_bytes == peak.reserved_bytes,
            "a step's peak is below an earlier one's": all(
                a.peak_allocated_bytes <= b.peak_allocated_bytes
                and a.peak_reserved_bytes <= b.peak_reserved_bytes
                for a, b in zip(self.steps, self.steps[1:], strict=False)
            ),
            "out of memory on no GPU": device is not None or self.out_of_memory is None,
        }
        if device is not None:
            context = device.context_bytes
            rules |= {
                "device: peak is not reserved + context": (
                    device.peak_bytes == peak.reserved_bytes + context
                ),
                "device: headroom is not capacity - peak": (
                    device.headroom_bytes == device.capacity_bytes - device.peak_bytes
                ),
                "device: fits or runs out of memory, one of them": (
                    device.fits == (self.out_of_memory is None)
                ),
                "device: room is left and it does not fit": (
                    device.fits or device.headroom_bytes < 0
                ),
            }
        return [problem for problem, holds in rules.items() if not holds]

    def to_json(self) -> str:
        """Return the budget as JSON text."""
        return json_text({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def from_json(cls, text: str | bytes, *, where: str | None = None) -> "Budget":
        """Return the budget that `to_json` wrote. Raises VramBudgetError for anything else."""
        values = read_object(text, where=where, so=", so not a saved budget")
        if (schema := values.pop("schema", None)) != SCHEMA:
            raise VramBudgetError(
                f"this is not a saved budget: schema is {schema!r}, expected {SCHEMA}",
                where=where,
                hint="`vrambudget MODEL --format json -o FILE` writes one",
            )
        if "several" in values and "distributed" not in values:  # its name until 0.3
            values["distributed"] = values.pop("several")
        try:
            budget: Budget = coerced(cls, values).check()
        except RefusedError as error:
            key = ".".join(map(str, error.path))
            raise VramBudgetError(
                f"{key} is {error.value!r:.60}; {error.rule}", where=where
            ) from None
        except AssertionError as error:
            raise VramBudgetError(f"this budget contradicts itself: {error}", where=where) from None
        try:  # a report knows which values a job may have, and none is NaN
            str(budget), budget._repr_html_(), json.dumps(values, allow_nan=False)
        except Exception as error:  # it meets whatever others wrote
            raise VramBudgetError("its job is that of no saved budget", where=where) from error
        return budget
