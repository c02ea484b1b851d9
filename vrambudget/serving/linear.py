"""A linear layer of a rank as a server has it: projections that are merged, and where it lies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """Weights [sum(outputs), inputs] of one rank.

    `parts`: the names that its projections have in a checkpoint; `whole_inputs`: features of all
    ranks together, of which this one may have a part.
    """

    name: str
    parts: tuple[str, ...]
    inputs: int
    outputs: tuple[int, ...]
    whole_inputs: int

    @property
    def width(self) -> int:
        """Features that come out."""
        return sum(self.outputs)

    @property
    def elements(self) -> int:
        """Those of its weights."""
        return self.inputs * self.width
