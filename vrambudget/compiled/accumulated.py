"""Gradients that PyTorch's engine adds up: in place on a GPU, into a new tensor if they are fake.

A tensor that is used twice has two gradients. On a GPU the engine adds the second into the first,
if nobody else holds the first. It never does so with a subclass of Tensor, and a fake tensor is
one. So an addition is made in place here if it must be the engine's: its first operand is older
than the node that made the second, and only C++ holds it.

Source: torch/csrc/autograd/input_buffer.cpp (accumulate, can_accumulate_inplace).
Not modelled: an eager node that makes two gradients of one tensor (x * x), which are added up into
a new one here.
"""

from typing import Any

import torch

from vrambudget.engine.context import context

ADD = torch.ops.aten.add.Tensor
HELD = 4  # references to a tensor that only C++ holds, while Python is asked to add to it


class Running:
    """The node of PyTorch's graph that runs, and the storages that were there before it."""

    def __init__(self) -> None:
        self.is_transformed = False  # by functorch, whose tensors are a subclass' on a GPU, too
        self._node: tuple[str, int] | None = None
        self._first = 0

    def adds_in_place(self, x: torch.Tensor, index: int) -> bool:
        """Whether what is added to x, of storage number `index`, is added in place."""
        return (
            self._node is not None
            and index < self._first
            and not torch.is_grad_enabled()
            and _references(x) == (HELD, _ALONE)
        )

    @property
    def node(self) -> str:
        """The name of the node that runs, "" where none does."""
        return self._node[0] if self._node else ""

    @property
    def first(self) -> int:
        """The number of the first storage that the node may have made."""
        return self._first

    def look(self) -> None:
        """Note which node runs: to be asked before an operation makes anything."""
        node: Any = None if self.is_transformed else torch._C._current_autograd_node()
        known = None if node is None else (node.name(), node._sequence_nr())
        if known != self._node:
            self._node, self._first = known, len(context.tape.sizes)


def _references(x: Any) -> tuple[int, int]:
    return x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata)


_ALONE = _references(torch.empty(1))[1]  # to a storage that one tensor holds: 1 or 2, by version
