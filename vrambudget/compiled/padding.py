"""Padded matrix products: what only a benchmark on the card decides is counted both ways.

Source: torch/_inductor/fx_passes/pad_mm.py (should_pad).
"""

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from vrambudget.compiled.findings import findings
from vrambudget.tape.events import Tape


class Recorded(Protocol):
    """A recording, as far as it matters here."""

    @property
    def tape(self) -> Tape:
        """Its tape."""


R = TypeVar("R", bound=Recorded)


def fullest(config: Any, simulated: Callable[[Any], R]) -> R:
    """Return the recording of the larger peak, without padding or with it."""
    findings.begin()
    plain = simulated(config)
    if not findings.asked:
        return plain
    padded = simulated(config.model_copy(update={"pads": True}))
    peaks = tuple(recording.tape.peak_requested_bytes() for recording in (plain, padded))
    findings.padded = peaks if peaks[0] != peaks[1] else None
    return padded if peaks[1] > peaks[0] else plain
