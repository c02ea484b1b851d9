"""One tape for many points: its sizes are `SizeVector`s, everything else is the same for all.

    tape at a point     the vectors' values there: what `simulate` of that point alone records
    requested peaks     of all points at once. What is alive after an event is a sum of sizes, so
                        with few distinct sizes it is a row of counts; the peak is the largest of
                        counts [moments, sizes] @ sizes [sizes, points]

Moments are those where an allocation comes before a free (no other can be highest), without those
that another moment exceeds in every count.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from vrambudget.engine.sizes import forget
from vrambudget.planning.size_vector import SizeVector, by_regime
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.packing import change_of, storage_of

Sizes = npt.NDArray[np.int64]

_POINTS_AT_ONCE = 8192  # keeps products of a few hundred moments within a few MB


@dataclass(frozen=True, slots=True)
class SharedTape:
    """The tape of the points `indices`."""

    indices: npt.NDArray[np.intp]
    tape: Tape

    def at_points(self) -> Iterator[tuple[int, Tape]]:
        """Yield (index, tape) of each point."""
        distinct = {size: column for column, size in enumerate(dict.fromkeys(self.tape.sizes))}
        columns = [distinct[size] for size in self.tape.sizes]
        table = _table(list(distinct), len(self.indices)).T.tolist()
        for index, values in zip(self.indices.tolist(), table, strict=True):
            yield index, replace(self.tape, sizes=[values[column] for column in columns])

    def requested_peaks(self) -> Sizes:
        """Return each point's peak of requested bytes, since the last reset of the peaks."""
        counts, vectors = self._counts()
        counts = _highest(counts, _table(vectors, len(self.indices)))
        peaks = np.empty(len(self.indices), np.int64)
        # In float64, by BLAS: all numbers are whole and below 2**53.
        for start in range(0, len(peaks), _POINTS_AT_ONCE):
            part = slice(start, start + _POINTS_AT_ONCE)
            table = _table(vectors, len(self.indices), part).astype(np.float64)
            peaks[part] = (counts @ table).max(axis=0)
        return peaks

    def _counts(self) -> tuple[npt.NDArray[np.float64], list[SizeVector | int]]:
        """Return how often each size is alive at each moment; sizes that are ints are joined."""
        sizes, events = self.tape.sizes, np.array(self.tape.events)
        vectors = list(dict.fromkeys(size for size in sizes if isinstance(size, SizeVector)))
        column_of = {vector: column for column, vector in enumerate(vectors)}
        columns = np.array([column_of.get(size, len(vectors)) for size in sizes])
        weights = np.array([1 if isinstance(size, SizeVector) else size for size in sizes])
        born = change_of(events) > 0
        storages = storage_of(events)
        changes = change_of(events) * weights[storages]
        ends = _highest_moments(born, self.tape.built())  # events after which a moment is over
        width = len(vectors) + 1
        place = np.searchsorted(ends, np.arange(len(events))) * width + columns[storages]
        summed = np.bincount(place, changes, (len(ends) + 1) * width)
        alive = summed.reshape(-1, width)[:-1].cumsum(axis=0)
        return alive, [*vectors, 1]


def shared_tapes(scenario: Scenario, batches: Sizes, blocks: Sizes) -> Iterator[SharedTape]:
    """Yield tapes of all points (batch, block): as few as the rules' decisions allow."""

    def record(batch: SizeVector, block: SizeVector) -> Tape:
        here = variant(scenario, batch=batch, block=block)
        return simulate(here.config, here.job, here.platform).tape

    for indices, tape in by_regime(record, (batches, blocks), len(batches)):
        forget()
        yield SharedTape(indices, tape)


def _highest_moments(born: npt.NDArray[np.bool_], reset: int) -> npt.NDArray[np.intp]:
    """Return the last event before the peaks are reset, and allocations that a free follows."""
    before_free = born & ~np.append(born[1:], False)
    before_free[: reset - 1] = False
    before_free[reset - 1] = True
    return np.flatnonzero(before_free)


def _table(sizes: Sequence[SizeVector | int], points: int, part: slice = slice(None)) -> Sizes:
    """Return the sizes' values [sizes, points]."""
    count = len(range(points)[part])
    table = np.empty((len(sizes), count), np.int64)
    for row, size in zip(table, sizes, strict=True):
        row[:] = size.values[part] if isinstance(size, SizeVector) else size
    return table


def _highest(counts: npt.NDArray[np.float64], table: Sizes) -> npt.NDArray[np.float64]:
    """Return the rows of counts that may be highest somewhere.

    A row that is below another in every column never is; rows are compared with those that are
    highest at the first, the middle and the last point.
    """
    some = table[:, [0, table.shape[1] // 2, -1]].astype(np.float64)
    for row in counts[np.unique((counts @ some).argmax(axis=0))]:
        counts = np.vstack([row, counts[(counts > row).any(axis=1)]])
    return counts
