"""A forward and a backward pass on the tape: what they leave behind, and copies of them.

    forward   what it leaves is held by the outputs, by the autocast region (copies of weights), by
              the graph, or for good (workspaces)
    backward  frees what the graph held (inputs too, if nobody else does) and the gradients that
              come in; leaves the parameters' gradients

A copy repeats events, so it frees what the trace freed, where the trace freed it. When the loop
drops outputs, inputs and gradients, it cannot know: these have owners in Python, whose deaths free
them. A pass that leaves anything else, or in which anything else dies, cannot be copied.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autograd import Edge, Node, run_nodes
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.tape.events import Storage
from vrambudget.tape.packing import died_in, frees, pieces, without
from vrambudget.tape.repeats import append_copy


class CannotRepeatError(Exception):
    """A copy is not what would have run: the job has to be traced in full."""


class _ReplayedCopies(dict[int, Tensor]):
    """An autocast region's copies of weights after a copied forward pass."""

    def get(self, *_: object) -> Tensor:
        """Refuse: a copied pass does not know of which weight each of them is."""
        raise CannotRepeatError

    def __bool__(self) -> bool:
        """Return True: there are copies, though the graph alone may hold them."""
        return True


class _Gradient(NamedTuple):
    """What backward gave a parameter."""

    parameter: Parameter
    shape: Shape
    dtype: DType
    strides: Shape | None
    storage: int


class _FoundGraph(NamedTuple):
    """What decides, besides the graph, which allocations a backward pass makes."""

    nodes: list[str]  # of the loop's own graph
    gradients: list[tuple[Shape, DType, Shape | None] | None]
    had_none: list[bool]  # which parameters had no gradient
    dropped: set[int]  # what the loop freed between forward and backward

    @classmethod
    def before(
        cls,
        gradients: Sequence[Tensor | None],
        nodes: Collection[Node],
        parameters: Sequence[Parameter],
        dropped: set[int],
    ) -> _FoundGraph:
        """Return what a backward pass finds.

        Raises CannotRepeatError if the loop's graph has a second call of the model, or parameters
        of its own: gradients of both add up before a parameter gets them.
        """
        if sum(node.part is not None or node.variable is not None for node in nodes) > 1:
            raise CannotRepeatError
        return cls(
            [node.name for node in nodes],
            [None if x is None else (x.shape, x.dtype, x.strides) for x in gradients],
            [parameter.grad is None for parameter in parameters],
            dropped,
        )


class Passes:
    """A forward pass that is traced now, and later its backward pass."""

    def __init__(self, inputs: Sequence[int], parameters: Sequence[Parameter]) -> None:
        self.inputs, self.parameters = inputs, parameters
        self.is_over = False  # both passes are, and can be copied
        self.may_free_early = False  # a copy may have freed a storage too early
        self.graph_gradients: set[int] = set()  # of leaves that are no parameters
        self.first = len(context.tape.sizes)  # storages that forward makes are from here on
        self._begin = len(context.tape.events)

    def forward_is_over(self, returned: set[int], *, has_graph: bool) -> None:
        """Note what the forward pass left; `returned` are the outputs' storages."""
        tape, region = context.tape, context.autocast
        self.end, self.stop, self.operation = len(tape.events), len(tape.sizes), context.operation
        self.forward = tape.events[self._begin : self.end]
        died = died_in(self.forward, is_fast=tape.is_fast)
        self.left = set(range(self.first, self.stop)) - died
        self.returned = returned & self.left
        copies = () if region is None else region.cache.values()
        self.copies = {x.storage.index for x in copies} & self.left
        self.fills_cache = bool(copies)
        self.has_graph = has_graph
        # Nothing older died, and nothing moved but by allocations and frees.
        self._is_fast_path = tape.is_fast and (not died or min(died) >= self.first)
        if not has_graph:
            self.is_over = self._is_fast_path and self._leaves_what_is_known(set(), ())

    def backward_is_over(self, begin: int, first: int, graph: TracedGraph) -> None:
        """Note what the backward pass did, from event `begin` and storage `first` on."""
        tape = context.tape
        events, once = tape.events[begin:], _workspaces()
        died = died_in(events, is_fast=tape.is_fast)
        self.gradients = [
            _Gradient(p, p.grad.shape, p.grad.dtype, p.grad.strides, p.grad.storage.index)
            for p, had_none in zip(self.parameters, graph.found.had_none, strict=True)
            if had_none and p.grad is not None
        ]
        left = set(range(first, len(tape.sizes))) - died - once
        self.graph_gradients = left - {gradient.storage for gradient in self.gradients}
        older = {index for index in died if index < first}
        others = {*self.inputs, *graph.incoming}
        if not (
            self._is_fast_path
            and tape.is_fast
            and len(left) == len(self.gradients) + len(self.graph_gradients)
            and older <= self.left | others
            and self._leaves_what_is_known(older, graph.edges)
        ):
            return
        self.backward_first, self.backward_stop = first, len(tape.sizes)
        self.found, self.incoming = graph.found, graph.incoming
        self.shared = older & (self.held | others)  # by the graph, the last to hold them
        self.backward = list(pieces(events, self.shared, once))
        self.is_over = not self.attributes & graph.found.dropped

    def _leaves_what_is_known(self, freed: set[int], graph: Sequence[Edge]) -> bool:
        """Whether what forward left, and backward did not free, has a known holder.

        Outputs and the region's copies are asked first; the rest has to be the graph's. Of what
        backward freed, a storage that nobody else holds is `graph_only`: if the loop drops a copied
        graph without a backward, nothing else frees it.
        """
        once = _workspaces()
        self.forward = without(self.forward, once)
        rest = self.left - once - freed
        self.copies &= rest
        self.attributes = rest - self.returned - self.copies
        self.held = self.returned | self.copies | self.attributes
        self.graph_only = (self.left & freed) - self.held
        by_graph = self.attributes | self.graph_gradients
        return not by_graph or by_graph <= _held_by(graph)

    def died_in(self, events: Sequence[int], shift: int, inputs: Sequence[int]) -> set[int]:
        """Return inputs, and what forward left, that died in these events, by traced index."""
        died = died_in(events, is_fast=context.tape.is_fast)
        made = {index - shift for index in died} & self.left
        return made | {was for was, now in zip(self.inputs, inputs, strict=True) if now in died}

    def replay_forward(
        self, inputs: Sequence[Storage]
    ) -> tuple[dict[int, Storage], ReplayedGraph | None]:
        """Copy the forward pass; return storages of outputs and inputs, and the graph.

        Storages are keyed by the trace's index. Only those in `held` get an owner in Python,
        because the loop decides when they die; the others die by the copied events.
        """
        tape, region = context.tape, context.autocast
        shift = tape.copy_storages(self.first, self.stop)
        append_copy(tape, self.forward, self.first, shift, shift)
        context.operation = self.operation
        storages = {index: tape.adopted(index + shift) for index in self.held}
        if region is not None and self.fills_cache:
            region.cache = _ReplayedCopies(
                (index, _holding(storages[index])) for index in self.copies
            )
        storages.update(zip(self.inputs, inputs, strict=True))
        graph = ReplayedGraph(self, shift, storages) if self.has_graph else None
        return storages, graph


class TracedGraph:
    """A traced pass's graph, behind the one node that stands for it in the loop's graph."""

    def __init__(self, passes: Passes, edges: Sequence[Edge]) -> None:
        self.passes, self.edges = passes, edges
        self.incoming: list[int] = []
        self.found: _FoundGraph

    def run(self, gradients: list[Tensor | None], nodes: Collection[Node]) -> None:
        """Run backward through the graph; `nodes` are those of the loop's graph."""
        tape, passes = context.tape, self.passes
        begin, first = len(tape.events), len(tape.sizes)
        dropped = passes.died_in(tape.events[passes.end :], 0, passes.inputs)
        self.found = _FoundGraph.before(gradients, nodes, passes.parameters, dropped)
        self.incoming = [x.storage.index for x in gradients if x is not None]
        edges = [e for e, x in zip(self.edges, gradients, strict=True) if x is not None]
        given: list[Tensor | None] = [x for x in gradients if x is not None]
        gradients.clear()
        self.edges = edges
        if len(tape.events) > begin:  # the graph of an output alone: it died with that output
            raise CannotRepeatError
        root = Node("outputs", context.sequence, edges, (), lambda *given: given)
        run_nodes(root, given)
        passes.backward_is_over(begin, first, self)


class ReplayedGraph:
    """A copied pass's graph: it has no nodes, and holds what the traced graph's nodes held."""

    def __init__(self, passes: Passes, shift: int, storages: dict[int, Storage]) -> None:
        self.passes, self.shift = passes, shift
        self.inputs = [storages[index].index for index in passes.inputs]
        kept = passes.attributes | passes.shared
        self.storages = {index: x for index, x in storages.items() if index in kept}
        self.events, self.position = context.tape.events, len(context.tape.events)
        self.is_whole = True

    def run(self, gradients: list[Tensor | None], nodes: Collection[Node]) -> None:
        """Copy the backward pass; `nodes` are those of the loop's graph."""
        passes, tape = self.passes, context.tape
        dropped = passes.died_in(self.events[self.position :], self.shift, self.inputs)
        found = _FoundGraph.before(gradients, nodes, passes.parameters, dropped)
        if found != passes.found or not self.is_whole:
            raise CannotRepeatError
        self.is_whole = False
        given = dict(zip(passes.incoming, [x for x in gradients if x is not None], strict=True))
        gradients.clear()
        first = passes.backward_first
        shift = tape.copy_storages(passes.backward_first, passes.backward_stop)
        # A shared storage may have another owner, the loop's variable. So the events stop where the
        # graph let go of it, and the owner here is dropped: whoever is last frees it.
        for part, index in passes.backward:
            append_copy(tape, part, first, shift, self.shift)
            self.storages.pop(index, None)
            given.pop(index, None)
        for x in passes.gradients:
            storage = tape.adopted(x.storage + shift)
            x.parameter.grad = Tensor(x.shape, x.dtype, storage, x.strides)
        for index in passes.graph_gradients:
            self.storages[index] = tape.adopted(index + shift)

    def __del__(self) -> None:
        if self.is_whole:
            self.check_frees()
            self.events += frees(index + self.shift for index in self.passes.graph_only)

    def check_frees(self) -> None:
        """Note if the loop freed what this graph, whose backward never ran, would have held.

        An input that the traced graph alone kept alive dies too early in the copy.
        """
        since = self.events[self.position :]
        last = max((n for n, event in enumerate(since) if event >= 0), default=0)
        if self.is_whole and self.passes.died_in(since[:last], self.shift, self.inputs):
            self.passes.may_free_early = True


def _workspaces() -> set[int]:
    return {storage.index for storage in context.workspaces.values()}


def _holding(storage: Storage) -> Tensor:
    return Tensor((), float32, storage)


def _held_by(graph: Sequence[Edge]) -> set[int]:
    """Return what the graph's nodes hold until the graph dies.

    Leaves that are no parameters, and their gradients, too: embeddings that need a gradient.
    """
    nodes = {edge[0] for edge in graph}
    stack = [*nodes]
    while stack:
        for edge in stack.pop().edges:
            if edge is not None and edge[0] not in nodes:
                nodes.add(edge[0])
                stack.append(edge[0])
    leaves = [n.variable for n in nodes if not isinstance(n.variable, Parameter | None)]
    return (
        {storage.index for node in nodes for storage in node.attributes}
        | {leaf.storage.index for leaf in leaves}
        | {leaf.grad.storage.index for leaf in leaves if leaf.grad is not None}
    )
