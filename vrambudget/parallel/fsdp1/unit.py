"""What runs around the forward and the backward of each wrapped module.

    before forward    gather (the root first of all: let cleared gradients go); parameters as views
    after forward     reshard, but the root; a hook on the outputs' gradients
    before backward   gather, if that was not begun; begin with the module that ran before this one
    after backward    once the flat gradient is there: reshard, reduce

Source: torch/distributed/fsdp/_runtime_utils.py (_pre_forward, _post_forward, _pre_backward_hook,
_post_backward_hook, _prefetch_handle); _exec_order_utils.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vrambudget.engine.autograd import Hook
from vrambudget.engine.context import context, made_for
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.ops.creation import made
from vrambudget.parallel.ddp import buffers_of
from vrambudget.parallel.fsdp1.flat import FlatParameter, FlatSettings
from vrambudget.parallel.fsdp1.moved import move_from_host
from vrambudget.parallel.fsdp2.state import tensors_of
from vrambudget.parallel.fsdp2.wrap import layers_of
from vrambudget.tape.events import Purpose
from vrambudget.training.lora import LoraLinear


@dataclass(slots=True)
class Shared:
    """What all units of a model share (_ExecOrderData)."""

    units: list[Unit] = field(default_factory=list)
    first_order: list[Unit] = field(default_factory=list)  # of the first forward
    is_first_pass: bool = True
    post_forward: list[Unit] = field(default_factory=list)
    is_queued: bool = False
    buffers: list[Tensor] = field(default_factory=list)
    inputs: dict[int, tuple[Tensor, Hook]] = field(default_factory=dict)  # leaves, by id

    def got_gradient(self, leaf: Tensor) -> None:
        """Reduce a flat gradient; reshard what waited for an input's."""
        for unit in self.units:
            if unit.flat.leaf is leaf:
                unit.post_backward(leaf)
                return
        if id(leaf) in self.inputs:
            self.inputs[id(leaf)][1]([])

    def end(self) -> None:
        """Let go what only one pass and its backward needed."""
        self.post_forward.clear()
        self.inputs.clear()
        self.is_queued = False


class Unit:
    """One FullyShardedDataParallel module."""

    def __init__(self, flat: FlatParameter, shared: Shared, *, is_root: bool) -> None:
        self.flat, self.shared, self.is_root = flat, shared, is_root
        self.in_backward = False
        self.needs_gather = False  # _needs_pre_backward_unshard
        self.was_prefetched = False
        self.place = 0  # in the order of post_forward; 0 counts as none (_ExecOrderData)

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward with what comes before and after it."""
        if self.in_backward:  # a checkpoint runs it again
            return module.forward(*args, **kwargs)
        if self.is_root:
            self._begin_pass()
        self._unshard_forward()
        self._prefetch_forward()
        if not self.flat.requires_grad and context.grad_enabled:
            self._reshard_after(args, kwargs)
        return self._post_forward(module.forward(*args, **kwargs))

    def _begin_pass(self) -> None:
        units = self.shared.units
        if self.shared.is_first_pass:
            for buffer in self.shared.buffers:
                self._cast_buffer(buffer)
            for unit in units:
                unit.flat.make_storages()
        for unit in units:
            unit.flat.forget_gradient()

    def _cast_buffer(self, buffer: Tensor) -> None:
        dtype = self.flat.settings.buffer_dtype
        if dtype is not None and buffer.dtype.is_floating_point and buffer.dtype is not dtype:
            with made_for(Purpose.WEIGHTS):
                cast = made("to_dtype", buffer.shape, dtype)
            buffer.storage, buffer.dtype = cast.storage, dtype

    def _unshard_forward(self) -> None:
        """Gather, if that was not begun, and view: a node as old as that (_unshard)."""
        if not self.was_prefetched:
            self.flat.unshard()
            self.flat.use_views()

    def _prefetch_forward(self) -> None:
        shared = self.shared
        if shared.is_first_pass:
            shared.first_order.append(self)
        elif self.flat.settings.forward_prefetch:
            following = shared.first_order.index(self) + 1
            if following < len(shared.first_order):
                unit = shared.first_order[following]
                unit._unshard_forward()  # noqa: SLF001 - of this class
                unit.was_prefetched = True

    def _reshard_after(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Reshard what is frozen once the gradients of the inputs are there."""
        wanting = [x for x in tensors_of((args, kwargs)) if x.requires_grad]
        left = len(wanting)

        def got_one(_gradients: object) -> None:
            nonlocal left
            left -= 1
            if not left:
                self.reshard()

        for x in wanting:
            if x.node is None:
                self.shared.inputs[id(x)] = x, got_one
            else:
                x.node.hooks = (*x.node.hooks, got_one)

    def _post_forward(self, output: Any) -> Any:
        self.place = self.place or len(self.shared.post_forward)
        self.shared.post_forward.append(self)
        if self.is_root:
            self.shared.is_first_pass = False
        self.was_prefetched = False
        if self.flat.settings.reshards and not self.is_root:
            self.reshard()
        if not context.grad_enabled:
            if self.is_root:  # which stays whole (_post_forward_reshard)
                self.shared.end()
            return output
        self.needs_gather = False
        for x in tensors_of(output):
            if x.requires_grad and x.node is not None:
                x.node.hooks = (*x.node.hooks, self._pre_backward)
                self.needs_gather = True
        return output

    def reshard(self) -> None:
        """Give the whole parameters back."""
        self.flat.reshard()
        self.was_prefetched = False

    def _pre_backward(self, _gradients: object) -> None:
        if self.in_backward:
            return
        self.in_backward = True
        if not self.shared.is_queued:
            self.shared.is_queued = True
            context.callbacks.append(self._final_callback)
        was_resharded = not self.flat.is_unsharded
        if not self.was_prefetched:
            self.flat.unshard()
        self.needs_gather = False
        if self.place and self.flat.settings.backward_prefetch:
            self._prefetch(self.shared.post_forward[self.place - 1])
        settings = self.flat.settings
        if settings.use_orig_params and (was_resharded or settings.reshards):
            self.flat.use_views()  # those of forward are in the graph; a checkpoint reads these

    @staticmethod
    def _prefetch(unit: Unit) -> None:
        if unit.needs_gather and not unit.was_prefetched:
            unit.flat.unshard()
            unit.was_prefetched = True

    def post_backward(self, leaf: Tensor) -> None:
        """Reshard and reduce."""
        self.reshard()
        self.flat.reduce(leaf)

    def _final_callback(self) -> None:
        for unit in self.shared.units:
            unit.reshard()
            unit.in_backward = unit.needs_gather = False
            unit.place = 0
            unit.flat.leaf = None
            unit.flat.let_gradient_go()
        self.shared.end()


def _owners(model: Module) -> dict[int, list[tuple[Module, str]]]:
    """Return the places of each parameter, by its id."""
    owners: dict[int, list[tuple[Module, str]]] = {}
    for module in model.modules():
        for name, value in module.__dict__.items():
            if isinstance(value, Parameter):
                owners.setdefault(id(value), []).append((module, name))
    return owners


def fully_shard_data_parallel(
    model: Module, settings: FlatSettings, called: Module | None = None
) -> Shared:
    """Wrap every layer, then the model (ModuleWrapPolicy). Raises NotModelledError.

    `called`: the model with a forward that a library replaced before, which the root is around.

    Where there are adapters, PEFT's policy wraps each trained layer of one weight by itself, too
    (peft/utils/other.py, fsdp_auto_wrap_policy).
    """
    if not layers_of(model):
        raise NotModelledError("FSDP 1 of a model without layers that are known is not modelled")
    owners = _owners(model)
    shared, assigned, found_units = Shared(), set[int](), dict[int, Unit]()
    shared.buffers = list(buffers_of(model))
    has_adapters = any(isinstance(module, LoraLinear) for module in model.modules())
    for module in _wrapped(model, has_adapters=has_adapters):
        found = [p for p in module.parameters() if id(p) not in assigned]
        _check(found)
        if settings.from_host:
            move_from_host(module, found_units, owners)
        places = [owners[id(p)] for p in found]
        del found
        flat = FlatParameter(places, settings)
        flat.flatten()
        if not settings.use_orig_params:
            module._flat_param = flat.shard  # type: ignore[attr-defined]  # noqa: SLF001
        assigned |= {id(p) for p in module.parameters()}
        unit = Unit(flat, shared, is_root=module is model)
        found_units[id(module)] = unit
        hooked = called if called is not None and unit.is_root else module
        hooked.hooks = unit
    shared.units = [found_units[id(m)] for m in model.modules() if id(m) in found_units]
    return shared


def _wrapped(module: Module, *, has_adapters: bool, is_root: bool = True) -> Iterator[Module]:
    """Yield what is wrapped, inner modules first (_recursive_wrap)."""
    children = [*module.children()]
    for child in children:
        yield from _wrapped(child, has_adapters=has_adapters, is_root=False)
    weight = module.__dict__.get("weight")
    is_trained = not children and isinstance(weight, Parameter) and weight.requires_grad
    is_layer = isinstance(module, Layer) and module.is_stacked
    if is_root or is_layer or (has_adapters and is_trained):
        yield module


def _check(parameters: Sequence[Parameter]) -> None:
    """Refuse what PyTorch refuses to flatten (_flat_param.py, _validate_tensors_to_flatten)."""
    if len({p.dtype for p in parameters}) > 1:
        types = " and ".join(sorted({str(p.dtype) for p in parameters}))
        raise NotModelledError(
            f"FSDP 1 flattens parameters of one type, and these are {types}",
            hint="PyTorch raises a ValueError here: load the model in one type, and leave"
            " prepare_model_for_kbit_training out",
        )
    if len({p.requires_grad for p in parameters}) > 1:
        raise NotModelledError(
            "FSDP 1 of frozen and trained parameters in one layer is not modelled",
            hint="adapters (--lora-rank) are wrapped by themselves; FSDP2 takes both together",
        )
