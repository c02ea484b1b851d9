"""deepspeed.initialize and DeepSpeedEngine: what runs around a model's forward and backward.

    initialize   the model, built in float32, becomes one of 16 bits, parameter by parameter
    forward      until 0.18 a hook on each output that wants a gradient: it is divided by the number
                 of micro-batches, into a new tensor, be it one
    backward     the loss is divided too, and multiplied by the loss scale; then the optimizer's
                 epilogue
    step         at the end of a step's last micro-batch

Source: deepspeed/runtime/engine.py (_configure_distributed_model, forward, backward,
_backward_prologue_per_tensor, _backward_epilogue, step, _take_model_step); runtime/utils.py
(register_output_backward_hooks); runtime/fp16/loss_scaler.py (scale_loss).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, Protocol

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import context, no_grad
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty_like
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.fsdp2.state import tensors_of
from vrambudget.parallel.meta import allocated


class ZeroOptimizer(Protocol):
    """What an engine asks of a stage."""

    is_boundary: bool

    def backward_epilogue(self) -> None:
        """Reduce what is left."""

    def step(self) -> Tensor:
        """Step, and return the gradients' norm."""

    def host_bytes(self, states: int) -> int:
        """Return what lies in main memory; `states`: how often the optimizer has its size."""


class DeepSpeedEngine(Module):
    """A model as deepspeed.initialize returns it; `called`: what its forward calls."""

    def __init__(self, called: Module, config: ZeroConfig, optimizer: ZeroOptimizer) -> None:
        self.module, self.config, self.optimizer = called, config, optimizer
        self._micro_steps = 0
        self._global_grad_norm: Tensor | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model, and hook its outputs: 0.19 leaves them alone in engine.backward."""
        loss = self.module(*args, **kwargs)
        divides = context.grad_enabled and not self.config.is_0_19
        for x in tensors_of(loss) if divides else ():
            if x.requires_grad and x.node is not None:
                x.node.hooks = (*x.node.hooks, _divides(x.slot))
        return loss

    def backward(self, loss: Tensor, *, scale_wrt_gas: bool = True) -> Tensor:
        """Run backward; the loss that is returned is divided by the number of micro-batches."""
        gas_scaled_loss = loss
        if scale_wrt_gas:
            with nullcontext() if self.config.is_0_19 else no_grad():
                gas_scaled_loss = mul_scalar(loss)
        loss = mul_scalar(gas_scaled_loss if self.config.is_0_19 else loss)
        self.optimizer.is_boundary = self.is_boundary
        run_backward(loss)
        with no_grad():
            self.optimizer.backward_epilogue()
        return gas_scaled_loss

    def step(self) -> None:
        """Step, if this was a step's last micro-batch."""
        if self.is_boundary:
            with no_grad():
                self._global_grad_norm = self.optimizer.step()
        self._micro_steps += 1

    @property
    def is_boundary(self) -> bool:
        """Whether this micro-batch is a step's last."""
        return (self._micro_steps + 1) % self.config.grad_accum == 0


def _divides(slot: int) -> Callable[[list[Tensor | None]], None]:
    """Return a hook that divides the gradient of a node's output."""

    def hook(gradients: list[Tensor | None]) -> None:
        gradient = gradients[slot]
        if gradient is not None:
            context.operation = "div"
            gradients[slot] = empty_like(gradient)

    return hook


def cast_model(model: Module, dtype: DType) -> None:
    """Module.bfloat16(), until 0.18: submodules first, then a module's parameters, then buffers."""
    for child in model.children():
        cast_model(child, dtype)
    own = [x for x in model.__dict__.values() if isinstance(x, Tensor)]
    cast_tensors(sorted(own, key=lambda x: not isinstance(x, Parameter)), dtype, model.path)


def cast_parameters(model: Module, dtype: DType) -> None:
    """Cast parameters alone, in their order: _cast_module_mixed_precision, since 0.19."""
    for child in model.modules():
        own = [x for x in child.__dict__.values() if isinstance(x, Parameter)]
        cast_tensors(own, dtype, child.path)


def cast_tensors(own: Iterable[Tensor], dtype: DType, path: int) -> None:
    """Cast a module's floating-point tensors that are not of this type yet."""
    context.tape.module = path
    for x in own:
        if x.dtype.is_floating_point and x.dtype is not dtype:
            x.dtype = dtype
            x.storage = allocated(x, "to_dtype")
    context.tape.module = 0


def quotient() -> Tensor:
    """Return a norm divided by the loss scale."""
    return made("div", (), float32)
