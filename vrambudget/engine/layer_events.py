"""A layer's events with names for storages, so that those of two identical layers are equal.

own           i, in the order in which the part makes them
its forward's FORWARD + i, in backward
held          HELD + k: what its hooks held in place k before (`engine.hook_state`)
its inputs    INPUT + k, of those that are hidden states
in backward   GRADIENT + k: its outputs' gradients
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from vrambudget.tape.packing import SPECIAL, died_in, on_storage, storage_of

FORWARD = 1 << 24  # more than there are storages on a tape
HELD = 1 << 28
INPUT = 1 << 30
GRADIENT = INPUT + (1 << 8)


@dataclass(frozen=True)
class NamedEvents:
    """One part's events."""

    events: list[int]

    @classmethod
    def of(cls, events: Sequence[int], first: int, name: Callable[[int], int]) -> NamedEvents:
        """Return events of a part whose own storages begin at `first`, others named by `name`."""
        return cls(
            [
                event - first
                if 0 <= event < SPECIAL
                else on_storage(event, name(storage_of(event)))
                for event in events
            ]
        )

    def replayed(self, first: int, storage: Callable[[int], int]) -> list[int]:
        """Return the events of another part, whose own storages begin at `first`."""
        events = [event + first if event >= 0 else event - first for event in self.events]
        for position, event, name in self._others:
            events[position] = on_storage(event, storage(name))
        return events

    @cached_property
    def freed(self) -> set[int]:
        """The names of the storages that die."""
        return died_in(self.events, is_fast=False)

    @cached_property
    def _others(self) -> list[tuple[int, int, int]]:
        """Where the events of storages that are not its own are, these, and the names."""
        named = ((at, event, storage_of(event)) for at, event in enumerate(self.events))
        return [each for each in named if each[2] >= FORWARD]
