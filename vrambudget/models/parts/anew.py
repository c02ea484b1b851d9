"""Tensors made anew, longer than they were: the state of a loop so many steps later.

What shares a storage does so again. A storage that keeps its size is made anew only where
everything is: on a tape of its own.
"""

from __future__ import annotations

from typing import overload

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.tape.events import Storage


class Anew:
    """Makes tensors like others; `everything`: also those that keep their size."""

    def __init__(self, *, everything: bool) -> None:
        self.everything = everything
        self._storages: dict[int, tuple[Storage, Storage]] = {}  # the old one lives, for its id

    @overload
    def longer(self, x: Tensor, tokens: int, dim: int = ...) -> Tensor: ...

    @overload
    def longer(self, x: Tensor | None, tokens: int, dim: int = ...) -> Tensor | None: ...

    def longer(self, x: Tensor | None, tokens: int, dim: int = -1) -> Tensor | None:
        """Return x with so many more elements along a dimension."""
        if x is None or not (tokens or self.everything):
            return x
        dim %= x.ndim
        shape = *x.shape[:dim], x.shape[dim] + tokens, *x.shape[dim + 1 :]
        return self.shaped(x, shape)

    def shaped(self, x: Tensor, shape: Shape) -> Tensor:
        """Return a contiguous tensor of another shape, made as x was."""
        old = x.storage
        if id(old) not in self._storages:
            nbytes = x.dtype.itemsize
            for size in shape:
                nbytes *= size
            operation = old.tape.operations[old.index]
            made = Storage(context.tape, nbytes, old.purpose, operation, (shape, x.dtype))
            self._storages[id(old)] = old, made
        return Tensor(shape, x.dtype, self._storages[id(old)][1])
