"""DistributedDataParallel: every rank has all weights, and its gradients a second time in buckets.

    construction    parameters and buffers are sent in flat copies of 250 MiB, two at a time; then
                    the buckets: one of all gradients, or 1 MiB and 25 MiB where every parameter may
                    be unused
    second forward  the order in which gradients arrived is sent to all ranks, the buckets are freed
                    and made anew in that order: 1 MiB, then 25 MiB, or bucket_cap_mb if it is set;
                    a bucket closes when it is full, so a large embedding makes a large bucket
    backward        gradients are copied into the buckets and back, or live there
                    (gradient_as_bucket_view)
    forward         buffers are sent from the first rank; with find_unused_parameters the outputs
                    are cloned (_DDPSink), with static_graph those of the first pass

Source: torch/nn/parallel/distributed.py; torch/csrc/distributed/c10d/reducer.cpp (rebuild_buckets,
sync_bucket_indices, compute_bucket_assignment_by_size, initialize_buckets,
mark_variable_ready_dense), comm.cpp (broadcast_coalesced).
Not modelled: communication hooks, uneven inputs (join), delay_all_reduce_named_params.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from vrambudget.dtypes import int32
from vrambudget.engine.autograd import record_many
from vrambudget.engine.context import context, made_for
from vrambudget.engine.hook_state import Value
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.tape.events import Purpose
from vrambudget.training.kbit import QuantisedLinear

_FIRST_BUCKET_BYTES = 2**20
_BUCKET_BYTES = 25 * 2**20
_BROADCAST_BYTES = 250 * 2**20
_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class DdpSettings:
    """The arguments of DistributedDataParallel that memory depends on."""

    bucket_cap_mb: int | None = None
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    find_unused_parameters: bool = False

    @property
    def limits(self) -> list[int]:
        """Bytes at which the first bucket is full, and all others."""
        if self.bucket_cap_mb is None:
            return [_FIRST_BUCKET_BYTES, _BUCKET_BYTES]
        return [self.bucket_cap_mb * 2**20]


class DistributedDataParallel(Module):
    """A model as DDP wraps it; `require_backward_grad_sync` is off inside no_sync()."""

    def __init__(self, model: Module, called: Module, settings: DdpSettings) -> None:
        self.module = called  # what its forward calls: the model, or one that is traced once
        self.settings = settings
        self.require_backward_grad_sync = True
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._buffers = list(buffers_of(model))
        self._ready: dict[int, Tensor] = {}  # parameters in the order in which gradients arrived
        self._synced = 0  # passes whose backward reduces
        self._sends_buffers = True  # require_forward_param_sync
        self._was_rebuilt = not settings.static_graph and settings.find_unused_parameters
        codes = {id(m.weight): m.codes for m in model.modules() if isinstance(m, QuantisedLinear)}
        sent = [codes.get(id(p), p) for p in model.parameters()]
        broadcast([*sent, *self._buffers])
        in_one = settings.static_graph or not settings.find_unused_parameters
        limits = [2**63] if in_one else settings.limits
        first = assigned(self._parameters, limits, in_order=False)
        self._buckets = self._made([*reversed(first)])
        if settings.find_unused_parameters or settings.static_graph:
            context.operation = "local_used_map"
            with made_for(Purpose.COMMUNICATION):
                self._used_map = empty((len(self._parameters),), int32)
        context.got_gradient = self._got_gradient
        layers = [m for m in model.modules() if isinstance(m, Layer)]
        self._layers = [_LayerGradients(layer, self._got_gradient) for layer in layers]
        self._place_of = {id(p): (a, n) for a in self._layers for n, p in enumerate(a.gathered())}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model."""
        if context.grad_enabled:
            self._rebuild_buckets()
        if self._buffers and self._sends_buffers:
            broadcast(self._buffers)
        for layer in self._layers:
            layer.arrived.clear()
        output = self.module(*args, **kwargs)
        self._sends_buffers = context.grad_enabled and self.require_backward_grad_sync
        if not self._sends_buffers:
            return output
        is_first, self._synced = not self._synced, self._synced + 1
        static = self.settings.static_graph
        sinks = is_first if static else self.settings.find_unused_parameters
        return _sunk(output) if sinks else output

    def _rebuild_buckets(self) -> None:
        """Make the buckets anew, once, in the order in which gradients arrived.

        The first pass of a static graph only counts gradients.
        """
        if self._was_rebuilt or self._synced < (2 if self.settings.static_graph else 1):
            return
        self._was_rebuilt = True
        rebuilt = assigned([*self._ready.values()], self.settings.limits, in_order=True)
        with made_for(Purpose.COMMUNICATION):
            context.operation = "sync_bucket_indices"
            indices = empty((len(self._ready) + 1,), int32)
            sizes = empty((len(rebuilt),), int32)
            del sizes, indices
        self._ready.clear()
        self._buckets = {}
        self._buckets = self._made(rebuilt)

    def _made(self, buckets: Sequence[Sequence[Tensor]]) -> dict[int, Tensor]:
        """Allocate the buckets; return each parameter's.

        Gradients that are there move into them, if they live in buckets (initialize_bucket_views).
        """
        made: dict[int, Tensor] = {}
        purpose = (
            Purpose.GRADIENTS if self.settings.gradient_as_bucket_view else Purpose.COMMUNICATION
        )
        for bucket in buckets:
            context.operation = "bucket"
            with made_for(purpose):
                flat = empty((sum(x.numel for x in bucket),), bucket[0].dtype)
            made |= {id(parameter): flat for parameter in bucket}
            for parameter in bucket:
                if parameter.grad is not None and self.settings.gradient_as_bucket_view:
                    self._let_live(parameter, flat)
        return made

    def _got_gradient(self, leaf: Tensor) -> None:
        """autograd_hook: note the order, and let the gradient live in its bucket."""
        if id(leaf) not in self._buckets:
            return
        if id(leaf) in self._place_of:
            layer, number = self._place_of[id(leaf)]
            layer.arrived.append(number)
        if not self._was_rebuilt:
            self._ready.setdefault(id(leaf), leaf)
        if self.settings.gradient_as_bucket_view and self.require_backward_grad_sync:
            self._let_live(leaf, self._buckets[id(leaf)])

    @staticmethod
    def _let_live(leaf: Tensor, bucket: Tensor) -> None:
        leaf.grad = Tensor(leaf.shape, leaf.dtype, bucket.storage)


class _LayerGradients:
    """`engine.hook_state.LayerHooks` of a layer: in which order its gradients have arrived."""

    def __init__(self, layer: Layer, got_gradient: Callable[[Tensor], None]) -> None:
        self._parameters, self._got_gradient = layer.parameters(), got_gradient
        self.arrived: list[int] = []  # numbers of parameters
        layer.hook_state = self

    def state(self) -> tuple[Any, ...]:
        """Return what has arrived in this pass."""
        return tuple(self.arrived)

    def held(self) -> list[Value]:
        """Return nothing: buckets are there all the time."""
        return []

    def gathered(self) -> Sequence[Parameter]:
        """Return the layer's parameters."""
        return self._parameters

    def forward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Value]) -> None:
        """Return to the state before backward: no gradient arrives in a forward pass."""

    def backward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Value]) -> None:
        """Take the gradients as they arrived in the layer that was copied."""
        del held
        for number in state:
            self._got_gradient(self._parameters[number])


def assigned(
    tensors: Sequence[Tensor], limits: Sequence[int], *, in_order: bool
) -> list[list[Tensor]]:
    """Return buckets of tensors of one type, closed when they reach their limit.

    `in_order`: as the tensors are given; else buckets are sorted by their first tensor.
    """
    open_buckets: dict[Any, list[Tensor]] = {}
    filled = Counter[Any]()  # bytes in them
    limit_of: dict[Any, int] = {}
    closed: list[list[Tensor]] = []
    for x in tensors:
        bucket = open_buckets.setdefault(x.dtype, [])
        bucket.append(x)
        place = limit_of.setdefault(x.dtype, 0)
        filled[x.dtype] += x.numel * x.dtype.itemsize
        if filled[x.dtype] >= limits[place]:
            closed.append(bucket)
            del open_buckets[x.dtype], filled[x.dtype]
            limit_of[x.dtype] = min(place + 1, len(limits) - 1)
    closed += open_buckets.values()
    if in_order:
        return closed
    numbers = {id(x): n for n, x in enumerate(tensors)}
    return sorted(closed, key=lambda bucket: min(numbers[id(x)] for x in bucket))


def broadcast(tensors: Sequence[Tensor]) -> None:
    """Send tensors in flat copies; one tensor alone is sent as it is (broadcast_coalesced)."""
    in_flight: list[Tensor | None] = []
    for bucket in assigned(tensors, [_BROADCAST_BYTES], in_order=False):
        if len(in_flight) >= _IN_FLIGHT:
            in_flight.pop(0)
        context.operation = "flatten_dense_tensors"
        with made_for(Purpose.COMMUNICATION):
            elements = sum(x.numel for x in bucket)
            flat = empty((elements,), bucket[0].dtype) if len(bucket) > 1 else None
        in_flight.append(flat)
        del flat


def buffers_of(model: Module) -> Iterator[Tensor]:
    """Yield a model's buffers: tensors that it holds and does not train."""
    for module in model.modules():
        for value in module.__dict__.values():
            if isinstance(value, Tensor) and not isinstance(value, Parameter):
                yield value


def _sunk(output: Any) -> Any:
    """Pass outputs through _DDPSink, which clones them; those without a gradient stay."""
    if not is_dataclass(output) or isinstance(output, type):
        return output
    names = [f.name for f in fields(output) if isinstance(getattr(output, f.name), Tensor)]
    inputs: list[Tensor] = [getattr(output, name) for name in names]
    clones = []
    for x in inputs:
        context.operation = "clone"
        with made_for(x.storage.purpose):
            clones.append(empty_like(x))
    record_many("DDPSink", clones, inputs=inputs, backward=lambda *grads: grads)
    pairs = zip(names, inputs, clones, strict=True)
    kept = {name: clone if x.requires_grad else x for name, x, clone in pairs}
    changed: Any = replace(output, **kept)
    return changed
