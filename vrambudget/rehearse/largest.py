"""The largest batch with which a script runs on a GPU, by bisection: each try is a rehearsal.

`{batch}` in the command, or in a variable of the environment, is where the number goes. A larger
batch is taken to need more memory.
"""

from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.record import Rehearsal
from vrambudget.report.tabular import Column, render_rows
from vrambudget.units import format_bytes, whole_number

PLACE = "{batch}"
_SAID = {"timeout": "ran until the time limit"}


@dataclass(frozen=True, slots=True)
class RehearsedTry:
    """One rehearsal of the search."""

    batch: int
    fits: bool
    ended: str
    peak_reserved_bytes: int
    device_peak_bytes: int


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """What was found; `largest` is None where not even the smallest batch fits."""

    largest: int | None
    tries: tuple[RehearsedTry, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return asdict(self)


def read_bounds(text: str) -> tuple[int, int]:
    """Return the smallest and the largest batch of "1:64". Raises VramBudgetError."""
    low, high = (whole_number(part) or 0 for part in text.partition(":")[::2])
    if not 1 <= low <= high:
        raise VramBudgetError(
            f"{text!r} names no batches", where="--batch-from", hint="write --batch-from 1:64"
        )
    return low, high


def largest_batch(
    command: Sequence[str],
    bounds: tuple[int, int],
    rehearse: Callable[[tuple[str, ...]], Rehearsal],
    environment: MutableMapping[str, str],
) -> LargestBatch:
    """Return the largest batch within the bounds with which the command does not run out of memory.

    It is put into the `environment`, too. Raises VramBudgetError where there is no place for it, or
    the command fails for another reason.
    """
    variables = {name: text for name, text in environment.items() if PLACE in text}
    if not variables and not any(PLACE in word for word in command):
        raise VramBudgetError(
            f"the command and its environment say nowhere {PLACE}",
            hint=f"for example: --batch-from 1:64 -- python train.py --batch_size={PLACE}",
        )
    tries: list[RehearsedTry] = []

    def fits(batch: int) -> bool:
        environment.update((k, text.replace(PLACE, str(batch))) for k, text in variables.items())
        found = rehearse(tuple(word.replace(PLACE, str(batch)) for word in command))
        tries.append(_tried(batch, found))
        return found.fits

    low, high = bounds
    if not fits(low):
        return LargestBatch(None, tuple(tries))
    if high > low and fits(high):
        low = high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return LargestBatch(low, tuple(tries))


def _tried(batch: int, found: Rehearsal) -> RehearsedTry:
    reported_nothing = found.ended == "timeout" and not found.steps
    if reported_nothing or (found.fits and found.ended not in ("finished", "steps", "timeout")):
        raise VramBudgetError(
            f"with a batch of {batch} it {_SAID.get(found.ended, found.ended)}:"
            f" {found.error or found.exit_code}",
            hint="rehearse that command by itself",
        )
    return RehearsedTry(
        batch, found.fits, found.ended, found.peak_reserved_bytes, found.device_peak_bytes
    )


_COLUMNS = [
    Column("batch", "batch", "right", str),
    Column("device_peak_bytes", "the GPU must hold", "right", format_bytes),
    Column("fits", "", "left", lambda fits: "fits" if fits else "out of memory"),
]


def render_search(search: LargestBatch, gpu: str) -> str:
    """Return the search as text."""
    rows = [asdict(tried) for tried in sorted(search.tries, key=lambda tried: tried.batch)]
    found = "no batch fits" if search.largest is None else f"largest batch: {search.largest}"
    return f"{render_rows(_COLUMNS, rows, 'table')}\n\n{found} on {gpu}"
