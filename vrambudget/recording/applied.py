"""torch.autograd.Function, written down as one call: its forward, what it saves, its backward.

What its own code calls is no instruction: the call's effects are all that the tape has of it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from vrambudget.engine.autograd import Saved, keep, record_many
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.recording.general import Patch, gradient_of, note_results, place_of
from vrambudget.recording.listener import Listener, WholePhase
from vrambudget.recording.raw import Effects
from vrambudget.traced import functions
from vrambudget.traced import patches as traced_patches
from vrambudget.traced.tensor import TracedTensor


class _Applied:
    """A function that is applied, with what `general` asks of a call."""

    def __init__(self, listener: Listener, name: str, own: list[Tensor]) -> None:
        self.effects, self.phase = Effects(name), WholePhase(listener)
        self.own, self.places, self.dys = own, list[int](), tuple[Tensor | None, ...]()
        self.numbers: dict[int, int] = {}
        self._listener = listener

    def keep(self, v: Tensor) -> None:
        """Note what its forward saves."""
        at = len(context.tape.events)
        self.phase.marks.append((at, 0, ("keep", len(self.places))))
        self.effects.kept.append(place_of(self._listener, self, v.storage))
        self.places.append(v.storage.index)

    def note_node(self, outputs: Sequence[Tensor], inputs: Sequence[Tensor | None]) -> None:
        """Note its node, whose edges lead to what it was given."""
        wanted = [x if x is not None and x.requires_grad else None for x in inputs]
        edges = [x and ["in", next(i for i, y in enumerate(self.own) if x is y)] for x in wanted]
        slots = list(range(len(self.places)))
        self.effects.nodes.append([self.effects.name, len(outputs), edges, slots])
        self.numbers = {id(y.node): 0 for y in outputs}

    def heard(self, backward: Callable[..., Any]) -> Callable[..., Any]:
        """Return its backward; what happens in it is noted."""
        listener = self._listener

        def run(*gradients: Tensor | None) -> Any:
            self.phase, self.dys, listener.applies = WholePhase(listener), gradients, True
            try:
                result = backward(*gradients)
            finally:
                listener.applies = False
            outgoing = [gradient_of(listener, self, g, gradients) for g in result]
            self.effects.backs[0] = [self.phase.events(), outgoing]
            self.dys = ()
            return result

        return run


def patches(listener: Listener) -> Iterator[Patch]:
    """Yield what is replaced while the listener listens: (owner, name, replacement)."""
    apply = functions.apply_function
    running: list[_Applied] = []

    def applied(mode: Any, function: Any, args: Any, kwargs: Any) -> Any:
        if not listener.is_on:
            return apply(mode, function, args, kwargs)
        given = [x for x in args if isinstance(x, TracedTensor)]
        call = _Applied(listener, function.__name__, list({id(x.v): x.v for x in given}.values()))
        running.append(call)
        listener.is_on, listener.applies = False, True
        try:
            result = apply(mode, function, args, kwargs)
        finally:
            listener.is_on, listener.applies = True, False
            running.pop()
        made = [
            x
            for x in (result if isinstance(result, tuple) else (result,))
            if isinstance(x, TracedTensor)
        ]
        if any(x.v is y for x in made for y in call.own):
            listener.problem(f"{function.__name__}, an autograd.Function, returns what it is given")
        listener.given = {id(x.v): x.named for x in given if hasattr(x, "named")}
        note_results(listener, call, call.own, (result, {id(x): x.v for x in made}, {}))
        call.own = []
        for x in made:
            listener.wrapped(x, x.v)
        return result

    def kept(v: Tensor) -> Saved:
        if running:
            running[-1].keep(v)
        return keep(v)

    def recorded(name: str, outputs: Any, *, inputs: Any, backward: Any) -> None:
        if not running:
            record_many(name, outputs, inputs=inputs, backward=backward)
            return
        call = running[-1]
        record_many(name, outputs, inputs=inputs, backward=call.heard(backward))
        call.note_node(outputs, inputs)

    yield traced_patches, "apply_function", applied
    yield functions, "keep", kept
    yield functions, "record_many", recorded
