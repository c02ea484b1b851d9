"""The first forward and backward, laid down again in the second step without walking the model.

Both do the same: they find no gradients, and what is made once (workspaces, a scaler's scalars) is
made in the first alone. So the second is a copy of the first's events with new storages. What it
leaves alive is adopted: gradients by their parameters, all else (outputs, loss, what hangs on the
graph) by one object that dies when the next step's outputs replace it.

The order of frees between two allocations does not matter, so it does not matter which of the
loop's names held what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.engine.context import context
from vrambudget.engine.dtypes import DType
from vrambudget.engine.tape import Storage, Tape
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.training.scaler import GradScaler


@dataclass(frozen=True, slots=True)
class _Gradient:
    parameter: Parameter
    shape: Shape
    dtype: DType
    strides: Shape | None
    index: int


class FirstPass:
    """A copy in waiting: made right after the first backward, from positions on the tape."""

    __slots__ = ("_first", "_gradients", "_left", "_once", "_positions", "_shift", "_tape")

    def __init__(
        self,
        tape: Tape,
        positions: tuple[int, int, int, int],
        parameters: Sequence[Parameter],
        scaler: GradScaler,
    ) -> None:
        self._tape = tape
        self._positions = positions  # of: forward, its return, backward, the end of backward
        region = tape.events[positions[0] : positions[-1]]
        self._once = {storage.index for storage in context.workspaces.values()}
        self._once |= {x.storage.index for x in vars(scaler).values() if isinstance(x, Tensor)}
        self._gradients = [
            _Gradient(p, p.grad.shape, p.grad.dtype, p.grad.strides, p.grad.storage.index)
            for p in parameters
            if p.grad is not None
        ]
        born = {event for event in region if event >= 0}
        self._first = min(born)
        alive = born - {~event for event in region if event < 0}
        self._left = sorted(alive - self._once - {g.index for g in self._gradients})
        self._shift = 0

    @property
    def can_be_copied(self) -> bool:
        """Whether nothing from before dies in it, and no gradient waits to be added to."""
        start, *_, end = self._positions
        return all(
            event >= 0 or ~event >= self._first for event in self._tape.events[start:end]
        ) and all(g.parameter.grad is None for g in self._gradients)

    def forward(self) -> None:
        """Lay down the forward pass, up to the model's return."""
        tape, first = self._tape, self._first
        last = max(event for event in tape.events[: self._positions[-1]] if event >= 0) + 1
        self._shift = len(tape.sizes) - first
        tape.sizes += tape.sizes[first:last]
        tape.purposes += tape.purposes[first:last]
        tape.operations += tape.operations[first:last]
        tape.contents += tape.contents[first:last]
        self._lay(0)

    def rest_of_forward(self) -> list[Storage]:
        """Lay down what follows the model's return; give what the loop's names hold from now on."""
        self._lay(1)
        return [self._tape.adopted(index + self._shift) for index in self._left]

    def backward(self) -> None:
        """Lay down the backward pass and give the parameters their gradients."""
        self._lay(2)
        for g in self._gradients:
            storage = self._tape.adopted(g.index + self._shift)
            g.parameter.grad = Tensor(g.shape, g.dtype, storage, g.strides)

    def _lay(self, part: int) -> None:
        events, shift, once = self._tape.events, self._shift, self._once
        start, stop = self._positions[part : part + 2]
        events += [
            event + shift if event >= 0 else event - shift
            for event in events[start:stop]
            if event not in once
        ]
