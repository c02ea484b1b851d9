"""Identical layers: some are traced, the others are replayed as copies of those.

    traced    the first two, and the last two of each kind
    replayed  those between: forward is a copy of a traced one's below, backward of one's above

What decides is compared: a layer's modules, options and parameters, and what it is called with.
Then the traced layers on both sides are compared with what was replayed between them, and where
they differ CannotRepeatError says that the job has to be traced in full.

Not modelled: layers that share tensors which want gradients (T5's position bias), that return more
than hidden states, or that leave something for others to take (routers' logits); these are traced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from vrambudget.engine.autograd import Node, edge_to
from vrambudget.engine.context import context
from vrambudget.engine.hook_state import FilledPart, LayerHooks, likeness
from vrambudget.engine.layer_calls import LayerCall, TapeMoment
from vrambudget.engine.layer_parts import BackwardPart, ForwardPart
from vrambudget.engine.layer_state import FilledByLayers, LayerPart, Left, Like, filled_by
from vrambudget.engine.module import Module
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.tape.events import Storage

_FEWEST = 5  # layers of a stack: of fewer none would be replayed
_LAST = 2  # layers of a kind whose backward is traced
_PLAIN = {int, float, str, bool, type(None)}
_PLACES = {"number", "path", "stack", "layer_idx", "played"}
"""What a module has of its place in the model."""


class Layer(Module):
    """One layer of a stack: it takes hidden states first, and returns them alone or first."""

    stack: Stack | None = None
    number = 0
    hook_state: LayerHooks | None = None  # what runs around it and learns what was replayed

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


def kinds_of(layers: Sequence[Module]) -> tuple[list[int], list[list[Parameter]]]:
    """Return which layers are identical, a number for each kind, and each layer's parameters."""
    kinds, every = list[int](), list[list[Parameter]]()
    numbers: dict[tuple[object, ...], int] = {}
    for layer in layers:
        kind, parameters = list[object](), list[Parameter]()
        _describe(layer, kind, parameters)
        kinds.append(numbers.setdefault(tuple(kind), len(numbers)))
        every.append(parameters)
    return kinds, every


class Stack:
    """The layers of one list."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.kinds, self.parameters = kinds_of(layers)
        left: Counter[int] = Counter()
        self.is_last = [False] * len(layers)
        for number in reversed(range(len(layers))):
            left[self.kinds[number]] += 1
            self.is_last[number] = left[self.kinds[number]] <= _LAST
        every = [id(parameter) for parameters in self.parameters for parameter in parameters]
        if len(set(every)) == len(every):
            for number, layer in enumerate(layers):
                layer.stack, layer.number = self, number
        self.now = _Pass(self)

    def call(self, layer: Layer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Trace a layer, or lay it down."""
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
        """Trace a layer, or lay it down."""
        x, number = args[0], layer.number
        filled = filled_by([*args[1:], *kwargs.values()])
        hooks = self._hooks(layer, filled)
        key = self._key(layer, args, kwargs, filled, hooks)
        if number != len(self.calls) or key is None:
            self.calls = []
            return layer.trace(*args, **kwargs)
        call = LayerCall(
            number,
            key,
            self.stack.parameters[number],
            TapeMoment.now(),
            context.sequence,
            x.storage.index,
            layer.path,
            hooks,
        )
        if self.calls:
            self._ended(self.calls[-1])
        self.calls.append(call)
        if number and x.node is not None and not self.calls[-2].is_replayed:
            x.node, x.slot = self._boundary(self.calls[-2], x), 0
        part = self._part_for(call)
        if part is not None:
            return self._lay(part, call, x, filled)
        call.begin = TapeMoment.now(hooks)
        result = layer.trace(*args, **kwargs)
        if isinstance(hooks, FilledPart) and number + 1 == len(self.stack.kinds):
            self.stack.now = _Pass(self.stack)  # which does not hold what was filled
            return result
        if filled is not None and not isinstance(hooks, FilledPart):
            call.left = Left.of(filled, number)
        call.is_pair = isinstance(result, tuple)
        output = result[0] if isinstance(result, tuple) else result
        if not isinstance(result, tuple) or result[1:] == (None,):
            call.returned(output)
        return result

    def _key(
        self,
        layer: Layer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        filled: FilledByLayers | None,
        hooks: LayerHooks | None,
    ) -> tuple[Any, ...] | None:
        """Return what decides what a call does; None for what must be traced."""
        x, *others = args
        tensors = [*_tensors(others), *_tensors(list(kwargs.values()))]
        if layer.number == 0:
            self.is_captured = any(getattr(m, "is_captured", False) for m in layer.modules())
        if self.is_captured or not (context.tape.is_fast or layer.hook_state):
            return None
        if any(tensor.requires_grad for tensor in tensors):
            return None
        fills = None
        if filled is not None and not isinstance(hooks, FilledPart):
            fills = filled.empty_part(layer.number)
            if fills is None:
                return None
        like = x.shape, x.dtype, x.strides, x.is_view, x.requires_grad
        given = self.stack.kinds[layer.number], *map(id, others), *map(id, kwargs.values())
        modes = context.grad_enabled, layer.training
        return given, like, fills and fills.kind(), modes, likeness(hooks)

    def _hooks(self, layer: Layer, filled: FilledByLayers | None) -> LayerHooks | None:
        """Return what runs around a layer, or holds what it changes of what was filled before."""
        part = None if filled is None else filled.layers[layer.number]
        if layer.hook_state or context.grad_enabled or not isinstance(part, LayerPart):
            return layer.hook_state
        return FilledPart(part, self.stack.parameters[layer.number]) if any(part.left()) else None

    def _ended(self, call: LayerCall) -> None:
        """Note that the next layer is called; what was traced must be like what was replayed."""
        call.end = TapeMoment.now(None if call.is_replayed else call.hook_state)
        used = self.forward.get(call.key)
        if used is None or call.is_replayed or used.call is call:
            return
        if not used.same_as(ForwardPart.of(call)):
            raise CannotRepeatError

    def _part_for(self, call: LayerCall) -> ForwardPart | None:
        """Return what can be replayed for a call, None where it has to be traced."""
        if self.stack.is_last[call.number]:
            return None
        if call.key not in self.forward:
            source = next((c for c in self.calls[1:-1] if c.key == call.key), None)
            part = None if source is None else ForwardPart.of(source)
            if part is None:
                return None
            self.forward[call.key] = part
        return self.forward[call.key]

    def _lay(
        self, part: ForwardPart, call: LayerCall, x: Tensor, filled: FilledByLayers | None
    ) -> Any:
        held, output = x.storage, part.lay(call, x)
        left = call.left.fill(filled, call.number) if call.left and filled else []
        if call.has_graph:
            storages = (held, output.storage, *(each.storage for each in left))
            kept = [s for s in storages if s.index in call.held | call.attributes]
            output.requires_grad = True
            output.node = self._replayed(call, x, kept)
            for each in left:
                each.node = output.node if each.requires_grad else None
        return (output, None) if part.call.is_pair else output

    def _boundary(self, below: LayerCall, x: Tensor) -> Node:
        """Return a node that notes when the gradient of a traced layer's output is complete."""

        def backward(gradient: Tensor) -> Tensor:
            self._complete(below, gradient)
            return gradient

        return _node(x, backward)

    def _replayed(self, call: LayerCall, x: Tensor, kept: list[Storage]) -> Node:
        """Return the node whose backward replays a layer's backward."""

        def backward(gradient: Tensor) -> Tensor:
            self._complete(call, gradient)
            part = self.backward.get(call.key)
            if part is None:
                part = self.backward[call.key] = self._backward_part(call.key)
            return part.lay(call, gradient, kept)

        node = _node(x, backward)
        node.attributes = kept
        return node

    def _complete(self, call: LayerCall, gradient: Tensor) -> None:
        """Note that a gradient is complete; what was traced must be like what was replayed."""
        call.complete = TapeMoment.now(None if call.is_replayed else call.hook_state)
        call.gradient, above = Like.of(gradient), self.calls[call.number + 1]
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
        """Whether it is the first of its kind: with it is freed what all of them share."""
        return all(other.key[0] != call.key[0] for other in self.calls[: call.number])

    def _backward_part(self, key: object) -> BackwardPart:
        for below, call in zip(self.calls, self.calls[1:], strict=False):
            if call.key == key and not call.is_replayed and call.complete and call.over:
                return BackwardPart.of(call, below)
        raise CannotRepeatError


def _node(x: Tensor, backward: Callable[[Tensor], Tensor]) -> Node:
    node = Node("layer", context.sequence, [edge_to(x)], (), backward)
    context.sequence += 1
    return node


def _describe(value: Any, kind: list[object], parameters: list[Parameter]) -> None:
    """Add to `kind` what is equal for identical layers, and a layer's parameters."""
    of = value.__class__
    if of in _PLAIN:
        kind.append(value)
    elif isinstance(value, Tensor):
        kind += value.shape, value.dtype, value.requires_grad
        if isinstance(value, Parameter):
            parameters.append(value)
    elif isinstance(value, Module) or is_dataclass(of):
        kind.append(of)
        for name, item in _attributes(value):
            kind.append(name)
            _describe(item, kind, parameters)
    elif of in (list, tuple, dict):
        kind.append(tuple(value) if of is dict else len(value))
        for item in value.values() if of is dict else value:
            _describe(item, kind, parameters)
    else:
        kind.append(context.tape.sizes[value.index] if of is Storage else id(value))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a module consists of, but for its place, or a dataclass (a weight in 4 bit)."""
    if isinstance(value, Module):
        yield from (item for item in value.__dict__.items() if item[0] not in _PLACES)
    else:
        yield from ((field.name, getattr(value, field.name)) for field in fields(value))


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
