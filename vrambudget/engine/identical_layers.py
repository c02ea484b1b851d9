"""Identical layers: some are traced, and the others are copies of those on the tape.

    traced    the first two, and the last two of each kind
    replayed  those between: forward is a copy of a traced layer's below, backward of one's above

Why these: the first layer has neighbours that the others have not (the embedding before it, what
all layers share after it), so the second is the first that others equal. Forward runs upward and
finds its source below; backward runs downward, and finds it in the last two.

What decides a layer's allocations is compared before it is copied: its modules, options and
parameters, and its arguments. The traced layers on both sides are compared with the copies
between them afterwards; if they differ, CannotRepeatError asks for a full trace of the job.

Hidden states may be several tensors, which a layer gets first (FLUX's pictures and text). Gradients
of what all layers share (an encoder's output) are added up in place, and belong to no layer.

Not modelled: layers of a hand-written family that return more than hidden states, or that leave
something for others (routers' logits); these are traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from vrambudget.engine.autograd import Node, edge_to
from vrambudget.engine.context import context
from vrambudget.engine.hook_state import FilledPart, LayerHooks, likeness
from vrambudget.engine.layer_calls import LayerCall, TapeMoment
from vrambudget.engine.layer_kinds import kinds_of
from vrambudget.engine.layer_parts import BackwardPart, ForwardPart
from vrambudget.engine.layer_state import FilledByLayers, LayerPart, Left, Like, filled_by
from vrambudget.engine.module import Module
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Tensor
from vrambudget.tape.events import Storage

_FEWEST = 5  # layers of a stack: of fewer none would be replayed
_LAST = 2  # layers of a kind whose backward is traced


class Layer(Module):
    """One layer of a stack: it takes hidden states first, and returns them alone or first."""

    stack: Stack | None = None
    number = 0
    hook_state: LayerHooks | None = None  # what FSDP's hooks hold, updated by each copy
    states = 1  # tensors that are hidden states, of those that it returns
    is_stacked = True  # not, where a module is called that is no layer, or a layer's code is not

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`, or replay what it would do."""
        if self.stack is None:
            return self.trace(*args, **kwargs)
        return self.stack.call(self, args, kwargs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`."""
        return super().__call__(*args, **kwargs)


def stack_layers(model: Module) -> None:
    """Let layers of a model that are identical be replayed from now on."""
    for module in list(model.modules()):
        for value in module.__dict__.values():
            if isinstance(value, list) and len(value) >= _FEWEST:
                layers = [layer for layer in value if isinstance(layer, Layer)]
                if len(layers) == len(value):
                    Stack(layers)


class Stack:
    """The layers of one list."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.kinds, self.parameters = kinds_of(layers)
        left: Counter[int] = Counter()
        self.is_last = [False] * len(layers)
        for number in reversed(range(len(layers))):
            left[self.kinds[number]] += 1
            self.is_last[number] = left[self.kinds[number]] <= _LAST
        # Layers that share a parameter add up its gradient: no two of them do the same.
        every = [id(parameter) for parameters in self.parameters for parameter in parameters]
        if len(set(every)) == len(every):
            for number, layer in enumerate(layers):
                layer.stack, layer.number = self, number
        self.now = _Pass(self)

    def call(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a layer, or replay it."""
        if layer.number == 0:
            self.now = _Pass(self)
        return self.now.call(layer, args, kwargs)


class _Pass:
    """One pass over the layers, forward and later backward."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.is_captured = False
        self.calls: list[LayerCall] = []
        self.forward: dict[object, ForwardPart] = {}  # those that were replayed, by key
        self.backward: dict[object, BackwardPart] = {}

    def call(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a layer, or replay it."""
        number = layer.number
        xs, others = self._parted(layer, args)
        filled = filled_by([*others, *kwargs.values()])
        hooks = self._hooks(layer, filled)
        key = self._key(layer, xs, [*others, *kwargs.values()], filled, hooks)
        if number != len(self.calls) or key is None:
            self.calls = []
            return layer.trace(*args, **kwargs)
        call = LayerCall(
            number,
            key,
            self.stack.parameters[number],
            TapeMoment.now(),
            context.sequence,
            tuple(x.storage.index for x in xs),
            layer.path,
            hooks,
        )
        if self.calls:
            self._ended(self.calls[-1])
        self.calls.append(call)
        if number and xs[0].node is not None and not self.calls[-2].is_replayed:
            # Backward crosses this node when the gradients of the layer below are complete: that is
            # where one layer's part of the tape ends and the next begins.
            node = self._boundary(self.calls[-2], xs)
            for slot, x in enumerate(xs):
                x.node, x.slot = node, slot
        part = self._part_for(call)
        if part is not None:
            return self._replay(part, call, xs, filled)
        call.begin = TapeMoment.now(hooks)
        result = layer.trace(*args, **kwargs)
        if isinstance(hooks, FilledPart) and number + 1 == len(self.stack.kinds):
            self.stack.now = _Pass(self.stack)  # which does not hold what was filled
            return result
        if filled is not None and not isinstance(hooks, FilledPart):
            call.left = Left.of(filled, number)
        call.is_pair = isinstance(result, tuple) and result[1:] == (None,)
        returned = result if isinstance(result, tuple) else (result,)
        if call.is_pair or len(returned) == layer.states:
            call.returned(returned[: layer.states])
        return result

    def _parted(
        self, layer: Layer, args: tuple[Any, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Any, ...]]:
        """Return hidden states, as many as the layer before returned, and what else is given."""
        count = len(self.calls[-1].outputs) if layer.number and self.calls else layer.states
        return args[: count or 1], args[count or 1 :]

    def _key(
        self,
        layer: Layer,
        xs: tuple[Tensor, ...],
        others: list[Any],
        filled: FilledByLayers | None,
        hooks: LayerHooks | None,
    ) -> tuple[Any, ...] | None:
        """Return what decides which allocations a call makes; None if it must be traced."""
        if layer.number == 0:
            self.is_captured = any(getattr(m, "is_captured", False) for m in layer.modules())
        if self.is_captured or not (context.tape.is_fast or layer.hook_state):
            return None
        if not self._are_last_outputs(xs):
            return None
        fills = None
        if filled is not None and not isinstance(hooks, FilledPart):
            fills = filled.empty_part(layer.number)
            if fills is None:
                return None
        storages = [x.storage.index for x in xs]
        like = (
            *((x.shape, x.dtype, x.strides, x.is_view, x.requires_grad) for x in xs),
            tuple(map(storages.index, storages)),
        )
        given = self.stack.kinds[layer.number], *map(id, others)
        modes = context.grad_enabled, layer.training
        return given, like, fills and fills.kind(), modes, likeness(hooks)

    def _are_last_outputs(self, xs: tuple[Tensor, ...]) -> bool:
        """Whether several hidden states are those that the layer before returned, in any order."""
        if len(xs) == 1:
            return True
        if self.calls and len({x.node is None for x in xs}) > 1:
            return False
        before = self.calls[-1].outputs if self.calls else ()
        given = sorted((x.storage.index, x.shape) for x in xs)
        return not before or given == sorted((x.index, x.shape) for x in before)

    def _hooks(self, layer: Layer, filled: FilledByLayers | None) -> LayerHooks | None:
        """Return the state of a layer's hooks, or of the part of a cache that it changes."""
        part = None if filled is None else filled.layers[layer.number]
        if layer.hook_state or context.grad_enabled or not isinstance(part, LayerPart):
            return layer.hook_state
        return FilledPart(part, self.stack.parameters[layer.number]) if any(part.left()) else None

    def _ended(self, call: LayerCall) -> None:
        """Note that the next layer is called; a traced layer must equal its copies below."""
        call.end = TapeMoment.now(None if call.is_replayed else call.hook_state)
        used = self.forward.get(call.key)
        if used is None or call.is_replayed or used.call is call:
            return
        if not used.same_as(ForwardPart.of(call)):
            raise CannotRepeatError

    def _part_for(self, call: LayerCall) -> ForwardPart | None:
        """Return the part to replay for a call, None if it has to be traced."""
        if self.stack.is_last[call.number]:
            return None
        if call.key not in self.forward:  # a source is not the first layer, see above
            source = next((c for c in self.calls[1:-1] if c.key == call.key), None)
            part = None if source is None else ForwardPart.of(source)
            if part is None:
                return None
            self.forward[call.key] = part
        return self.forward[call.key]

    def _replay(
        self,
        part: ForwardPart,
        call: LayerCall,
        xs: tuple[Tensor, ...],
        filled: FilledByLayers | None,
    ) -> Any:
        held, outputs = {x.storage.index: x.storage for x in xs}, part.replay(call, xs)
        left = call.left.fill(filled, call.number) if call.left and filled else []
        if call.has_graph:
            held |= {x.storage.index: x.storage for x in (*outputs, *left)}
            kept = [s for s in held.values() if s.index in call.held | call.attributes]
            node = self._replayed(call, xs, kept, len(outputs))
            for slot, output in enumerate(outputs):
                output.requires_grad, output.node, output.slot = True, node, slot
            for each in left:
                each.node = node if each.requires_grad else None
        if part.call.is_pair:
            return outputs[0], None
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    def _boundary(self, below: LayerCall, xs: tuple[Tensor, ...]) -> Node:
        """Return a node that notes when the gradients of a traced layer's outputs are complete."""

        def backward(*gradients: Tensor) -> tuple[Tensor, ...]:
            self._complete(below, gradients)
            return gradients

        return _node(xs, backward, len(xs))

    def _replayed(
        self, call: LayerCall, xs: tuple[Tensor, ...], kept: list[Storage], outputs: int
    ) -> Node:
        """Return the node whose backward replays a layer's backward."""

        def backward(*gradients: Tensor) -> tuple[Tensor, ...]:
            self._complete(call, gradients)
            part = self.backward.get(call.key)
            if part is None:
                part = self.backward[call.key] = self._backward_part(call.key)
            return part.replay(call, gradients, kept)

        node = _node(xs, backward, outputs)
        node.attributes = kept
        return node

    def _complete(self, call: LayerCall, gradients: Sequence[Tensor | None]) -> None:
        """Note that gradients are complete; a traced layer must equal the copies above it."""
        call.complete = TapeMoment.now(None if call.is_replayed else call.hook_state)
        call.gradients = tuple(Like.of(x) for x in gradients if x is not None)
        above = self.calls[call.number + 1]
        if len(call.gradients) < len(gradients):
            raise CannotRepeatError
        if not above.is_replayed:
            above.over = TapeMoment.now(above.hook_state)
        if not self.backward:  # nothing is replayed yet
            return
        used = self.backward.get(above.key)
        if used is None or above.is_replayed or used.call is above or self._is_first(above):
            return
        if not used.same_as(BackwardPart.of(above, call)):
            raise CannotRepeatError

    def _is_first(self, call: LayerCall) -> bool:
        """Whether it is the first of its kind, whose backward frees what all of them share."""
        return all(other.key[0] != call.key[0] for other in self.calls[: call.number])

    def _backward_part(self, key: object) -> BackwardPart:
        for below, call in zip(self.calls, self.calls[1:], strict=False):
            if call.key == key and not call.is_replayed and call.complete and call.over:
                return BackwardPart.of(call, below)
        raise CannotRepeatError


def _node(xs: Sequence[Tensor], backward: Callable[..., Any], outputs: int) -> Node:
    edges = [edge_to(x) for x in xs]
    node = Node("layer", context.sequence, edges, (), backward, outputs=outputs)
    context.sequence += 1
    return node
