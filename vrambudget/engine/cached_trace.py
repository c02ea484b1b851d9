"""A model that is traced once: a call in the same state as an earlier one copies its events.

Why: a job has many steps and micro-batches, and nearly all of them allocate the same. Only the
model is slow to trace, so only its passes are copied; the loop around it runs every step.

Two forward passes in the same state (inputs of the same shapes, modules in the same mode, the same
kind of autocast region, gradients there or not) allocate and free the same, and so do their
backward passes. So the second is a copy of the first's events, with storages of its own:

    forward   the events; outputs are tensors of the new storages; the graph is one node
    backward  the events, when the engine reaches that node; then parameters have gradients

A copy has no Python objects inside, whose deaths would free storages. So everything that outlives a
pass must have a known holder: outputs, inputs, the region's copies of weights, the graph,
gradients, workspaces. A pass that leaves anything else, or in which anything else dies, is traced
each time.

If a copied call turns out to differ (its outputs die at another moment before backward, say),
`CannotRepeatError` asks for a full trace of the job.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

from vrambudget.dtypes import DType
from vrambudget.engine.autograd import Edge, Node, edge_to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.passes import CannotRepeatError, Passes, ReplayedGraph, TracedGraph
from vrambudget.engine.sizes import ManySizes
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.tape.events import Storage


class _UnknownError(Exception):
    """A value of a kind in which tensors cannot be found."""


class _Output(NamedTuple):
    """A tensor that a call returned."""

    shape: Shape
    dtype: DType
    strides: Shape | None
    is_view: bool
    requires_grad: bool
    slot: int | None  # of the graph's node
    storage: int  # its index


class CachedTrace(Module):
    """A model as its loop calls it."""

    def __init__(self, model: Module) -> None:
        self.model = model
        self._modules = (self, *model.modules())
        self._parameters = super().parameters()
        self._cached: tuple[_CachedCall, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model: trace it, or copy an earlier call."""
        region = context.autocast
        if region is not None and region.cache:
            # The region spans two calls: the second reads copies that the first made.
            if any(trace.was_replayed for trace in self._cached):
                raise CannotRepeatError
            return self.model(*args, **kwargs)
        try:
            given, storages = _described((args, kwargs))
        except _UnknownError:
            return self.model(*args, **kwargs)
        # What a call allocates follows from its inputs and this state, and from nothing else.
        finds = (given, self._state())
        for trace in self._cached:
            if trace.passes.is_over and trace.finds == finds:
                return trace.replay(storages)
        inputs = [storage.index for storage in storages]
        del storages
        trace = _CachedCall(finds, Passes(inputs, self._parameters))
        outputs = self.model(*args, **kwargs)
        try:
            outputs = trace.forward_is_over(outputs)
        except _UnknownError:
            return outputs
        # An older trace of this state was not whole (its backward never ran); this one may be.
        # What was copied stays: `check` asks its graphs in the end.
        kept = (old for old in self._cached if old.finds != finds or old.was_replayed)
        self._cached = (*kept, trace)
        return outputs

    def modules(self) -> Iterator[Module]:
        """Return this module and all below it. The tree is assumed not to change."""
        return iter(self._modules)

    def parameters(self) -> list[Parameter]:
        """Return the parameters that the model had when it was wrapped."""
        return list(self._parameters)

    def check(self) -> None:
        """Raise CannotRepeatError if a copy may differ from what would have run."""
        for trace in self._cached:
            for graph in trace.graphs:
                graph.check_frees()
            if trace.passes.may_free_early:
                raise CannotRepeatError

    def _state(self) -> tuple[Any, ...]:
        """Return what decides, besides the inputs, which allocations a call makes."""
        region = context.autocast
        return (
            context.grad_enabled,
            context.purpose,
            context.benchmarks,  # which only the first of such calls makes
            context.scripts,  # whose first call is another
            None if region is None else region.dtype,
            [module.training for module in self._modules],
            [(p.requires_grad, p.dtype) for p in self._parameters],
            [p.grad is None for p in self._parameters],
        )


class _CachedCall:
    """A traced call: the state that it found, and what it returned."""

    def __init__(self, finds: tuple[Any, ...], passes: Passes) -> None:
        self.finds, self.passes = finds, passes
        self.outputs: Any = None
        self.was_replayed = False
        self.graphs: weakref.WeakSet[ReplayedGraph] = weakref.WeakSet()

    def forward_is_over(self, outputs: Any) -> Any:
        """Note what the pass left; return the outputs, behind one node for their whole graph.

        The traced call gets that node, too: its backward then runs in one piece, to be copied.
        Raises _UnknownError for outputs of an unknown kind.
        """
        node, edges = _graph_node(), list[Edge]()

        def noted(x: Tensor) -> _Output:
            edge = edge_to(x)
            slot = None if edge is None else len(edges)
            if edge is not None:
                if x.node is None:
                    raise _UnknownError  # a parameter
                edges.append(edge)
            flags = x.is_view, x.requires_grad
            return _Output(x.shape, x.dtype, x.strides, *flags, slot, x.storage.index)

        self.outputs = mapped(outputs, Tensor, noted)
        storages = dict[int, Storage]()
        mapped(outputs, Tensor, lambda x: storages.update({x.storage.index: x.storage}))
        if any(i < self.passes.first and i not in self.passes.inputs for i in storages):
            raise _UnknownError
        self.passes.forward_is_over(set(storages), has_graph=bool(edges))
        if edges:
            node.part = TracedGraph(self.passes, edges)
        return self._returned(storages, node)

    def replay(self, inputs: list[Storage]) -> Any:
        """Copy the forward pass, and return its outputs."""
        self.was_replayed = True
        storages, graph = self.passes.replay_forward(inputs)
        node = _graph_node()
        if graph is not None:
            node.part = graph
            self.graphs.add(graph)
        return self._returned(storages, node)

    def _returned(self, storages: dict[int, Storage], node: Node) -> Any:
        def tensor(x: _Output) -> Tensor:
            y = Tensor(x.shape, x.dtype, storages[x.storage], x.strides)
            y.is_view, y.requires_grad = x.is_view, x.requires_grad
            if x.slot is not None:
                y.node, y.slot = node, x.slot
                node.outputs = max(node.outputs, x.slot + 1)
            return y

        return mapped(self.outputs, _Output, tensor)


def _graph_node() -> Node:
    """Return the node of a whole graph, which is as new as the graph's newest node.

    Backward runs the newest ready node first, so nodes of the loop's own code keep their order.
    """
    node = Node("model", context.sequence, (), (), None, outputs=0)
    context.sequence += 1
    return node


def _described(value: Any) -> tuple[Any, list[Storage]]:
    """Return what inputs have that decides allocations, and their storages, each once.

    Raises _UnknownError for inputs that need gradients: their backward goes on outside the model.
    """
    storages: list[Storage] = []

    def described(x: Tensor) -> tuple[Any, ...]:
        if x.requires_grad:
            raise _UnknownError
        number = next((n for n, known in enumerate(storages) if known is x.storage), len(storages))
        if number == len(storages):
            storages.append(x.storage)
        return x.shape, x.dtype, x.strides, x.is_view, number

    return mapped(value, Tensor, described), storages


def mapped(value: Any, kind: type, function: Callable[[Any], Any]) -> Any:
    """Return a copy of what a model takes or returns, with `function` applied to all of `kind`.

    Raises _UnknownError for values that may hold others in a way that is not known.
    """
    if isinstance(value, kind):
        return function(value)
    if value is None or isinstance(value, int | float | str | ManySizes):
        return value
    if isinstance(value, list | tuple):
        return type(value)([mapped(item, kind, function) for item in value])
    if isinstance(value, dict):
        return {key: mapped(item, kind, function) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        changed = {f.name: mapped(getattr(value, f.name), kind, function) for f in fields(value)}
        return replace(value, **changed)
    raise _UnknownError
