"""A layer's call in a pass over a stack of layers: where its parts of the tape begin and end.

forward    from its call to the next layer's call
backward   from when its outputs' gradients are complete to when its inputs' are
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.engine.autograd import Node
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.engine.hook_state import NOTHING, HookMoment, LayerHooks
from vrambudget.engine.layer_state import Left, Like
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.tape.events import Storage


@dataclass(slots=True)
class TapeMoment:
    """A place on the tape, the next event and storage, and the state of the layer's hooks."""

    event: int
    storage: int
    hooks: HookMoment = NOTHING

    @classmethod
    def now(cls, hooks: LayerHooks | None = None) -> TapeMoment:
        """Return the end of the tape."""
        return cls(len(context.tape.events), len(context.tape.sizes), HookMoment.now(hooks))


@dataclass(slots=True)
class LayerCall:
    """One layer's call. In backward: when the gradients of its outputs were complete, and those.

    The state of its hooks is noted where it is traced.
    """

    number: int
    key: tuple[Any, ...]  # what decides what it does; first all but its input
    parameters: Sequence[Parameter]
    begin: TapeMoment
    sequence: int
    inputs: tuple[int, ...]  # its hidden states
    path: int  # of the layer, on the tape
    hook_state: LayerHooks | None = None
    end: TapeMoment | None = None  # where the next layer was called
    outputs: tuple[Like, ...] = ()  # () of what cannot be copied
    held: frozenset[int] = frozenset()  # by the graph, until backward comes there
    attributes: frozenset[int] = frozenset()  # by the graph, until it is freed as a whole
    copies: tuple[tuple[int, Like], ...] = ()  # of parameters by number, in the autocast region
    has_graph: bool = False
    operation: str = ""
    is_replayed: bool = False
    is_pair: bool = False  # hidden states and None are returned
    left: Left | None = None  # what it filled of what all layers are called with
    complete: TapeMoment | None = None
    over: TapeMoment | None = None  # when the gradients of its inputs were
    gradients: tuple[Like, ...] = ()

    @property
    def computed_with(self) -> Sequence[Parameter]:
        """The parameters that the layer's operations got, gathered ones where they are cut."""
        return self.parameters if self.hook_state is None else self.hook_state.gathered()

    @property
    def kept(self) -> frozenset[int]:
        """The storages of what it left for later."""
        return frozenset() if self.left is None else self.left.storages

    def returned(self, states: Sequence[Tensor]) -> None:
        """Note which hidden states a trace returned, and who holds what it left."""
        nodes = [x.node for x in states if x.node is not None]
        if 0 < len(nodes) < len(states):
            return
        self.outputs, self.has_graph = tuple(map(Like.of, states)), bool(nodes)
        self.operation = context.operation
        self.held, self.attributes = _held_by(nodes, self.sequence, self.inputs)
        if context.autocast is not None:
            cache = context.autocast.cache
            self.copies = tuple(
                (number, Like.of(cache[id(parameter)]))
                for number, parameter in enumerate(self.computed_with)
                if id(parameter) in cache and self._made(cache[id(parameter)].storage)
            )

    def _made(self, storage: Storage) -> bool:
        """Whether a storage is this call's, not an earlier one's."""
        return storage.tape is context.tape and storage.index >= self.begin.storage


def _held_by(
    roots: Sequence[Node], since: int, layer_inputs: Sequence[int]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return what the graph saved, and its nodes' attributes, down to the layer's first node."""
    held, attributes, seen, stack = set[int](), set[int](), {*roots}, [*dict.fromkeys(roots)]
    while stack:
        node = stack.pop()
        attributes.update(storage.index for storage in node.attributes)
        for saved in node.saved:
            if isinstance(saved, Holder):
                held.update(layer_inputs)  # by the closure that runs the layer again
            elif saved is not None:
                held.add(saved.index)
        for edge in node.edges:
            if edge is None or edge[0] in seen or edge[0].variable is not None:
                continue
            if edge[0].sequence >= since:
                seen.add(edge[0])
                stack.append(edge[0])
    return frozenset(held), frozenset(attributes)
