"""ZeRO 1 and 2: one rank's optimizer states, and with stage 2 its gradients.

    at rest    flat weights [A], float32 masters [A / W], the optimizer's states of those
    backward   at the first gradient buckets of reduce_bucket_size elements, two with overlap_comm;
               gradients are copied into one and die. Once it is full: its slices are flattened,
               one for each rank that has some, and reduced; then gradients of the rank's own
               parameters are copied into a buffer of all of them. Stage 1 does all of this at the
               end of a step's last backward, and keeps gradients until then
    step       the rank's part of the gradients, flat, then as float32; states; weights in place

Source: deepspeed/runtime/zero/stage_1_and_2.py (DeepSpeedZeroOptimizer).
Not modelled: round_robin_gradients, experts, other types to send or to accumulate in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

from vrambudget.dtypes import float32
from vrambudget.engine.context import context, made_for, on_meta, on_stream
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.ops.creation import made
from vrambudget.parallel.deepspeed.config import ZeroConfig
from vrambudget.parallel.deepspeed.engine import quotient
from vrambudget.parallel.deepspeed.gradient_offload import GradientOffload
from vrambudget.parallel.deepspeed.norms import (
    group_norm,
    look_for_overflow,
    norm_of_norms,
    scale_and_clip,
)
from vrambudget.parallel.deepspeed.partition import Bucket, Partition, Slice, joined, partition
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase
from vrambudget.training.optimizer_base import Optimizer

_REDUCTION_STREAM = 1


@dataclass(slots=True)
class ParameterGroup:
    """One parameter group, of which the rank has a partition."""

    partition: Partition
    flat: Tensor  # bit16_groups_flat
    master: Parameter  # single_partition_of_fp32_groups
    optimizer: Optimizer
    all_grads: list[Tensor] | None = None
    averaged: list[Tensor] = field(default_factory=list)


class DeepSpeedZeroOptimizer:
    """The optimizer of stages 1 and 2 over groups of a model's parameters."""

    def __init__(
        self,
        groups: Sequence[Sequence[Parameter]],
        config: ZeroConfig,
        make: Callable[[Sequence[Parameter]], Optimizer],
    ) -> None:
        self.config, self.is_boundary = config, True
        self.partitions_gradients = config.stage == 2  # noqa: PLR2004 - a stage
        self.groups = [self._group(parameters, make) for parameters in groups]
        self._group_of = {id(p): i for i, group in enumerate(groups) for p in group}
        self._own = {id(p) for group in self.groups for p in group.partition.own}
        self.bucket = Bucket()
        self._previous: list[Parameter] = []  # previous_reduced_grads
        self._grads_in_partition: Tensor | None = None
        self._offset = 0
        self._is_ready = False  # ready_for_gradients
        self._global_grad_norm: Tensor | None = None
        self.offload: GradientOffload | None = None
        if config.offload_optimizer:
            self.offload = GradientOffload([group.partition for group in self.groups], config)
        else:
            self._initialize_optimizer_states()
        if self.partitions_gradients or config.overlap_comm or config.contiguous_gradients:
            context.got_gradient = self._grad_handling_hook

    def _initialize_optimizer_states(self) -> None:
        with made_for(Purpose.GRADIENTS):
            for each in self.groups:
                each.master.grad = made("zeros", (each.partition.size,), float32)
        for each in self.groups:
            each.master.grad = None

    def _group(
        self, parameters: Sequence[Parameter], make: Callable[[Sequence[Parameter]], Optimizer]
    ) -> ParameterGroup:
        """Flatten a group's parameters; keep float32 copies of the rank's part."""
        part, dtype = partition(parameters, self.config.group), self.config.dtype
        context.tape.mark(0, Phase.BUILD, resets_allocator=True)  # empty_cache()
        with made_for(Purpose.WEIGHTS):
            pad = made("zeros", (part.padding,), dtype) if part.padding else None
            flat = made("flatten", (part.size * self.config.group.size,), dtype)
            del pad
        for p in parameters:
            p.storage = flat.storage
        with made_for(Purpose.OPTIMIZER_STATES):
            context.operation = "clone"
            own = empty((part.size,), dtype)
            context.operation = "fp32_partition"
            with on_meta() if self.config.offload_optimizer else nullcontext():
                own_too = dtype is float32 and not self.config.offload_optimizer
                master = own if own_too else empty((part.size,), float32)
            del own
        kept = Parameter.__new__(Parameter)
        Tensor.__init__(kept, master.shape, master.dtype, master.storage)
        kept.requires_grad = True
        return ParameterGroup(part, flat, kept, make([kept]))

    def _grad_handling_hook(self, leaf: Tensor) -> None:
        """Take a gradient once it is there: process_gradients."""
        if not isinstance(leaf, Parameter) or id(leaf) not in self._group_of:
            return
        self._setup_buckets()
        if self.partitions_gradients or self.config.overlap_comm:
            self._reduce_ready(leaf)

    def _setup_buckets(self) -> None:
        if self._is_ready:
            return
        self._is_ready = True
        if not self.config.contiguous_gradients:
            return
        self.bucket.buffers.clear()
        self.bucket.index = 0
        for _ in range(2 if self.config.overlap_comm else 1):
            with made_for(Purpose.COMMUNICATION):
                size = (self.config.reduce_bucket_size,)
                self.bucket.buffers.append(made("ipg_buffer", size, self.config.dtype))

    def _reduce_ready(self, p: Parameter) -> None:
        """reduce_independent_p_g_buckets_and_remove_grads."""
        if not (self.partitions_gradients or self.is_boundary):
            return
        config, bucket = self.config, self.bucket
        if bucket.elements + p.numel > config.reduce_bucket_size:
            self._reduce_ipg_grads()
            if config.contiguous_gradients and config.overlap_comm:
                bucket.index = 1 - bucket.index
        assert p.grad is not None  # noqa: S101 - the hook is called with one
        if config.contiguous_gradients:
            if p.numel > config.reduce_bucket_size:
                bucket.extra_large = True
                if self.offload is not None and config.is_0_19:
                    context.operation = "clone"
                    p.grad = empty_like(p.grad)
            else:
                p.grad = Tensor(p.shape, p.dtype, bucket.buffers[bucket.index].storage)
        bucket.elements += p.numel
        bucket.grads.append(p.grad)
        bucket.entries.append((self._group_of[id(p)], p))

    def _reduce_ipg_grads(self) -> None:
        """Reduce a bucket, and keep of it what is the rank's."""
        overlaps, bucket = self.config.overlap_comm, self.bucket
        with on_stream(_REDUCTION_STREAM if overlaps else context.stream):
            if self.config.contiguous_gradients:
                self._average()
            elif bucket.grads:
                if overlaps:
                    self._clear_previous()
                self._flattened([x.numel for x in bucket.grads])
            for _, p in bucket.entries:
                if id(p) in self._own:
                    self._copy_grads_in_partition(p)
                elif self.partitions_gradients:
                    if overlaps and not self.config.contiguous_gradients:
                        self._previous.append(p)
                    else:
                        p.grad = None
            bucket.clear()

    def _average(self) -> None:
        """Send a bucket's slices, no more at a time than a bucket has room for (average_tensor)."""
        if not self.config.reduce_scatter:
            return
        each = [slice_ for i, p in self.bucket.entries for slice_ in self._slices_of(i, p)]
        small_bucket = list[int]()
        for _, numel in joined(each):
            small_bucket.append(numel)
            if sum(small_bucket) > self.config.reduce_bucket_size:
                self._flattened(small_bucket)
                small_bucket = []
        self._flattened(small_bucket)

    def _slices_of(self, group: int, p: Parameter) -> Sequence[Slice]:
        return self.groups[group].partition.slices_of(p)

    def _flattened(self, elements: Sequence[int]) -> None:
        """Flatten tensors for an all-reduce; one alone is sent as it is."""
        if len(elements) > 1:
            with made_for(Purpose.COMMUNICATION):
                made("flatten", (sum(elements),), self.config.dtype)

    def _clear_previous(self) -> None:
        for p in self._previous:
            p.grad = None
        self._previous.clear()

    def _copy_grads_in_partition(self, p: Parameter) -> None:
        """Move a gradient into the buffer of all of the rank's parameters, or to main memory."""
        if self.offload is not None:
            if self.is_boundary:
                self.offload.send(p)
            return
        if not self.config.contiguous_gradients:
            return
        if self._grads_in_partition is None:
            total = sum(own.numel for group in self.groups for own in group.partition.own)
            with made_for(Purpose.GRADIENTS):
                self._grads_in_partition = made("grads_in_partition", (total,), self.config.dtype)
        p.grad = Tensor(p.shape, p.dtype, self._grads_in_partition.storage)

    def backward_epilogue(self) -> None:
        """Reduce what was not reduced yet: the engine's allreduce_gradients."""
        if self.partitions_gradients:
            self._epilogue()
        elif self.is_boundary:
            if not self.config.overlap_comm:
                for group in self.groups:
                    for p in group.partition.parameters:
                        if p.grad is not None:
                            self._reduce_ready(p)
            self._epilogue()

    def _epilogue(self) -> None:
        """independent_gradient_partition_epilogue."""
        self._reduce_ipg_grads()
        self._clear_previous()
        for group in self.groups if self.offload is None else ():
            new = [_gradient_of(p) for p in group.partition.own]
            if group.all_grads is None:
                group.all_grads = new  # else they are added to those, in place
            if self.is_boundary:
                group.averaged = self._flat_partition(group)
                group.all_grads = None
            del new
        self.bucket.buffers.clear()
        self._grads_in_partition = None
        self._is_ready = False
        for group in self.groups:
            for p in group.partition.parameters:
                p.grad = None

    def _flat_partition(self, group: ParameterGroup) -> list[Tensor]:
        """Return views of the rank's part of its gradients, and what pads the last."""
        part, dtype = group.partition, self.config.dtype
        assert group.all_grads is not None  # noqa: S101 - the caller set them
        if not part.own:
            return [made("zeros", (part.size,), dtype)]
        elements = part.own_elements()
        flat = [
            x if n == x.numel else Tensor((n,), dtype, x.storage)
            for n, x in zip(elements, group.all_grads, strict=True)
        ]
        if sum(elements) < part.size:
            flat.append(made("zeros", (part.size - sum(elements),), dtype))
        return flat

    def step(self) -> Tensor:
        """Step all groups."""
        if self.offload is not None:
            return self._step_on_host(self.offload)
        if self.config.looks_for_overflow:
            gradients = [x for group in self.groups for x in group.averaged]
            look_for_overflow(gradients, by_extremes=self.config.is_0_19)
            del gradients
        norms = [group_norm(g.averaged[: max(1, len(g.partition.own))]) for g in self.groups]
        total_norm = norm_of_norms(norms, screened=self.config.is_0_19)
        del norms
        self._global_grad_norm = quotient()
        for group in self.groups:
            self._step_group(group)
        del total_norm
        return self._global_grad_norm

    def host_bytes(self, states: int) -> int:
        """Return what lies in main memory."""
        if self.offload is None:
            return 0
        return self.offload.host_bytes([group.partition.size for group in self.groups], states)

    def _step_on_host(self, offload: GradientOffload) -> Tensor:
        """Step masters in main memory; what is copied back goes where the weights are."""
        offload.norm()
        with on_meta():
            self._global_grad_norm = quotient()
            for group in self.groups:
                group.optimizer.step()
        offload.clear()
        return self._global_grad_norm

    def _step_group(self, group: ParameterGroup) -> None:
        with made_for(Purpose.GRADIENTS):
            flat = group.averaged[0]
            if len(group.averaged) > 1:
                flat = made("flatten", (group.partition.size,), self.config.dtype)
            gradient = flat
            if self.config.dtype is not float32:
                context.operation = "to_dtype"
                gradient = empty_like(flat, float32)
            del flat
        group.master.grad = gradient
        group.averaged = []
        scale_and_clip(float32, clips=self.config.clips)
        group.optimizer.step()
        group.master.grad = None
        del gradient


def _gradient_of(p: Parameter) -> Tensor:
    """Return a gradient; zeros for a parameter that got none."""
    return p.grad if p.grad is not None else made("zeros_like", p.shape, p.dtype)
