"""ZeRO 3's hooks: each module gathers before its forward and its backward, and lets go after.

    before forward   gather; a node on each input that wants a gradient, whose backward is
                     "after backward", once all of them have theirs
    after forward    let go; a node on each output, whose backward is "before backward": gather
    after backward   let go

Inputs that are given by name have no node, and ids want no gradient: their modules let go when
backward is over, until 0.18 when the step begins.

Source: deepspeed/runtime/zero/parameter_offload.py (DeepSpeedZeRoOffload,
_register_deepspeed_module).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vrambudget.engine.autograd import record_many
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.linear import zero3_linear
from vrambudget.parallel.deepspeed.partition_parameters import Status, ZeroParameter
from vrambudget.parallel.deepspeed.partitioned_param_coordinator import Coordinator
from vrambudget.parallel.fsdp2.state import mapped, mapped_outputs


class ZeroOffload:
    """DeepSpeedZeRoOffload: converts a model's parameters, and hooks its modules."""

    def __init__(
        self, model: Module, config: ZeroConfig, converted: Mapping[int, ZeroParameter]
    ) -> None:
        self.parameters = [
            converted.get(id(p))
            or ZeroParameter(p, number, config.group, on_host=config.offload_param)
            for number, p in enumerate(model.parameters())
        ]
        self.of = {id(p.parameter): p for p in self.parameters}
        self._own: dict[int, list[ZeroParameter]] = {}
        self.coordinator = Coordinator(config, self.parameters_of)
        self.persistent = self._mark_persistent(config)
        if config.is_0_19:
            context.linear = zero3_linear
        for module in model.modules():
            module.hooks = _OffloadHooks(self.coordinator, is_root=module is model)

    def parameters_of(self, module: Module) -> Sequence[ZeroParameter]:
        """Return a module's own parameters."""
        if id(module) not in self._own:
            values = module.__dict__.values()
            own = dict.fromkeys(self.of[id(p)] for p in values if isinstance(p, Parameter))
            self._own[id(module)] = sorted(own, key=lambda p: p.ds_id)
        return self._own[id(module)]

    def accessed(self, parameter: Parameter, module: Module) -> None:
        """Gather a parameter that a module's forward takes from another one.

        From the second pass on it is fetched with the module's own (ZeROOrderedDict.__getitem__,
        register_external_parameter).
        """
        p = self.of[id(parameter)]
        if p.status is Status.NOT_AVAILABLE:
            own = [*self.parameters_of(module), p]
            self._own[id(module)] = sorted(own, key=lambda p: p.ds_id)
            p.all_gather()

    def _mark_persistent(self, config: ZeroConfig) -> list[ZeroParameter]:
        """Return the parameters that are too small to be worth a gather."""
        found, total = list[ZeroParameter](), 0
        for p in self.parameters:
            fits = p.numel + total <= config.model_persistence_threshold
            if fits and p.numel <= config.param_persistence_threshold:
                p.persists = True
                found.append(p)
                total += p.numel
        return found


class _OffloadHooks:
    """What a module's call does besides its own forward."""

    def __init__(self, coordinator: Coordinator, *, is_root: bool) -> None:
        self.coordinator, self.is_root = coordinator, is_root
        self.grads_remaining = 0

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward."""
        if self.is_root:
            self.coordinator.reset_step()
        self.coordinator.fetch_sub_module(module, forward=True)
        self.grads_remaining = 0
        args = mapped(args, lambda x: self._post_backward(module, x))
        output = module.forward(*args, **kwargs)
        self.coordinator.release_sub_module(module, forward=True)
        return mapped_outputs(output, lambda x: self._pre_backward(module, x))

    def _post_backward(self, module: Module, x: Tensor) -> Tensor:
        if not (x.requires_grad and context.grad_enabled):
            return x
        self.grads_remaining += 1

        def backward(dx: Tensor) -> Tensor:
            self.grads_remaining -= 1
            if not self.grads_remaining:
                self.coordinator.release_sub_module(module, forward=False)
            return dx

        return _identity("post_backward", x, backward)

    def _pre_backward(self, module: Module, x: Tensor) -> Tensor:
        if not (x.requires_grad and context.grad_enabled):
            return x
        was_called = False

        def backward(dy: Tensor) -> Tensor:
            nonlocal was_called
            if not was_called:
                was_called = True
                self.coordinator.fetch_sub_module(module, forward=False)
            return dy

        return _identity("pre_backward", x, backward)


def _identity(name: str, x: Tensor, backward: Callable[[Tensor], Tensor]) -> Tensor:
    view = x.viewed(x.shape, x.strides)
    record_many(name, [view], inputs=(x,), backward=backward)
    return view
