"""Steps that are not on the tape (`vrambudget.tape.steps`), run through an allocator one by one."""

from collections.abc import Callable, Sequence

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.steps import CARRIED, RepeatedStep, Steps, each, phase_of

Watch = Callable[[RepeatedStep, list[int]], None]
"""Receives each step, once it has run, and the sizes of what it carries on."""


class StepRunner:
    """Runs steps one by one, each event of them."""

    watch: Watch | None = None

    def __init__(
        self, steps: Steps, allocator: CachingAllocator, sizes: Sequence[int], position: int
    ) -> None:
        self.steps, self.allocator, self.position = steps, allocator, position
        patterns = [p for s in steps.stretches for p in s.patterns]
        self.most, self.base = max(len(p.operations) for p in patterns), len(sizes)
        # Steps reuse banks of storages: 10,000 steps need no more than a few do. There are as many
        # banks as steps whose storages may be alive at once: those that carry on what they made,
        # and two that made what later steps carry on unchanged, the old and the new.
        self.banks = 4 + max(p.longest_carry for p in patterns)
        self.sizes = [*sizes, *[0] * (self.banks * self.most)]
        self.carried = list(steps.before)
        self.first = 0  # storage of the step that runs
        allocator.blocks_for(self.sizes)

    def run(self) -> None:
        """Run all steps."""
        bank, allocator = 0, self.allocator
        for step in each(self.steps):
            self.first = self.base + bank * self.most
            self.sizes[self.first : self.first + len(step.sizes)] = step.sizes
            before = allocator.peak_allocated_bytes
            self.step(step)
            if allocator.peak_allocated_bytes > before:
                allocator.peak_event, allocator.peak_step = self.position, step.number
            bank = self.next_bank(bank)
            if self.watch is not None:
                self.watch(step, [self.sizes[storage] for storage in self.carried])
        self.settle()
        for last, storage in zip(self.carried, self.steps.after, strict=True):
            allocator.take_over(last, last + 1, storage - last)

    def next_bank(self, bank: int) -> int:
        """Return the next bank of storages of which none is carried on."""
        held = {(storage - self.base) // self.most for storage in self.carried}
        return next(
            b % self.banks for b in range(bank + 1, bank + self.banks) if b % self.banks not in held
        )

    def step(self, step: RepeatedStep) -> None:
        """Run one step."""
        self.serve(step, step.pattern.events)
        self.carry(step)

    def settle(self) -> None:
        """Bring the allocator up to date with the steps so far."""

    def carry(self, step: RepeatedStep) -> None:
        """Note what a step carries on."""
        first, carried = self.first, self.carried
        self.carried = [
            first + final if final < CARRIED else carried[final - CARRIED]
            for final in step.pattern.finals
        ]

    def serve(self, step: RepeatedStep, events: Sequence[int]) -> None:
        """Run these events of a step."""
        try:
            self.allocator.serve(self.named(events), self.sizes, 0)
        except OutOfDeviceMemoryError as full:
            full.event, full.operation = self.position, step.pattern.operations[events[full.event]]
            full.phase = phase_of(step.number)
            raise

    def named(self, events: Sequence[int]) -> list[int]:
        """Return a pattern's events with the storages of the step that runs."""
        first, carried = self.first, self.carried
        return [
            event + first
            if event >= 0
            else event - first
            if event > ~CARRIED
            else ~carried[~event - CARRIED]
            for event in events
        ]
