"""A linear layer of a rank as a server has it: projections that are merged, and where it lies."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Linear:
    """Weights [sum(outputs), inputs] of one rank, of each expert where there are some.

    `parts`: the names that its projections have in a checkpoint; `whole_inputs`: features of all
    ranks together, of which this one may have a part.
    """

    name: str
    parts: tuple[str, ...]
    inputs: int
    outputs: tuple[int, ...]
    whole_inputs: int
    experts: int = 0  # that lie in one tensor; 0: it is a layer by itself

    @property
    def width(self) -> int:
        """Features that come out."""
        return sum(self.outputs)

    @property
    def elements(self) -> int:
        """Those of its weights."""
        return max(1, self.experts) * self.inputs * self.width
