"""What runs around the forward and the backward of each wrapped module.

    before forward    gather (the root first of all: let cleared gradients go); parameters as views
    after forward     reshard, but the root; a hook on the outputs' gradients
    before backward   gather, if that was not begun; begin with the module that ran before this one
    after backward    once the flat gradient is there: reshard, reduce

Source: torch/distributed/fsdp/_runtime_utils.py (_pre_forward, _post_forward, _pre_backward_hook,
_post_backward_hook, _prefetch_handle); _exec_order_utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vrambudget.engine.alike import Layer
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.parallel.fsdp1.flat import FlatParameter, FlatSettings
from vrambudget.parallel.fsdp2.state import tensors_of
from vrambudget.parallel.fsdp2.wrap import layers_of


@dataclass(slots=True)
class Shared:
    """What all units of a model share (_ExecOrderData)."""

    units: list[Unit] = field(default_factory=list)
    first_order: list[Unit] = field(default_factory=list)  # of the first forward
    is_first_pass: bool = True
    post_forward: list[Unit] = field(default_factory=list)
    is_queued: bool = False


class Unit:
    """One FullyShardedDataParallel module."""

    def __init__(self, flat: FlatParameter, shared: Shared, *, is_root: bool) -> None:
        self.flat, self.shared, self.is_root = flat, shared, is_root
        self.in_backward = False
        self.place = 0  # in the order of post_forward

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a module's forward with what comes before and after it."""
        if self.in_backward:  # a checkpoint runs it again
            return module.forward(*args, **kwargs)
        if self.is_root:
            self._begin_pass()
        self.flat.unshard()
        self._prefetch_forward()
        self.flat.use_views()
        return self._post_forward(module.forward(*args, **kwargs))

    def _begin_pass(self) -> None:
        units = self.shared.units
        if self.shared.is_first_pass:
            for unit in (self, *(unit for unit in units if unit is not self)):
                unit.flat.make_storages()
        for unit in units:
            unit.flat.forget_gradient()

    def _prefetch_forward(self) -> None:
        shared = self.shared
        if shared.is_first_pass:
            shared.first_order.append(self)
        elif self.flat.settings.forward_prefetch:
            following = shared.first_order.index(self) + 1
            if following < len(shared.first_order):
                shared.first_order[following].flat.unshard()

    def _post_forward(self, output: Any) -> Any:
        self.place = len(self.shared.post_forward)
        self.shared.post_forward.append(self)
        if self.is_root:
            self.shared.is_first_pass = False
        if self.flat.settings.reshards and not self.is_root:
            self.flat.reshard()
        if not context.grad_enabled:
            self._end(output)
            return output
        for x in tensors_of(output):
            if x.requires_grad and x.node is not None:
                x.node.hooks = (*x.node.hooks, self._pre_backward)
        return output

    def _end(self, output: Any) -> None:
        """Let a pass without backward end: the root reshards, too."""
        del output
        if self.is_root:
            for unit in self.shared.units:
                unit.flat.reshard()
            self.shared.post_forward.clear()

    def _pre_backward(self, _gradients: object) -> None:
        if self.in_backward:
            return
        self.in_backward = True
        if not self.shared.is_queued:
            self.shared.is_queued = True
            context.callbacks.append(self._final_callback)
        was_resharded = not self.flat.is_unsharded
        leaf = self.flat.leaf
        self.flat.unshard()
        if self.place:
            self.shared.post_forward[self.place - 1].flat.unshard()
        if was_resharded or self.flat.settings.reshards:
            self.flat.use_views()  # those of forward are in the graph; a checkpoint reads these
            self.flat.leaf = leaf

    def post_backward(self, leaf: Tensor) -> None:
        """Reshard and reduce."""
        self.flat.reshard()
        self.flat.reduce(leaf)

    def _final_callback(self) -> None:
        for unit in self.shared.units:
            unit.in_backward = False
            unit.flat.leaf = None
        self.shared.post_forward.clear()
        self.shared.is_queued = False


def _owners(model: Module) -> dict[int, list[tuple[Module, str]]]:
    """Return the places of each parameter, by its id."""
    owners: dict[int, list[tuple[Module, str]]] = {}
    for module in model.modules():
        for name, value in module.__dict__.items():
            if isinstance(value, Parameter):
                owners.setdefault(id(value), []).append((module, name))
    return owners


def fully_shard_data_parallel(model: Module, settings: FlatSettings) -> None:
    """Wrap every layer, then the model (ModuleWrapPolicy). Raises NotModelledError."""
    layers: Sequence[Layer] = layers_of(model)
    if not layers:
        raise NotModelledError("FSDP 1 of a model without layers that are known is not modelled")
    owners = _owners(model)
    shared, taken = Shared(), set[int]()
    for module in (*layers, model):
        found = [p for p in module.parameters() if id(p) not in taken]
        if len({(p.dtype, p.requires_grad) for p in found}) > 1 or not found[0].requires_grad:
            raise NotModelledError("FSDP 1 of frozen parameters or several types is not modelled")
        places = [owners[id(p)] for p in found]
        del found
        flat = FlatParameter(places, settings)
        flat.flatten()
        if not settings.use_orig_params:
            module._flat_param = flat.shard  # type: ignore[attr-defined]  # noqa: SLF001
        taken |= {id(p) for p in module.parameters()}
        unit = Unit(flat, shared, is_root=module is model)
        module.hooks = unit
        shared.units.append(unit)

    def got_gradient(leaf: Tensor) -> None:
        for unit in shared.units:
            if unit.flat.leaf is leaf:
                unit.post_backward(leaf)
                return

    context.got_gradient = got_gradient
