"""Sparse tensors whose indices are known: how many are left when equal ones are added up.

`coalesce` sorts the indices [dimensions, entries] on the GPU and reads back how many differ
(aten/src/ATen/native/sparse/cuda/SparseCUDATensor.cu, coalesce_sparse_cuda). Gradients of embedding
tables with `sparse=True`, and products with sparse matrices, call it.

Runs in the user's Python, 3.9 or later.

Not modelled: a sparse tensor that is made of a dense one, whose zeros are floating-point numbers.
"""

# ruff: noqa: SLF001 - operations' own names

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


class Sparse:
    """Knows indices that were moved to the GPU, and answers how many of them differ."""

    def __init__(self, tracer: Any) -> None:
        self.tracer, self.values = tracer, tracer.values
        self.torch = tracer.torch
        self.layout = self.torch.sparse_coo
        native = self.torch._C
        self.on_gpu = native.DispatchKeySet(native.DispatchKey.SparseCUDA)
        self.traced = native.DispatchKeySet(tracer.traced)

    def kernels(self) -> Iterator[tuple[str, Callable[[Any], Callable[..., Any]]]]:
        """Yield the operation's name, and what makes its kernel."""
        yield "_coalesce", self._coalescing

    def _coalescing(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, tensor: Any) -> Any:
            below = keys.remove(self.tracer.brings)
            indices, true = self._indices(tensor)
            if indices is None:
                return op._handle.redispatch_boxed(below, tensor)
            with self.tracer.answering(indices.shape[1], true=true):
                out = op._handle.redispatch_boxed(below, tensor)
            self._hold(out, indices, true=true)
            return out

        return kernel

    def guard(self, args: Any, keys: Any) -> Any:
        """Return the keys that an operation is run without: one of sparse tensors may coalesce."""
        is_sparse = any(getattr(argument, "layout", None) is self.layout for argument in args)
        return self.traced if is_sparse else keys

    def moved(self, source: Any, out: Any) -> None:
        """Know the indices of what was moved from the host to the GPU."""
        if self.values.on_gpu(out) and not self.values.on_gpu(source):
            self._hold(out, source._indices(), true=True)

    def _hold(self, tensor: Any, indices: Any, *, true: bool) -> None:
        """Let a sparse tensor's own indices, of which `_indices()` gives views, be known."""
        own = self.torch.ops.aten._indices.default._handle.redispatch_boxed(self.on_gpu, tensor)
        if self.values.eligible(own) and own.shape == indices.shape:
            self.values.hold_copy(own, indices, true=true)

    def _indices(self, tensor: Any) -> tuple[Any, bool]:
        """Return the indices that differ, in order, on the CPU; None where they are not known."""
        if not self.values.on_gpu(tensor):
            return None, False
        indices, true = self.values.copy_of(tensor._indices())
        if indices is None or not indices.numel():
            return None, False
        unique = self.torch.ops.aten.unique_dim.default
        return unique._handle.redispatch_boxed(self.values.on_cpu, indices, 1)[0], true
