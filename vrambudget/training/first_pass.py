"""The first step's forward and backward passes, laid down again in the second without a walk.

Both do the same: they find no gradients, and what is made once (workspaces, a scaler's scalars) is
made in the first alone. So the second's are a copy of the first's events with new storages. What
they leave alive is adopted: gradients by their parameters, all else (inputs, outputs, loss, what
hangs on the graph) by objects that die when the next step's outputs replace them.

The order of frees between two allocations does not matter, so it does not matter which of the
loop's names held what.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.tape.events import Mark, Storage, Tape
from vrambudget.training.scaler import GradScaler


@dataclass(frozen=True, slots=True)
class _Gradient:
    parameter: Parameter
    shape: Shape
    dtype: DType
    strides: Shape | None
    index: int


class FirstPass:
    """Notes where the first passes' parts lie on the tape; then lays them down once more."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._begin = self._batched = self._returned = self._end = 0  # positions
        self._marks: list[Mark] = []
        self._gradients: list[_Gradient] = []
        self._once: set[int] = set()  # storages; so are the following
        self._left: list[int] = []
        self._first = self._stop = self._shift = 0

    def has_batch(self) -> None:
        """Note that the first batch is made."""
        if not self._batched:
            self._begin, self._batched = self._tape.marks[-1].position, len(self._tape.events)

    def has_outputs(self) -> None:
        """Note that the model returned for the first time."""
        self._returned = self._returned or len(self._tape.events)

    def is_over(self, parameters: Sequence[Parameter], scaler: GradScaler) -> None:
        """Note that the last backward of the first step ended, and what is alive then."""
        tape, begin = self._tape, self._begin
        events = tape.events[begin:]
        self._end = len(tape.events)
        self._marks = [mark for mark in tape.marks if begin <= mark.position < self._end]
        self._gradients = [
            _Gradient(p, p.grad.shape, p.grad.dtype, p.grad.strides, p.grad.storage.index)
            for p in parameters
            if p.grad is not None
        ]
        self._once = {storage.index for storage in context.workspaces.values()}
        self._once |= {x.storage.index for x in vars(scaler).values() if isinstance(x, Tensor)}
        born = {event for event in events if event >= 0}
        died = {~event for event in events if event < 0}
        self._first, self._stop = min(born), len(tape.sizes)
        if died <= born:  # else something older died in it, which cannot die again
            self._left = sorted(born - died - self._once - {g.index for g in self._gradients})

    @property
    def can_be_copied(self) -> bool:
        """Whether there is one, and no gradient waits to be added to."""
        return bool(self._left) and all(g.parameter.grad is None for g in self._gradients)

    def lay_batch(self, step: int) -> None:
        """Lay down the first batch."""
        self._shift = self._tape.copy_storages(self._first, self._stop)
        self._lay(step, self._begin, self._batched)

    def lay_outputs(self, step: int) -> None:
        """Lay down the first forward pass, up to the model's return."""
        self._lay(step, self._batched, self._returned)

    def lay_rest(self, step: int) -> list[Storage]:
        """Lay down the rest; give what the loop's names hold from now on."""
        self._lay(step, self._returned, self._end)
        for g in self._gradients:
            storage = self._tape.adopted(g.index + self._shift)
            g.parameter.grad = Tensor(g.shape, g.dtype, storage, g.strides)
        return [self._tape.adopted(index + self._shift) for index in self._left]

    def _lay(self, step: int, start: int, stop: int) -> None:
        tape, shift, once = self._tape, self._shift, self._once
        marks = [mark for mark in self._marks if start <= mark.position < stop]
        ends = [*(mark.position for mark in marks), stop]
        for mark, position, end in zip([None, *marks], [start, *ends], ends, strict=False):
            if mark is not None:
                tape.mark(step, mark.phase, period=mark.period)
            tape.events += [
                event + shift if event >= 0 else event - shift
                for event in tape.events[position:end]
                if event not in once
            ]
