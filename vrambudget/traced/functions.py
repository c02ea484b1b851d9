"""torch.autograd.Function: a function of one's own, forward and backward written in torch calls.

Source: torch/autograd/function.py (FunctionCtx, Function); csrc/autograd/python_function.cpp.
Not modelled: setup_context, hooks on its node, functions of tensors on the CPU alone (torch runs
those).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from vrambudget.engine.autograd import Saved, keep, record_many
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.traced import regions
from vrambudget.traced.tensor import TracedTensor, traced_tensor

if TYPE_CHECKING:
    from vrambudget.traced.mode import TracingMode


class Ctx:
    """What a function's forward leaves for its backward."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.dirty: tuple[Any, ...] = ()
        self.without_grad: tuple[Any, ...] = ()
        self.materialize = True
        self.to_save: tuple[Any, ...] = ()
        self.kept: list[tuple[Any, Saved]] = []

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, for saved_tensors."""
        self.to_save = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Say which inputs were written into."""
        self.dirty = tensors

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Say which outputs want no gradient."""
        self.without_grad = tensors

    def set_materialize_grads(self, value: bool) -> None:  # noqa: FBT001 - torch's signature
        """Say whether missing gradients come as zeros."""
        self.materialize = value

    def save(self, mode: TracingMode) -> None:
        """Let the engine keep what was to be saved."""
        for x in self.to_save:
            traced = None if x is None else mode.traced_of(x)
            if traced is None:
                self.kept.append((x, None))
                continue
            layout = traced.v
            note = layout.shape, layout.dtype, layout.strides, layout.node, layout.requires_grad
            is_own = layout.node is None and layout.requires_grad
            self.kept.append((traced if is_own else note, keep(layout)))
        self.to_save = ()

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """Return what was saved."""
        return tuple(_restored(note, saved) for note, saved in self.kept)


def _restored(note: Any, saved: Saved) -> Any:
    if isinstance(saved, Holder):
        saved.frame.recompute()
        storage: Any = saved.storage
    else:
        storage = saved
    if not isinstance(note, tuple):
        return note
    shape, dtype, strides = note[:3]
    return traced_tensor(Tensor(shape, dtype, storage, strides))


def apply_function(mode: TracingMode, function: Any, args: Any, kwargs: Any) -> Any:
    """Run a function's forward, and let the engine run its backward."""
    if function is CheckpointFunction:
        raise NotModelledError(
            "checkpointing with use_reentrant=True is not traced",
            hint="gradient_checkpointing_enable({'use_reentrant': False}) is PyTorch's own advice",
        )
    if kwargs or function.setup_context is not torch.autograd.Function.setup_context:
        raise NotModelledError(f"{function.__name__} with a setup_context is not traced")
    regions.adopt()
    inputs = [mode.traced_of(x) if isinstance(x, torch.Tensor) else None for x in args]
    wants = tuple(x is not None and x.v.requires_grad for x in inputs)
    ctx = Ctx(wants)
    with torch.no_grad():
        result = function.forward(ctx, *args)
    regions.adopt()
    if not (context.grad_enabled and any(wants)):
        return result
    given = result if isinstance(result, tuple) else (result,)
    outputs = [_output(x, inputs, ctx) for x in given]
    wanted = [not any(x is without for without in ctx.without_grad) for x in given]
    ctx.without_grad = ()
    traced = [x for x in outputs if isinstance(x, TracedTensor)]
    ctx.save(mode)

    # Only which outputs are tensors is closed over: the tensors would never die.
    are_tensors = [isinstance(x, TracedTensor) for x in outputs]

    def backward(*gradients: Tensor | None) -> Any:
        incoming = iter(gradients)
        arrived = [next(incoming) if is_tensor else None for is_tensor in are_tensors]
        with torch.no_grad(), mode:
            given = [None if g is None else traced_tensor(g) for g in arrived]
            found = function.backward(ctx, *given)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(None if g is None else g.v for g in found[: len(wants)])

    record_many(
        function.__name__,
        [x.v for x in traced],
        inputs=[None if x is None else x.v for x in inputs],
        backward=backward,
    )
    for x, wants_gradient in zip(outputs, wanted, strict=True):
        if isinstance(x, TracedTensor) and not wants_gradient:
            x.v.requires_grad, x.v.node = False, None
    return tuple(outputs) if isinstance(result, tuple) else outputs[0]


def _output(x: Any, inputs: list[TracedTensor | None], ctx: Ctx) -> Any:
    """Return an output: an input that is returned becomes a view of itself."""
    is_input = any(x is given for given in inputs) and not any(x is d for d in ctx.dirty)
    return traced_tensor(x.v.viewed(x.v.shape, x.v.strides), x.known, x) if is_input else x
