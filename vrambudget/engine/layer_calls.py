"""A layer's call in a pass over a stack of layers: where its parts of the tape begin and end.

forward    from its call to the next layer's call
backward   from when its output's gradient is complete to when its input's is
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.autograd import Node
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.tape.events import Tape


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor as it is, but for its storage, which is an index."""

    index: int
    shape: Shape
    dtype: DType
    strides: Shape | None
    is_view: bool

    @classmethod
    def of(cls, x: Tensor) -> Like:
        """Return what a tensor is like."""
        return cls(x.storage.index, x.shape, x.dtype, x.strides, x.is_view)

    def laid(self, tape: Tape, shift: int) -> Tensor:
        """Return a tensor like this of the storage that is `shift` further on."""
        x = Tensor(self.shape, self.dtype, tape.adopted(self.index + shift), self.strides)
        x.is_view = self.is_view
        return x


@dataclass(slots=True)
class Moment:
    """A place on the tape: the next event and the next storage."""

    event: int
    storage: int

    @classmethod
    def now(cls) -> Moment:
        """Return the end of the tape."""
        return cls(len(context.tape.events), len(context.tape.sizes))


@dataclass(slots=True)
class Call:
    """One layer's call. In backward: when the gradient of its output was complete, and that."""

    number: int
    key: tuple[Any, ...]  # what decides what it does; first all but its input
    parameters: Sequence[Parameter]
    begin: Moment
    sequence: int
    input: int
    path: int  # of the layer, on the tape
    end: Moment | None = None  # where the next layer was called
    output: Like | None = None
    held: frozenset[int] = frozenset()  # by the graph, until backward comes there
    attributes: frozenset[int] = frozenset()  # by the graph, until it dies as a whole
    copies: tuple[tuple[int, Like], ...] = ()  # of parameters by number, in the autocast region
    has_graph: bool = False
    operation: str = ""
    is_laid: bool = False
    is_pair: bool = False  # hidden states and None are returned
    complete: Moment | None = None
    gradient: Like | None = None

    def returned(self, x: Tensor) -> None:
        """Note what a walk returned, and who holds what it left."""
        self.output, self.has_graph = Like.of(x), x.node is not None
        self.operation = context.operation
        if x.node is not None:
            self.held, self.attributes = _held_by(x.node, self.sequence, self.input)
        if context.autocast is not None:
            cache = context.autocast.cache
            self.copies = tuple(
                (number, Like.of(cache[id(parameter)]))
                for number, parameter in enumerate(self.parameters)
                if id(parameter) in cache
            )


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
