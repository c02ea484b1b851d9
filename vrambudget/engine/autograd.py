"""Autograd that counts bytes: what is kept for backward, and what backward allocates when.

An operation calls

    kept = keep(x, when=weight.requires_grad)      # before its output is made, as PyTorch does
    y = empty(...)
    return record("relu", y, inputs=(x,), saved=(kept,), backward=lambda dy: ...)

`backward` makes one gradient (or None) per input; a tensor that it closes over would never die.

The engine follows torch/csrc/autograd/engine.cpp: of the nodes that are ready, the newest runs
first (accumulation into .grad before all others); after a node ran, its incoming gradients die,
then what it saved, then its outgoing gradients move on; a second gradient for the same input is
added into the first in place if nobody else holds it (input_buffer.cpp, accumulate).

Hooks: before a node runs; on leaves, before and after; `context.callbacks`, when all nodes ran.
Not modelled: higher-order gradients, a second backward through a graph that was retained.
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from vrambudget import dtypes
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context, no_grad, on_stream
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_like
from vrambudget.tape.events import Purpose, Storage, Tape

Saved = Storage | Holder | None
Backward = Callable[..., Any]
Hook = Callable[[list[Tensor | None]], None]  # may replace the gradients
Edge = tuple["Node", int, tuple[int, ...], dtypes.DType]

_sum_to_size: list[Callable[[Tensor, Shape], Tensor]] = []


def sums_gradients(
    function: Callable[[Tensor, Shape], Tensor],
) -> Callable[[Tensor, Shape], Tensor]:
    """Make `function` the sum by which gradients come to their input's shape (at::sum_to).

    An operation like others, with buffers of its own: it lives in ops, which sit above the engine.
    """
    _sum_to_size[:] = [function]
    return function


class Node:
    """One recorded operation: where its gradients go and what it keeps until then."""

    __slots__ = (
        "__weakref__",
        "adds_in_place",
        "adds_on",
        "attributes",
        "backward",
        "edges",
        "hooks",
        "module",
        "name",
        "outputs",
        "part",
        "purpose",
        "saved",
        "sequence",
        "variable",
    )

    def __init__(
        self,
        name: str,
        sequence: int,
        edges: Sequence[Edge | None],
        saved: Sequence[Saved],
        backward: Backward | None,
        *,
        outputs: int = 1,
    ) -> None:
        self.name = name
        self.sequence = sequence
        self.edges = edges
        self.saved = saved
        self.backward = backward
        self.outputs = outputs
        self.purpose = context.purpose  # what backward makes is for what forward made
        self.module = context.tape.module
        self.attributes: Sequence[Storage] = ()  # as a Python function's ctx: die with the graph
        self.adds_on: int | None = None  # a stream: gradients are added there
        self.adds_in_place = True  # unless they are of a subclass
        self.variable: Tensor | None = None  # the leaf of an accumulating node
        self.part: LayerGraph | None = None  # a graph of its own, behind this node
        self.hooks: tuple[Hook, ...] = ()  # called when its gradients have arrived


class LayerGraph(Protocol):
    """What runs backward in a node's place."""

    def run(self, gradients: list[Tensor | None], nodes: Collection[Node]) -> None:
        """Take the gradients of the node's outputs over; `nodes` are all of the graph around it."""


def keep(x: Tensor | None, *, when: bool = True) -> Saved:
    """Save `x` for backward if autograd records and `when` holds."""
    if x is None or not when or not context.grad_enabled:
        return None
    if context.frame is not None:
        return context.frame.keep(x.storage)
    storage = x.storage
    purposes = storage.tape.purposes
    if purposes[storage.index] is Purpose.TEMPORARIES:
        purposes[storage.index] = Purpose.ACTIVATIONS
    return None if x.is_swapped else storage


def edge_to(x: Tensor | None) -> Edge | None:
    """Return where the gradient of `x` goes, None where it wants none."""
    if x is None or not x.requires_grad:
        return None
    node = x.node or (x.accumulator() if x.accumulator is not None else None)
    if node is None:  # a leaf's first use in this graph; the graph keeps the node
        node = Node("accumulate_grad", 0, (), (), None)
        node.variable = x
        x.accumulator = weakref.ref(node)
    return node, x.slot, x.shape, x.grad_dtype


def record(
    name: str,
    output: Tensor,
    *,
    inputs: Sequence[Tensor | None],
    backward: Backward,
    saved: Sequence[Saved] = (),
) -> Tensor:
    """Give `output` its node, unless autograd is off or no input wants a gradient."""
    if context.grad_enabled:
        edges = [edge_to(x) for x in inputs]
        if any(edges):
            output.requires_grad = True
            output.node = Node(name, context.sequence, edges, saved, backward)
            context.sequence += 1
    return output


def record_many(
    name: str,
    outputs: Sequence[Tensor],
    *,
    inputs: Sequence[Tensor | None],
    backward: Backward,
    saved: Sequence[Saved] = (),
) -> None:
    """Like `record` for an operation with several outputs; backward gets one gradient for each."""
    if not context.grad_enabled:
        return
    edges = [edge_to(x) for x in inputs]
    if any(edges):
        node = Node(name, context.sequence, edges, saved, backward, outputs=len(outputs))
        context.sequence += 1
        for slot, output in enumerate(outputs):
            output.requires_grad, output.node, output.slot = True, node, slot


def run_backward(loss: Any, given: Tensor | None = None, *, retain_graph: bool = False) -> None:
    """Fill .grad of every leaf that `loss` depends on; `given`: its own (for an edge, always)."""
    root = loss.node
    if root is None:
        raise ValueError("the loss does not depend on anything that wants a gradient")
    context.operation = "ones_like"
    seed = empty_like(loss) if given is None else given  # held until backward returns
    before = context.thread, context.purpose, context.tape.module
    context.thread, context.retains_graph = "autograd", retain_graph
    first: list[Tensor | None] = [None] * root.outputs
    first[loss.slot] = seed
    with no_grad():
        run_nodes(root, first)
        while context.callbacks:
            context.callbacks.pop(0)()
    context.thread, context.purpose, context.tape.module = before


def run_nodes(root: Node, gradients: list[Tensor | None]) -> None:  # noqa: C901 - one engine
    """Run a node, whose outputs' gradients these are, and all that depend on it."""
    waiting = _dependencies(root)
    buffers: dict[Node, list[Tensor | None]] = {root: gradients}
    del gradients
    pushed = 0
    ready = [(-root.sequence, pushed, root)]
    leaves: list[tuple[Tensor, list[Tensor | None]]] = []
    while ready:
        node = heapq.heappop(ready)[2]
        outgoing = _call(node, buffers.pop(node), waiting)
        if not context.retains_graph:  # a region's copy of a weight may be part of several graphs
            node.saved, node.backward = (), node.backward if node.name == "to_copy" else None
        for i, edge in enumerate(node.edges):
            gradient, outgoing[i] = outgoing[i], None
            if edge is None:
                continue
            target, slot = edge[0], edge[1]
            if gradient is not None:
                buffer = buffers.setdefault(target, [None] * target.outputs)
                if buffer[slot] is None:
                    buffer[slot] = gradient
                else:
                    _add_into(buffer, slot, target)
                del buffer
            del gradient
            waiting[target] -= 1
            if waiting[target]:
                continue
            if target.variable is None:  # it runs with no gradient too, and passes none on
                buffers.setdefault(target, [None] * target.outputs)
                pushed += 1
                heapq.heappush(ready, (-target.sequence, pushed, target))
            elif target in buffers:
                leaves.append((target.variable, buffers.pop(target)))
        while leaves:  # before any other node: AccumulateGrad's sequence number is the largest
            _accumulate_grad(*leaves.pop(0))


def _dependencies(root: Node) -> dict[Node, int]:
    counts: dict[Node, int] = {root: 0}
    stack = [root]
    while stack:
        for edge in filter(None, stack.pop().edges):
            target = edge[0]
            if target not in counts:
                counts[target] = 0
                stack.append(target)
            counts[target] += 1
    return counts


def _call(node: Node, grads: list[Tensor | None], nodes: Collection[Node]) -> list[Tensor | None]:
    """Run one node. Its incoming gradients die first, then what it saved (call_function).

    What a checkpoint recomputed is handed out once, so it is freed as soon as backward returns.
    """
    if node.part is not None:
        node.part.run(grads, nodes)
        return []
    context.tape.module = node.module
    for hook in node.hooks:
        hook(grads)
    context.operation = node.name + "_backward"
    context.purpose = node.purpose
    if node.backward is None:
        raise ValueError(f"{node.name} ran backward already")
    if grads.count(None) == len(grads):
        return [None] * len(node.edges)
    holders = [saved for saved in node.saved if isinstance(saved, Holder)]
    if holders:
        holders[0].frame.recompute()
    result = node.backward(*grads)
    for holder in holders:
        holder.storage = None
    outgoing = list(result) if isinstance(result, tuple) else [result]
    del result
    for i, edge in enumerate(node.edges):
        if outgoing[i] is None:
            continue
        if edge is None:  # nobody asked: a rule that is generous, not an error
            outgoing[i] = None
        else:
            _fit(outgoing, i, edge[2], edge[3])
    grads.clear()
    return outgoing


def _fit(
    gradients: list[Tensor | None], i: int, shape: tuple[int, ...], dtype: dtypes.DType
) -> None:
    """Sum a gradient to its input's shape and cast it to its dtype (engine.cpp, validate_outputs).

    What is summed dies before the cast, so nobody else may hold it.
    """
    gradient, gradients[i] = gradients[i], None
    assert gradient is not None  # noqa: S101 - the caller saw it
    if gradient.shape != shape:
        gradient = _sum_to_size[0](gradient, shape)
    if gradient.dtype is not dtype:
        gradient = empty_like(gradient, dtype)
    gradients[i] = gradient


def _references(tensors: list[Tensor | None], i: int) -> tuple[int, int]:
    """Count the references to tensors[i] and to its storage."""
    x: Any = tensors[i]
    return sys.getrefcount(x), sys.getrefcount(x.storage)


# What the interpreter adds to these counts is its own affair (from Python 3.14 on locals are lent),
# so they are held against those of a tensor that nobody shares, taken by the same code.
_UNSHARED: list[Tensor | None] = [
    Tensor((), dtypes.float32, Storage(Tape(), 4, Purpose.TEMPORARIES, "unshared"))
]


def _add_into(buffer: list[Tensor | None], slot: int, target: Node) -> None:
    """Add a second gradient to the first: only a new tensor is an event."""
    is_shared = _references(buffer, slot) != _references(_UNSHARED, 0)
    old: Any = buffer[slot]
    # A view counts as shared: what it is a view of is kept by it (can_accumulate_inplace).
    if not target.adds_in_place or old.is_view or is_shared or not old.is_dense:
        context.operation = "add"
        with on_stream(context.stream if target.adds_on is None else target.adds_on):
            buffer[slot] = empty(old.shape, old.dtype)


def _accumulate_grad(variable: Tensor, grads: list[Tensor | None]) -> None:
    """Take the gradient itself if nobody else holds it, else a copy (accumulate_grad.h)."""
    if context.before_gradient is not None:
        context.before_gradient(variable, grads)
    is_shared = _references(grads, 0)[0] != _references(_UNSHARED, 0)[0]  # its storage may be
    gradient = grads.pop()
    assert gradient is not None  # noqa: S101 - a node without gradients is never ready
    if variable.grad is None:
        if is_shared or not gradient.lies_like(variable):
            context.operation = "clone"
            gradient = empty(gradient.shape, gradient.dtype, variable.strides)
        gradient.storage.purpose = Purpose.GRADIENTS
        variable.grad = gradient
        del gradient
    if context.got_gradient is not None:
        context.got_gradient(variable)
