"""Allocator events as text, so that a tape can be held against what PyTorch's allocator recorded.

"+4096 +8 -1 -0" reads: 4096 bytes are allocated, then 8, then the second goes, then the first. The
order of frees that follow one another does not matter to an allocator, so they are sorted.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from vrambudget.engine.context import Platform, recording
from vrambudget.tape.events import Tape

CARDS = {
    "v100-16gb": Platform(compute_capability=(7, 0), multiprocessors=80),
    "t4": Platform(compute_capability=(7, 5), multiprocessors=40),
    "a100-80gb": Platform(compute_capability=(8, 0), multiprocessors=108),
    "rtx-3060": Platform(compute_capability=(8, 6), multiprocessors=28),
    "rtx-4090": Platform(compute_capability=(8, 9), multiprocessors=128),
    "h100-80gb": Platform(compute_capability=(9, 0), multiprocessors=132),
}
"""The cards that sequences were recorded on."""


@dataclass
class Trace:
    """Where in a tape a trace begins and ends; `text` is what happened between."""

    tape: Tape
    start: int
    first: int
    text: str = field(default="")

    def end(self) -> None:
        """Write down what happened since the start."""
        words = []
        for event in self.tape.events[self.start :]:
            if event >= 0:
                words.append(f"+{self.tape.sizes[event]}")
            elif ~event >= self.first:
                words.append(f"-{~event - self.first}")
            else:
                words.append(f"-?{self.tape.sizes[~event]}")
        self.text = normal(" ".join(words))


@contextmanager
def trace(tape: Tape) -> Iterator[Trace]:
    """Write down the events of the block; blocks older than it are freed as "-?bytes"."""
    part = Trace(tape, len(tape.events), len(tape.sizes))
    yield part
    part.end()


def normal(text: str) -> str:
    """Return `text` with frees that follow one another in a fixed order."""
    words: list[str] = []
    frees: list[str] = []
    for word in text.split():
        if word.startswith("-"):
            frees.append(word)
            continue
        words += sorted(frees)
        words.append(word)
        frees = []
    return " ".join(words + sorted(frees))


def run_on(card: str, job: Callable[[Tape], str]) -> str:
    """Return what `job` makes of a fresh tape on `card`."""
    with recording(CARDS[card]) as tape:
        return job(tape)
