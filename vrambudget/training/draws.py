"""Lengths that change from batch to batch: what several draws of them reserve.

Blocks of another length leave gaps in what is cached, so reserved bytes depend on the order in
which lengths come. The report is of the draw that reserves most.

Not modelled: that reserved bytes may rise beyond the steps that are simulated; lengths that are not
evenly spread, or sorted.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

from vrambudget.config.job import Job
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

DRAWS = 5


class Draws(NamedTuple):
    """What each draw of lengths reserves, by its number; and which of them is shown."""

    reserved_bytes: tuple[int, ...]
    fullest: int


class _Recording(Protocol):
    @property
    def tape(self) -> Tape:
        """What the job allocates."""


_R = TypeVar("_R", bound=_Recording)


def fullest_draw(job: Job, record: Callable[[Job], _R]) -> tuple[_R, Draws]:
    """Return the recording of the draw that reserves most, and what all of them reserve."""
    jobs = [job.model_copy(update={"draw": draw}) for draw in range(DRAWS)]
    recordings = [record(each) for each in jobs]
    reserved = [replay(recording.tape).peak.reserved_bytes for recording in recordings]
    fullest = reserved.index(max(reserved))
    return recordings[fullest], Draws(tuple(reserved), fullest)
