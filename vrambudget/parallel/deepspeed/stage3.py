"""ZeRO 3: one rank's parts of weights, gradients and states.

    at rest    parts of all weights in one flat tensor [n / W], float32 masters [n / W], states of
               those, a bucket for gradients of reduce_bucket_size elements, the gradients' parts
               [n / W]; from the first step on parameters of param_persistence_threshold elements
               or less are whole
    backward   gradients are copied into the bucket, on the reduce stream; once it is full they are
               joined, rank by rank and padded, and reduced; the rank's parts are copied or added
    step       by sub-groups of sub_group_size elements: the parts flat, then as float32; states

Source: deepspeed/runtime/zero/stage3.py (DeepSpeedZeroOptimizer_Stage3);
runtime/comm/coalesced_collectives.py (reduce_scatter_coalesced).
Not modelled: other types to send or to accumulate in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from vrambudget.dtypes import bool_, float16, float32, float64, uint8
from vrambudget.engine.context import context, made_for, on_meta, on_stream
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty_like
from vrambudget.ops.creation import made
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.host_gradients import HostGradients, release
from vrambudget.parallel.deepspeed.norms import joined_norm, norm_of_norms, scale_and_clip
from vrambudget.parallel.deepspeed.parameter_offload import ZeroOffload
from vrambudget.parallel.deepspeed.partition_parameters import REDUCE_STREAM, ZeroParameter
from vrambudget.parallel.host import held_bytes
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase
from vrambudget.training.optimizer_base import Optimizer


@dataclass(slots=True)
class SubGroup:
    """Parameters that are stepped together, and the float32 copy of their parts."""

    parameters: list[ZeroParameter]
    master: Parameter
    optimizer: Optimizer


class DeepSpeedZeroOptimizerStage3:
    """DeepSpeedZeroOptimizer_Stage3; `converted`: parameters that zero.Init has cut already."""

    def __init__(
        self,
        model: Module,
        groups: Sequence[Sequence[Parameter]],
        config: ZeroConfig,
        make: Callable[[Sequence[Parameter]], Optimizer],
        converted: Mapping[int, ZeroParameter],
    ) -> None:
        self.config, self.is_boundary = config, True
        self.offload = ZeroOffload(model, config, converted)
        of = self.offload.of
        self._trained = [of[id(p)] for group in groups for p in group]
        self._stream = REDUCE_STREAM if config.overlap_comm else 0
        self._waiting: list[ZeroParameter] = []  # the bucket's
        self._elements = 0
        self.offloaded = HostGradients(config) if config.offload_optimizer else None
        with self._place():
            self._overflow = made("inf_or_nan_tracker", (1,), bool_)
        self._lp_param_buffer: Tensor | None = None
        if not config.offload_param:
            self._defragment()
        self.sub_groups = self._sub_groups([[of[id(p)] for p in group] for group in groups], make)
        self._make_buffers()
        for p in self._trained:  # create_reduce_and_remove_grad_hooks
            p.all_gather()
            p.partition()
        context.got_gradient = self._reduce_and_remove

    def _defragment(self) -> None:
        """Move the parts into one flat tensor, by way of main memory."""
        for p in self._trained:
            p.ds_tensor = None
        context.tape.mark(0, Phase.BUILD, resets_allocator=True)  # empty_cache()
        elements = sum(p.partition_numel for p in self._trained)
        with made_for(Purpose.WEIGHTS):
            self._lp_param_buffer = made("lp_param_buffer", (elements,), self.config.dtype)

    def _sub_groups(
        self,
        groups: Sequence[Sequence[ZeroParameter]],
        make: Callable[[Sequence[Parameter]], Optimizer],
    ) -> list[SubGroup]:
        found = list[SubGroup]()
        converted: Tensor | None = None
        for parameters in (part for group in groups for part in self._divided(group)):
            shape = (sum(p.partition_numel for p in parameters),)
            with made_for(Purpose.OPTIMIZER_STATES), self._place():
                if self.config.dtype is not float32:
                    converted = made("to_device", shape, float32)
                master = Parameter(shape, float32)
            master.storage.purpose = Purpose.OPTIMIZER_STATES
            found.append(SubGroup(parameters, master, make([master])))
        del converted
        return found

    def _place(self) -> AbstractContextManager[None]:
        """Return where masters and their gradients lie."""
        return on_meta() if self.offloaded else nullcontext()

    def _divided(self, parameters: Sequence[ZeroParameter]) -> list[list[ZeroParameter]]:
        """Cut a group of parameters where it has sub_group_size elements of the rank's."""
        size = self.config.sub_group_size
        parts: list[list[ZeroParameter]] = [[]]
        for p in parameters:
            if sum(q.partition_numel for q in parts[-1]) >= size:
                parts.append([])
            parts[-1].append(p)
        return parts

    def _make_buffers(self) -> None:
        """Make what gradients lie in; the optimizer's own, for a moment, first."""
        largest = max(group.master.numel for group in self.sub_groups)
        with made_for(Purpose.GRADIENTS), self._place():
            made("gradient_buffer", (largest,), float32)
        dtype = self.config.dtype
        if self.config.contiguous_gradients:
            with made_for(Purpose.COMMUNICATION):
                self._buffer = made("ipg_buffer", (self.config.reduce_bucket_size,), dtype)
        elements = sum(p.partition_numel for p in self._trained)
        with made_for(Purpose.GRADIENTS), self._place():
            self._flat_gradients = made("grad_partitions_flat_buffer", (elements,), dtype)

    def _reduce_and_remove(self, leaf: Tensor) -> None:
        """Put a gradient into the bucket; first reduce what is there, if it would not fit."""
        p = self.offload.of.get(id(leaf))
        if p is None:
            return
        bucket_size = self.config.reduce_bucket_size
        if self._elements + p.numel > bucket_size and self._elements:
            self._reduce_and_partition()
        assert leaf.grad is not None  # noqa: S101 - its hook is called with one
        if self.config.contiguous_gradients and self._elements + p.numel <= bucket_size:
            leaf.grad.storage.record_stream(self._stream)
            leaf.grad = Tensor(leaf.shape, leaf.dtype, self._buffer.storage)
        self._waiting.append(p)
        self._elements += p.numel

    def _reduce_and_partition(self) -> None:
        """Reduce what is in the bucket (__reduce_and_partition_ipg_grads)."""
        if not self._waiting:
            return
        with on_stream(self._stream), made_for(Purpose.COMMUNICATION):
            fits = self._elements <= self.config.reduce_bucket_size
            if self.config.contiguous_gradients and fits and not self.config.reduce_scatter:
                partitions = self._all_reduced()
            else:
                self._waiting.sort(key=lambda p: p.ds_id)
                partitions = self._reduce_scattered()
            if self.offloaded is not None:
                self.offloaded.move(self._waiting, is_boundary=self.is_boundary)
            else:
                for p in self._waiting:
                    release(p)
            del partitions
        self._waiting.clear()
        self._elements = 0

    def _all_reduced(self) -> list[Tensor]:
        """Return all gradients, scaled, and the padded parts (__avg_scatter_contiguous_grads)."""
        dtype = self.config.dtype
        found = [made("mul", (self._elements,), dtype)]
        found += [
            made("zeros", (p.partition_numel,), dtype)
            for p in self._waiting
            if p.own_numel() != p.partition_numel
        ]
        return found

    def _reduce_scattered(self) -> list[Tensor]:
        """Return gradients joined rank by rank; one that is even is sent where it lies."""
        dtype, size = self.config.dtype, self.config.group.size
        if len(self._waiting) == 1 and self._waiting[0].numel % size == 0:
            return []
        paddings = list[Tensor]()
        for rank in range(size):
            for p in self._waiting:
                missing = p.partition_numel - max(
                    0, min(p.partition_numel, p.numel - rank * p.partition_numel)
                )
                if missing:
                    paddings.append(made("empty", (missing,), dtype))
        elements = size * sum(p.partition_numel for p in self._waiting)
        flat = made("cat", (elements,), dtype)
        del paddings
        return [flat]

    def backward_epilogue(self) -> None:
        """Reduce what is left."""
        self._reduce_and_partition()
        if self.offloaded is not None:
            self.offloaded.backward_is_over()
        if self.config.is_0_19:
            self.offload.coordinator.release_backward_leftovers()

    def step(self) -> Tensor:
        """Step all sub-groups, then gather what persists."""
        self.offload.coordinator.release_and_reset_all(self.offload.parameters)
        if self.config.dtype is float16:
            self._look_for_overflow()
        global_norm = self._step_on_host() if self.offloaded else self._step()
        for p in self.offload.persistent:
            p.all_gather()
        return global_norm

    def _step(self) -> Tensor:
        norms = [self._norm(group) for group in self.sub_groups]
        total_norm = norm_of_norms(norms, screened=self.config.is_0_19)
        del norms
        global_norm = made("div", (), total_norm.dtype)
        for group in self.sub_groups:
            self._step_group(group)
        return global_norm

    def _step_on_host(self) -> Tensor:
        assert self.offloaded is not None  # noqa: S101 - the caller looked
        for group in self.sub_groups:
            self.offloaded.norm(group.parameters)
        with on_meta():
            global_norm = made("div", (), float32)
            for group in self.sub_groups:
                group.optimizer.step()
        self.offloaded.clear()
        return global_norm

    def host_bytes(self, states: int) -> int:
        """Return what lies in main memory."""
        itemsize, pinned = self.config.dtype.itemsize, self.config.pin_memory
        flat = sum(p.partition_numel for p in self._trained) * itemsize
        found = held_bytes([flat], pinned=True) if self.config.offload_param else 0
        if self.offloaded is not None:
            masters = [4 * group.master.numel for group in self.sub_groups]
            found += held_bytes([flat, *masters], pinned=pinned) + sum(masters) * (1 + states)
        return found

    def _norm(self, group: SubGroup) -> Tensor:
        dtype, storage = self.config.dtype, self._flat_gradients.storage
        return joined_norm([Tensor((p.partition_numel,), dtype, storage) for p in group.parameters])

    def _look_for_overflow(self) -> None:
        """Look at all gradients at once, on the reduce stream (has_overflow)."""
        x = self._flat_gradients
        with on_stream(self._stream):
            for name in ("isinf", "isnan"):
                size = made("abs", x.shape, x.dtype) if name == "isinf" else None
                found = made(name, x.shape, bool_)
                del size
                either = made("any", (), bool_)
                del found, either
            copy = made("clone", (1,), bool_)
            overflow = made("to_dtype", (1,), uint8)
            del copy, overflow

    def _step_group(self, group: SubGroup) -> None:
        with made_for(Purpose.GRADIENTS):
            flat: Tensor | None = None
            if len(group.parameters) > 1:
                flat = made("flatten", group.master.shape, self.config.dtype)
            gradient = flat
            if self.config.dtype is not float32 or gradient is None:
                context.operation = "to_dtype"
                gradient = empty_like(group.master)
            del flat
        group.master.grad = gradient
        scale_and_clip(float64, clips=self.config.clips)
        group.optimizer.step()
        group.master.grad = None
        del gradient
