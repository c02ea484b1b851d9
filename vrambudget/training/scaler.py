"""Gradient scaling for float16 under autocast: torch.amp.GradScaler's scalars.

    scale, growth_tracker   made when the first loss is scaled; they stay
    found_inf               from unscale (or step) until update; no step is ever skipped here

A fused optimizer unscales by itself: step passes it the scale and found_inf. For any other, the
gradients are unscaled in place before. A scaler that is not enabled does nothing.

Source: torch/amp/grad_scaler.py.
Not modelled: several optimizers on one scaler; steps skipped because a gradient overflowed.
"""

from __future__ import annotations

from vrambudget.dtypes import DType, float32, float64, int32, promote
from vrambudget.engine.autograd import record
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.tape.events import Purpose
from vrambudget.training.optimizer_base import Optimizer


class GradScaler:
    """What the loop calls: scale, unscale, step, update."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._scale: Tensor | None = None
        self._growth_tracker: Tensor | None = None
        self._found_inf: Tensor | None = None  # made by unscale, held until update

    def scale(self, loss: Tensor) -> Tensor:
        """Return the loss times the scale."""
        if not self.enabled:
            return loss
        if self._scale is None:
            with made_for(Purpose.OPTIMIZER_STATES):
                self._scale = _scalar("full")
                self._growth_tracker = _scalar("full", int32)
        y = _scalar("mul", promote(loss.dtype, float32))
        return record("mul", y, inputs=(loss,), backward=lambda dy: _scalar("mul", dy.dtype))

    def unscale(self, optimizer: Optimizer | None) -> None:
        """Divide the gradients by the scale, in place, and look for infinities."""
        if not self.enabled or optimizer is None:
            return
        double = _scalar("to_copy", float64)
        reciprocal = _scalar("reciprocal", float64)
        del double
        inverse_scale = _scalar("to_copy")
        del reciprocal
        self._found_inf = self._check(inverse_scale)

    def step(self, optimizer: Optimizer) -> None:
        """Run the optimizer's step on unscaled gradients."""
        if not self.enabled:
            optimizer.step()
        elif optimizer.implementation == "fused":
            self._step_fused(optimizer)
        else:
            if self._found_inf is None:
                self.unscale(optimizer)
            optimizer.step()

    def update(self) -> None:
        """Adapt the scale in place; found_inf is freed."""
        self._found_inf = None

    def _step_fused(self, optimizer: Optimizer) -> None:
        was_unscaled = self._found_inf is not None
        if not was_unscaled:
            self._found_inf = self._check(_scalar("full"))  # checks only: times one
        found_inf = _scalar("add")  # Python's sum() over one device
        grad_scale = None if was_unscaled else _scalar("mul")
        optimizer.step()
        del grad_scale, found_inf

    def _check(self, inverse_scale: Tensor) -> Tensor:
        """Make the copies that one device works with and return its found_inf."""
        master = _scalar("full")
        found_inf = _scalar("to_copy")
        copy = _scalar("to_copy", inverse_scale.dtype)
        del copy, master
        return found_inf


def _scalar(operation: str, dtype: DType = float32) -> Tensor:
    context.operation = operation
    return empty((), dtype)
