"""The work of a sweep without NumPy: each point of a setting is simulated and replayed by itself.

What it comes to is the same as with NumPy (`sweep_points`), where points share a tape: it takes
about a third longer. Sums over many points at once (`by="requested"`) are NumPy's alone; but a
generation is one point in any case.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vrambudget.planning.forked import cpu_count
from vrambudget.planning.sweep_outcome import Outcome, outcome
from vrambudget.planning.sweep_plan import Setting
from vrambudget.planning.variants import variant
from vrambudget.simulate import simulate

_PORTIONS_PER_CPU = 8  # so that all CPUs are busy to the end


@dataclass(frozen=True, slots=True)
class PortionAlone:
    """Points (batch, block) of a setting, which is the sweep's number `number`."""

    number: int
    setting: Setting
    indices: Sequence[int]
    points: Sequence[tuple[int, int]]


def portions(
    number: int, setting: Setting, points: Sequence[tuple[int, int]]
) -> Iterator[PortionAlone]:
    """Yield the points of one setting in portions of points of similar size."""
    order = sorted(range(len(points)), key=lambda index: points[index][0] * points[index][1])
    count = min(len(order), cpu_count() * _PORTIONS_PER_CPU)
    for start in range(count):
        indices = order[start::count]
        yield PortionAlone(number, setting, indices, [points[index] for index in indices])


def generation(number: int, setting: Setting) -> PortionAlone:
    """Return the one point of a setting that is a generation."""
    job = setting.scenario.job
    return PortionAlone(number, setting, [0], [(job.batch, job.block or 0)])


def requested(portion: PortionAlone) -> list[int]:
    """Return each point's peak of requested bytes."""
    return [found.peak.requested_bytes for found in replayed(portion)]


def replayed(portion: PortionAlone) -> list[Outcome]:
    """Return each point's outcome."""
    scenario, gpus = portion.setting.scenario, portion.setting.gpus
    outcomes = []
    for batch, block in portion.points:
        there = variant(scenario, batch=batch, block=block)
        tape = simulate(there.config, there.job, there.platform).tape
        outcomes.append(outcome(tape, gpus))
    return outcomes
