"""What a point of a sweep comes to, by replay: its peaks, and whether it fits on each GPU."""

from dataclasses import dataclass

from vrambudget.budget import Peak
from vrambudget.config.gpus import Gpu
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import fits, replay_for


@dataclass(frozen=True, slots=True)
class Outcome:
    """A point's peaks, and whether it fits on each of the setting's GPUs."""

    peak: Peak
    fits: tuple[bool, ...]


def outcome(tape: Tape, gpus: tuple[Gpu, ...]) -> Outcome:
    """Return what a tape comes to on these GPUs."""
    peak = replay_for(tape, min((gpu.available_bytes for gpu in gpus), default=None)).peak
    return Outcome(peak, tuple(fits(tape, peak, gpu.available_bytes) for gpu in gpus))
