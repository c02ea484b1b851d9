"""What a job leaves: its tape, and what it was made of."""

from typing import NamedTuple

from vrambudget.tape.events import Tape


class Left(NamedTuple):
    """A tape, and the weights whose pipeline it is of."""

    tape: Tape
    parameters: int
    trainable: int
    unknown_workspace_bytes: int  # most that a convolution touches whose workspace is not known
    missing: tuple[str, ...] = ()  # what was not recorded, and is not counted
