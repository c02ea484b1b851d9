"""Hooks on gradients, as code registers them: on tensors, on leaves, on nodes of the graph.

    x.register_hook                       before the node that made x runs; of a leaf before .grad
    p.register_post_accumulate_grad_hook  once p.grad is there
    x.grad_fn.register_hook, _prehook     after a node ran, and before: modules' full backward hooks

What a hook returns takes the gradient's place.

Source: torch/_tensor.py; torch/csrc/autograd/engine.cpp (call_tensor_pre_hooks, call_post_hooks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.hooks import RemovableHandle

from vrambudget.engine.autograd import Node
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.traced import regions
from vrambudget.traced.tensor import TracedTensor, traced_tensor

if TYPE_CHECKING:
    from vrambudget.traced.mode import TracingMode

Hooks = OrderedDict[int, Callable[..., Any]]


class LeafHooks:
    """The hooks of leaves, by their storages: what the tensor is to its code, and both kinds."""

    def __init__(self, mode: TracingMode) -> None:
        self.mode = mode
        self._leaves: dict[int, tuple[torch.Tensor, Hooks, Hooks]] = {}

    def of(self, x: torch.Tensor, v: Tensor) -> tuple[Hooks, Hooks]:
        """Return a leaf's hooks, before and after its gradient is accumulated, to add some."""
        found = self._leaves.get(v.storage.index)
        if found is None:
            found = self._leaves[v.storage.index] = x, OrderedDict(), OrderedDict()
            context.before_gradient, context.got_gradient = self._before, self._after
        return found[1:]

    def adopt(self, x: torch.Tensor, v: Tensor) -> None:
        """Take over the hooks that a live tensor has already."""
        before = getattr(x, "_backward_hooks", None)
        after = getattr(x, "_post_accumulate_grad_hooks", None)
        if before or after:
            adopted = self.of(x, v)
            adopted[0].update(before or {})
            adopted[1].update(after or {})

    def _before(self, leaf: Tensor, gradients: list[Tensor | None]) -> None:
        if leaf.storage.index in self._leaves:
            for hook in [*self._leaves[leaf.storage.index][1].values()]:
                _replace(self.mode, hook, gradients, 0)

    def _after(self, leaf: Tensor) -> None:
        if leaf.storage.index in self._leaves:
            x, _, hooks = self._leaves[leaf.storage.index]
            for hook in [*hooks.values()]:
                _called(self.mode, hook, x)


def register_hook(mode: TracingMode, x: TracedTensor, hook: Callable[..., Any]) -> RemovableHandle:
    """Tensor.register_hook."""
    if not x.v.requires_grad:
        raise RuntimeError("cannot register a hook on a tensor that doesn't require gradient")
    if x.v.node is None:
        return added(mode.leaf_hooks.of(x, x.v)[0], hook)
    slot, hooks = x.v.slot, Hooks()

    def run(gradients: list[Tensor | None]) -> None:
        for each in [*hooks.values()]:
            _replace(mode, each, gradients, slot)

    x.v.node.hooks = (*x.v.node.hooks, run)
    return added(hooks, hook)


class GradFn:
    """A node of the graph, as far as code asks it: `x.grad_fn`."""

    def __init__(self, mode: TracingMode, node: Node) -> None:
        self._mode, self._node = mode, node

    def name(self) -> str:
        """Return the name, which for a torch.autograd.Function is torch's own."""
        return f"{self._node.name}Backward"

    def register_prehook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Let a hook see, and replace, what arrives at the node."""
        hooks = Hooks()

        def run(gradients: list[Tensor | None]) -> None:
            for each in [*hooks.values()]:
                found = _called(self._mode, each, _shown(gradients))
                if found is not None:
                    gradients[:] = _to_engine(found)

        self._node.hooks = (*self._node.hooks, run)
        return added(hooks, hook)

    def register_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Let a hook see what arrived and what leaves, and replace what leaves."""
        hooks, inner = Hooks(), self._node.backward
        assert inner is not None  # noqa: S101 - the node has not run

        def backward(*gradients: Tensor | None) -> Any:
            result = inner(*gradients)
            outgoing = list(result) if isinstance(result, tuple) else [result]
            del result
            for each in [*hooks.values()]:
                found = _called(self._mode, each, _shown(outgoing), _shown(gradients))
                if found is not None:
                    outgoing = _to_engine(found)
            return tuple(outgoing)

        self._node.backward = backward
        return added(hooks, hook)

    def __getattr__(self, name: str) -> Any:
        raise NotModelledError(f"grad_fn.{name} is not traced")


def added(hooks: Hooks, hook: Callable[..., Any]) -> RemovableHandle:
    """Add a hook; what is returned removes it."""
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def _called(mode: TracingMode, hook: Callable[..., Any], *args: Any) -> Any:
    with torch.no_grad(), mode:
        regions.adopt()
        return hook(*args)


def _replace(
    mode: TracingMode, hook: Callable[..., Any], gradients: list[Tensor | None], slot: int
) -> None:
    gradient = gradients[slot]
    if gradient is None:
        return
    found = _called(mode, hook, traced_tensor(gradient))
    if found is not None:
        gradients[slot] = found.v


def _shown(gradients: Any) -> tuple[TracedTensor | None, ...]:
    return tuple(None if g is None else traced_tensor(g) for g in gradients)


def _to_engine(found: Any) -> list[Tensor | None]:
    found = found if isinstance(found, tuple) else (found,)
    return [None if g is None else g.v for g in found]
