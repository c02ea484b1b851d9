"""A layer's call in a pass over a stack of layers: where its parts of the tape begin and end.

forward    from its call to the next layer's call
backward   from when its output's gradient is complete to when its input's is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.engine.autograd import Node
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.engine.hook_state import NOTHING, Around, LayerHooks
from vrambudget.engine.layer_state import Left, Like
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.tape.events import Storage


@dataclass(slots=True)
class TapeMoment:
    """A place on the tape, the next event and the next storage; what is around a layer there."""

    event: int
    storage: int
    around: Around = NOTHING

    @classmethod
    def now(cls, hooks: LayerHooks | None = None) -> TapeMoment:
        """Return the end of the tape."""
        return cls(len(context.tape.events), len(context.tape.sizes), Around.now(hooks))


@dataclass(slots=True)
class LayerCall:
    """One layer's call. In backward: when the gradient of its output was complete, and that.

    What is around a layer is noted where it is traced.
    """

    number: int
    key: tuple[Any, ...]  # what decides what it does; first all but its input
    parameters: Sequence[Parameter]
    begin: TapeMoment
    sequence: int
    input: int
    path: int  # of the layer, on the tape
    hook_state: LayerHooks | None = None
    end: TapeMoment | None = None  # where the next layer was called
    output: Like | None = None
    held: frozenset[int] = frozenset()  # by the graph, until backward comes there
    attributes: frozenset[int] = frozenset()  # by the graph, until it is freed as a whole
    copies: tuple[tuple[int, Like], ...] = ()  # of parameters by number, in the autocast region
    has_graph: bool = False
    operation: str = ""
    is_replayed: bool = False
    is_pair: bool = False  # hidden states and None are returned
    left: Left | None = None  # what it filled of what all layers are called with
    complete: TapeMoment | None = None
    over: TapeMoment | None = None  # when the gradient of its input was
    gradient: Like | None = None

    @property
    def computed_with(self) -> Sequence[Parameter]:
        """The parameters that the layer's operations got, gathered ones where they are cut."""
        return self.parameters if self.hook_state is None else self.hook_state.gathered()

    @property
    def kept(self) -> frozenset[int]:
        """The storages of what it left for later."""
        return frozenset() if self.left is None else self.left.storages

    def returned(self, x: Tensor) -> None:
        """Note what a trace returned, and who holds what it left."""
        self.output, self.has_graph = Like.of(x), x.node is not None
        self.operation = context.operation
        if x.node is not None:
            self.held, self.attributes = _held_by(x.node, self.sequence, self.input)
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


def _held_by(root: Node, since: int, layer_input: int) -> tuple[frozenset[int], frozenset[int]]:
    """Return what the graph saved, and its nodes' attributes, down to the layer's first node."""
    held, attributes, seen, stack = set[int](), set[int](), {root}, [root]
    while stack:
        node = stack.pop()
        attributes.update(storage.index for storage in node.attributes)
        for saved in node.saved:
            if isinstance(saved, Holder):
                held.add(layer_input)  # by the closure that runs the layer again
            elif saved is not None:
                held.add(saved.index)
        for edge in node.edges:
            if edge is None or edge[0] in seen or edge[0].variable is not None:
                continue
            if edge[0].sequence >= since:
                seen.add(edge[0])
                stack.append(edge[0])
    return frozenset(held), frozenset(attributes)
