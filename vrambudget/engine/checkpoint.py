"""Activation checkpointing as torch.utils.checkpoint(use_reentrant=False) does it.

Forward runs the function and keeps none of what its operations save: each saved tensor is a
`Holder`. The first node of the function whose backward needs one runs the function again, from its
inputs, inside backward; the recomputation stops as soon as all holders are filled (early stop).
Each node lets its own tensors go after it ran, as without checkpointing; the inputs go with the
last of them.

Source: torch/utils/checkpoint.py (_CheckpointFrame, _checkpoint_hook, _recomputation_hook);
torch/amp/autocast_mode.py (autocast.__exit__), aten/src/ATen/autocast_mode.cpp (nesting).
Not modelled: nested checkpoints (of followed modules: vrambudget.traced.patches).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vrambudget.engine.context import Autocast, context
from vrambudget.tape.events import Purpose, Storage

if TYPE_CHECKING:
    from vrambudget.engine.tensor import Tensor

Results = tuple["Tensor", ...]
Policy = Callable[[str], bool]  # whether the results of an operation, by its name, are saved


class Holder:
    """The place of one saved tensor: empty until the frame is recomputed."""

    __slots__ = ("__weakref__", "frame", "storage")

    def __init__(self, frame: CheckpointFrame) -> None:
        self.frame = frame
        self.storage: Storage | None = None


class _StopRecomputation(BaseException):
    """All holders are filled: what would follow is not needed."""


class CheckpointFrame:
    """One checkpointed call: how to run it again, and the holders to fill when it is."""

    __slots__ = ("again", "autocast_dtype", "holders", "is_recomputed", "policy", "saved", "saves")

    def __init__(
        self, again: Callable[[], Any], policy: Callable[[], Policy] | None = None
    ) -> None:
        self.again = again  # holds the inputs
        self.policy = policy  # makes one that counts anew: for forward, and for recomputation
        self.saves = policy() if policy is not None else None
        self.saved: list[Results] = []
        # Not the region itself: its cache ends with forward.
        self.autocast_dtype = None if context.autocast is None else context.autocast.dtype
        self.holders: list[weakref.ref[Holder]] = []
        self.is_recomputed = False

    def keep(self, storage: Storage) -> Holder:
        """Stand in for a saved tensor; the tensor itself is not kept."""
        del storage
        holder = Holder(self)
        self.holders.append(weakref.ref(holder))
        return holder

    def results(self, operation: str, make: Callable[[], Results]) -> Results:
        """Return an operation's results, and keep them if the checkpoint saves them."""
        made = make()
        if self.saves is not None and self.saves(operation):
            self.saved.append(tuple(x.detach() for x in made))
            for x in made:
                x.storage.purpose = Purpose.ACTIVATIONS
        return made

    def recompute(self) -> None:
        """Run the function again and fill the holders; does nothing the second time."""
        if self.is_recomputed:
            return
        self.is_recomputed = True
        before = context.frame, context.grad_enabled, context.autocast, context.operation
        context.frame = Recomputation(self)
        context.grad_enabled = True
        # Where the region of forward is over, recomputation enters one like it, with a cache of
        # its own. Where backward runs in the region, the cache is one, and leaving clears it:
        # nesting is counted for each thread, and the thread of backward is in no other region.
        dtype, outer = self.autocast_dtype, context.autocast
        context.autocast = None if dtype is None else outer or Autocast(dtype)
        try:
            self.again()
        except _StopRecomputation:
            pass
        finally:
            context.frame, context.grad_enabled, context.autocast, context.operation = before
            if outer is not None:
                outer.cache.clear()


class Recomputation:
    """Takes a frame's place while its function runs again: tensors go to the waiting holders."""

    __slots__ = ("holders", "position", "saved", "saves")

    def __init__(self, frame: CheckpointFrame) -> None:
        self.holders = frame.holders
        self.position = 0
        self.saved = frame.saved
        self.saves = frame.policy() if frame.policy is not None else None

    def keep(self, storage: Storage) -> Storage:
        """Hand a saved tensor to its holder, if its node has not run yet."""
        if storage.purpose is Purpose.TEMPORARIES:
            storage.purpose = Purpose.ACTIVATIONS
        holder = self.holders[self.position]()
        if holder is not None:
            holder.storage = storage
        self.position += 1
        if self.position == len(self.holders):
            raise _StopRecomputation
        return storage

    def results(self, operation: str, make: Callable[[], Results]) -> Results:
        """Return an operation's results: those that forward saved, if it did."""
        if self.saves is not None and self.saves(operation):
            return self.saved.pop(0)
        return make()


def results_of(operation: str, make: Callable[[], Results]) -> Results:
    """Return what `make` makes; what a selective checkpoint saves is made in forward alone."""
    return make() if context.frame is None else context.frame.results(operation, make)


def checkpoint(
    function: Callable[..., Any], *args: Any, policy: Callable[[], Policy] | None = None
) -> Any:
    """Run `function(*args)` without keeping what it saves; it runs again in backward.

    `policy` makes the choice of a selective checkpoint (create_selective_checkpoint_contexts).
    """
    if not context.grad_enabled:
        return function(*args)
    before, context.frame = context.frame, CheckpointFrame(lambda: function(*args), policy)
    try:
        return function(*args)
    finally:
        context.frame = before
