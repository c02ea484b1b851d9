"""What a wrapped module's calls do before and after its own forward, and in backward.

    before forward    gather (the root: begin an iteration); cast floating inputs to param_dtype;
                      a node on the inputs, whose backward is the group's post_backward
    after forward     reshard; a hook on the outputs' gradients, which is its pre_backward; the root
                      lets the last flat output go
    end of backward   post_backward of groups whose inputs wanted no gradient, the root's among
                      them; then the last reduce-scatter's input dies

Source: torch/distributed/fsdp/_fully_shard/_fsdp_state.py (FSDPState,
_register_group_forward_hooks).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.parallel.fsdp2.param_group import CommContext, ParamGroup, TrainingState
from vrambudget.parallel.fsdp2.parameter import Policies


@dataclass(slots=True)
class StateContext:
    """What the states of one root share (FSDPStateContext)."""

    all_states: list[FSDPState] = field(default_factory=list)
    iter_forward_root: FSDPState | None = None
    final_callback_queued: bool = False
    comm: CommContext = field(default_factory=CommContext)


class FSDPState:
    """FSDPState: the hooks of one wrapped module, or of several that share a group."""

    def __init__(
        self, modules: Sequence[Module], group: ParamGroup | None, policies: Policies
    ) -> None:
        self.modules, self.group, self.policies = modules, group, policies
        self._styles = {id(module): module.hooks for module in modules}  # tensor parallel: inside
        self.shared = StateContext()
        self.training_state = TrainingState.IDLE
        self._to_run: set[int] = set()

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward with what comes before and after it."""
        if len(self.modules) == 1:
            args, kwargs = self._pre_forward(args, kwargs)
            return self._post_forward(self._forward(module, args, kwargs))
        if not self._to_run:  # the first of several
            self._to_run = {id(each) for each in self.modules}
            args, kwargs = self._pre_forward(args, kwargs)
        output = self._forward(module, args, kwargs)
        self._to_run.discard(id(module))
        return output if self._to_run else self._post_forward(output)

    def forget_modules(self) -> None:
        """Forget which of several modules did not run forward (_finalize_backward)."""
        self._to_run.clear()

    def _forward(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        style = self._styles[id(module)]
        if style is None:
            return module.forward(*args, **kwargs)
        return style.call(module, args, kwargs)

    def _pre_forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        group = self.group
        if self.training_state is TrainingState.PRE_BACKWARD:  # a checkpoint runs it again
            if group is not None:
                group.unshard()
                group.wait_for_unshard()
            self._check_recomputed((args, kwargs))
            return args, kwargs
        self.training_state = TrainingState.FORWARD
        if self.shared.iter_forward_root is None:
            self.shared.iter_forward_root = self
        if self.policies.cast_forward_inputs and self.policies.param_dtype is not None:
            args, kwargs = _cast((args, kwargs), self.policies.param_dtype)
        if group is None:
            return args, kwargs
        group.pre_forward()
        return _with_post_backward(group, args, kwargs)

    def _check_recomputed(self, inputs: object) -> None:
        """Refuse inputs that forward cast: the second forward, which casts none, saves others."""
        policies = self.policies
        dtype = policies.param_dtype if policies.cast_forward_inputs else None
        for x in tensors_of(inputs):
            if dtype is not None and x.dtype.is_floating_point and x.dtype is not dtype:
                raise NotModelledError(
                    f"checkpointing under FSDP2 in {dtype} ends in PyTorch's CheckpointError:"
                    f" {type(self.modules[0]).__name__} takes a {x.dtype} input, which is cast in"
                    " the first forward and not in the second (_fsdp_state.py, _pre_forward)",
                    hint="take --precision amp-bf16 instead, or leave --checkpointing out",
                )

    def _post_forward(self, output: Any) -> Any:
        if self.training_state is TrainingState.PRE_BACKWARD:
            return output
        if self.group is not None:
            self.group.post_forward(in_backward=context.thread == "autograd")
        self._register_pre_backward_hook(output)
        self.training_state = TrainingState.IDLE
        last = None
        if self.shared.iter_forward_root is self:
            last = self.shared.comm.all_gather_output  # a local variable holds it to the return
            self.shared.comm.all_gather_output = None
            self.shared.iter_forward_root = None
        if self.policies.output_dtype is not None:
            dtype = self.policies.output_dtype
            output = mapped_outputs(output, lambda x: _as(x, dtype))
        del last
        return output

    def _register_pre_backward_hook(self, output: Any) -> None:
        if not context.grad_enabled:
            return
        for x in tensors_of(output):
            if x.requires_grad and x.node is not None:
                x.node.hooks = (*x.node.hooks, self._pre_backward)

    def _pre_backward(self, _gradients: object) -> None:
        self.training_state = TrainingState.PRE_BACKWARD
        if not self.shared.final_callback_queued:
            self.shared.final_callback_queued = True
            context.callbacks.append(self._root_post_backward_final_callback)
        if self.group is not None:
            self.group.pre_backward()

    def _root_post_backward_final_callback(self) -> None:
        for state in self.shared.all_states:
            group = state.group
            if group is not None and group.training_state is not TrainingState.POST_BACKWARD:
                group.post_backward()
            state.training_state = TrainingState.IDLE
            state.forget_modules()
            if group is not None:
                group.training_state = TrainingState.IDLE
                group.finalize_backward()
        self.shared.comm.post_forward_order.clear()
        self.shared.comm.reduce_scatter_input = None
        self.shared.final_callback_queued = False


def set_requires_gradient_sync(states: Sequence[FSDPState], *, sync: bool) -> None:
    """Reduce gradients in the backward passes that follow, or keep them whole."""
    for state in states:
        if state.group is not None:
            state.group.reduce_grads = sync


def _with_post_backward(
    group: ParamGroup, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Put the group's node on those inputs that want a gradient."""
    if not context.grad_enabled:
        return args, kwargs
    wanting = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
    if not wanting:
        return args, kwargs
    outputs = dict(zip(map(id, wanting), group.register_post_backward(wanting), strict=True))
    replaced: tuple[tuple[Any, ...], dict[str, Any]] = mapped(
        (args, kwargs), lambda x: outputs.get(id(x), x)
    )
    return replaced


def _cast(values: Any, dtype: DType) -> Any:
    return mapped(values, lambda x: _as(x, dtype))


def _as(x: Tensor, dtype: DType) -> Tensor:
    return to(x, dtype) if x.dtype.is_floating_point else x


def mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return arguments with `function` applied to their tensors; what has none stays as it is."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([mapped(item, function) for item in value])
    if isinstance(value, dict):
        return {key: mapped(item, function) for key, item in value.items()}
    return value


def mapped_outputs(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return a module's outputs likewise; a model's are a dataclass."""
    if not is_dataclass(value) or isinstance(value, type):
        return mapped(value, function)
    changed = {f.name: mapped(getattr(value, f.name), function) for f in fields(value)}
    replaced: Any = replace(value, **changed)
    return replaced


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in a module's arguments or outputs."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    elif is_dataclass(value) and not isinstance(value, type):
        value = [getattr(value, f.name) for f in fields(value)]
    if isinstance(value, list | tuple):
        return [x for item in value for x in tensors_of(item)]
    return []
