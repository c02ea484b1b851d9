"""What a server makes that is not just a tensor: linear layers of a rank, and rotary tables."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedLinear:
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
    has_biases: bool = False  # of experts, [E, N]; those of a layer are a tensor of their own

    @property
    def width(self) -> int:
        """Features that come out."""
        return sum(self.outputs)

    @property
    def elements(self) -> int:
        """Those of its weights."""
        return max(1, self.experts) * self.inputs * self.width

    @property
    def biases(self) -> int:
        """Elements of the experts' biases."""
        return self.experts * self.width if self.has_biases else 0


@dataclass(frozen=True, slots=True)
class Rotary:
    """A table of cosines and sines [positions, width], computed on the GPU in float32."""

    positions: int
    width: int
    is_joined: bool = False  # from a list of one, with linear scaling: once more in float32
