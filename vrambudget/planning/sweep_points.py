"""The work of a sweep: one job on GPUs with the same kernels, at many points (batch, block).

A `Portion` is what one process does at a time. Portions hold points of similar size: these are
likely to be treated alike by the model's rules, and so to share a trace.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vrambudget.planning.forked import cpu_count
from vrambudget.planning.shared_tape import Sizes, shared_tapes
from vrambudget.planning.sweep_outcome import Outcome, outcome
from vrambudget.planning.sweep_plan import Setting

_REPLAYS_AT_LEAST = 32  # in a portion: a trace costs about as much as two replays
_REQUESTS_AT_LEAST = 16384
_PORTIONS_PER_CPU = 4  # so that all CPUs are busy to the end


@dataclass(frozen=True, slots=True)
class Portion:
    """Points `indices` of a setting, which is the sweep's number `number`."""

    number: int
    setting: Setting
    indices: Sizes
    batches: Sizes
    blocks: Sizes


def portions(
    number: int,
    setting: Setting,
    points: Sequence[tuple[int, int]],
    *,
    replays: bool,
    elsewhere: bool = False,
) -> Iterator[Portion]:
    """Yield the points (batch, block) of one setting in portions; small ones for others' CPUs."""
    batches, blocks = np.array(points, np.int64).T.copy()
    most = len(points) if elsewhere else cpu_count() * (_PORTIONS_PER_CPU if replays else 1)
    least = _REPLAYS_AT_LEAST if replays else _REQUESTS_AT_LEAST
    order = np.argsort(batches * blocks, kind="stable")
    for indices in np.array_split(order, max(1, min(most, len(order) // least))):
        yield Portion(number, setting, indices, batches[indices], blocks[indices])


def replayed(portion: Portion) -> list[Outcome]:
    """Return each point's outcome."""
    outcomes: dict[int, Outcome] = {}
    for shared in shared_tapes(portion.setting.scenario, portion.batches, portion.blocks):
        for index, tape in shared.at_points():
            outcomes[index] = outcome(tape, portion.setting.gpus)
    return [outcomes[index] for index in range(len(outcomes))]


def requested(portion: Portion) -> list[int]:
    """Return each point's peak of requested bytes."""
    peaks = np.empty(len(portion.indices), np.int64)
    for shared in shared_tapes(portion.setting.scenario, portion.batches, portion.blocks):
        peaks[shared.indices] = shared.requested_peaks()
    requested_bytes: list[int] = peaks.tolist()
    return requested_bytes
