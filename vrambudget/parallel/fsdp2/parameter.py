"""One parameter of FSDP2: its shard, and the whole of it while it is gathered.

    data        [ceil(rows / W) x rest]   every rank's, padded, in the original type
    sharded     the rows of it that this rank has: what the optimizer steps
    gathered    [W x padded rows x rest] in param_dtype: freed and filled again, its storage stays
    unsharded   the parameter that the module computes with, a view of `gathered`

Source: torch/distributed/fsdp/_fully_shard/_fsdp_param.py (FSDPParam).
Not modelled: shards along other dimensions (shard_placement_fn), extensions (float8).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, TypeVar

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty_like, numel
from vrambudget.engine.versions import torch_since
from vrambudget.parallel.dtensor import (
    Placement,
    ShardedTensorParameter,
    as_it_lies,
    placement_of,
)
from vrambudget.parallel.group import Group
from vrambudget.parallel.meta import allocated
from vrambudget.tape.events import Purpose, Storage
from vrambudget.training.kbit import QuantisedLinear

PLACES = 5
"""Of what a parameter holds besides its shard: `ShardedParameter.held`."""


class ShardedState(Enum):
    """Which of its tensors a module has as its parameter."""

    SHARDED = auto()
    SHARDED_POST_FORWARD = auto()
    UNSHARDED = auto()


@dataclass(frozen=True, slots=True)
class Policies:
    """MixedPrecisionPolicy and OffloadPolicy of fully_shard."""

    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    output_dtype: DType | None = None
    cast_forward_inputs: bool = True
    offload: bool = False


class ShardedParameter:
    """FSDPParam: a parameter, the modules that have it, and the group that shares it."""

    def __init__(
        self,
        owners: Sequence[tuple[Module, str]],
        group: Group,
        post_forward: Group | None,
        policies: Policies,
    ) -> None:
        self.owners, self.group, self.post_forward = owners, group, post_forward
        module, name = owners[0]
        whole: Parameter = getattr(module, name)
        self.shape, self.orig_dtype = whole.shape, whole.dtype
        self.offload = policies.offload
        self.param_dtype = policies.param_dtype
        self.reduce_dtype = policies.reduce_dtype
        if torch_since(2, 15):
            self.reduce_dtype = self.reduce_dtype or self.orig_dtype  # unsharded_grad_dtype
        elif self.reduce_dtype is self.param_dtype:  # init_dtype_attrs
            self.reduce_dtype = None
        if self.param_dtype is self.orig_dtype:
            self.param_dtype = None
        rows, *rest = self.shape
        self.sharded_shape = (group.local(rows), *rest)
        self.padded_numel: int = group.padded(rows) * numel(tuple(rest))
        self.sharded = _parameter(
            ShardedTensorParameter, self.sharded_shape, self.orig_dtype, whole.storage
        )
        is_cut = isinstance(whole, ShardedTensorParameter)  # tensor parallel
        self.gradient = placement_of(whole).gradient
        self.sharded.placement = Placement(
            is_replicated=self.gradient == "partial", dimensions=1 + is_cut
        )
        self.sharded.requires_grad = whole.requires_grad
        self.set_on_modules(self.sharded)
        self.data: Storage | None = None  # of `sharded`; None: in main memory
        self.post_forward_data: Storage | None = None
        self.gathered: Storage | None = None
        self._unsharded: UnshardedParameter | None = None
        self.accumulated_grad: Tensor | None = None
        self.state = ShardedState.SHARDED

    @property
    def unsharded(self) -> "UnshardedParameter":
        """The whole parameter; it is there once it was gathered for the first time."""
        assert self._unsharded is not None  # noqa: S101 - after wait_for_unshard
        return self._unsharded

    def reset_sharded_param(self) -> None:
        """Pad what `to_empty` made: the shard of a late rank is shorter than the others'.

        What has no memory yet, or was padded, stays: one of several modules may come first.
        """
        is_meta = self.sharded.storage.tape is not context.tape and self.sharded.numel > 0
        if self.offload or is_meta or self.sharded.storage is self.data:
            return
        if numel(self.sharded_shape) != self.padded_numel:
            padded = (self.padded_numel,)
            like = _parameter(Parameter, padded, self.orig_dtype, self.sharded.storage)
            self.sharded.storage = allocated(like, "new_zeros")
        self.data = self.sharded.storage

    def made_whole(self) -> Storage:
        """Return the memory of the whole parameter, in the original type.

        The scales of a 4-bit weight come before its codes, and stay whole.
        """
        owner, name = self.owners[0]
        if isinstance(owner, QuantisedLinear) and name == "weight":
            owner.move_scales()
        nbytes = numel(self.shape) * self.orig_dtype.itemsize
        content = self.shape, self.orig_dtype
        return Storage(context.tape, nbytes, Purpose.WEIGHTS, "to_device", content)

    def shard_from_whole(self) -> None:
        """Take the rank's shard of a parameter that is whole on the GPU (_init_sharded_param).

        With CPU offload it goes to main memory at once.
        """
        like = _parameter(Parameter, (self.padded_numel,), self.orig_dtype, self.sharded.storage)
        shard = allocated(like, "new_zeros")
        if not self.offload:
            self.sharded.storage = self.data = shard

    @property
    def gather_dtype(self) -> DType:
        """The type that it is gathered and computed in."""
        return self.param_dtype or self.orig_dtype

    @property
    def input_numel(self) -> int:
        """Elements that this rank gives to an all-gather."""
        if self.state is ShardedState.SHARDED_POST_FORWARD:
            assert self.post_forward is not None  # noqa: S101 - that is how it came here
            return self.padded_numel * self.group.size // self.post_forward.size
        return self.padded_numel

    def alloc_all_gather_outputs(self) -> None:
        """Get the memory of the whole parameter, on the stream that is current."""
        if self.gathered is None:
            numel_ = self.padded_numel * self.group.size
            self.gathered = Storage(
                context.tape,
                numel_ * self.gather_dtype.itemsize,
                Purpose.GATHERED,
                "all_gather_output",
                (self.shape, self.gather_dtype),
            )
        else:
            self.gathered.fill()

    def init_unsharded_param(self) -> None:
        """Make the parameter that the module computes with, once."""
        if self._unsharded is None:
            assert self.gathered is not None  # noqa: S101 - it was gathered
            whole = _parameter(UnshardedParameter, self.shape, self.gather_dtype, self.gathered)
            whole.grad_dtype = self.gather_dtype
            self._unsharded = whole

    def to_unsharded(self) -> None:
        """Let the module compute with the whole."""
        self.unsharded.requires_grad = self.sharded.requires_grad
        self.set_on_modules(self.unsharded)
        self.post_forward_data = None
        self.state = ShardedState.UNSHARDED

    def to_sharded(self) -> None:
        """Give the whole back."""
        self.set_on_modules(self.sharded)
        self._free_unsharded()
        self.state = ShardedState.SHARDED

    def to_sharded_post_forward(self) -> None:
        """Keep a larger part than one's own shard until backward (reshard_after_forward=N)."""
        assert self.post_forward is not None  # noqa: S101 - the group has it
        part = self.padded_numel * self.group.size // self.post_forward.size
        self.post_forward_data = Storage(
            context.tape, part * self.gather_dtype.itemsize, Purpose.GATHERED, "clone"
        )
        self.set_on_modules(self.sharded)
        self._free_unsharded()
        self.state = ShardedState.SHARDED_POST_FORWARD

    def set_grad_dtype(self, *, reduces: bool) -> None:
        """Have a gradient cast that starts to accumulate; the copy-in casts others (2.15).

        One that is reduced outside of FSDP before is always cast (may_reduce_grad_outside_dp).
        """
        assert self.reduce_dtype is not None  # noqa: S101 - since 2.15
        is_wider = self.reduce_dtype.itemsize > self.gather_dtype.itemsize
        waits = reduces or self.unsharded.grad is not None
        is_deferred = is_wider and waits and self.gradient != "partial"
        self.unsharded.grad_dtype = self.gather_dtype if is_deferred else self.reduce_dtype

    def to_accumulated_grad_if_needed(self) -> None:
        """Keep a gradient that is not reduced yet in the type that it will be reduced in."""
        grad = self._unsharded.grad if self._unsharded else None
        if self.reduce_dtype is None or grad is None or grad.dtype is self.reduce_dtype:
            return
        self.unsharded.grad = None
        context.operation = "to_copy"
        self.accumulated_grad = empty_like(grad, self.reduce_dtype)
        self.accumulated_grad.storage.purpose = Purpose.GRADIENTS

    def take_gradient(self) -> Tensor | None:
        """Return what autograd computed, or what was accumulated before, and let it go here.

        A tensor parallel one is redistributed as its parameter lies (_get_grad_inner_tensor).
        """
        gradient = self.accumulated_grad
        if gradient is None and self._unsharded is not None:
            gradient = self._unsharded.grad
        if gradient is None:
            return None
        if self.gradient != "like it":
            gradient = as_it_lies(self.shape, gradient)
        if self.accumulated_grad is not None:
            self.accumulated_grad = None
        else:
            self.unsharded.grad = None
        return gradient

    def held(self) -> tuple[Storage | Tensor | None, ...]:
        """Return what it holds besides its shard: what `hold` takes, by place."""
        return (
            self.gathered,
            self.post_forward_data,
            None if self._unsharded is None else self._unsharded.grad,
            self.accumulated_grad,
            self.sharded.grad,
        )

    def hold(
        self,
        gathered: Any,
        post_forward_data: Any,
        unsharded_grad: Any,
        accumulated_grad: Any,
        sharded_grad: Any,
    ) -> None:
        """Hold what another parameter would have held."""
        self.gathered, self.post_forward_data = gathered, post_forward_data
        if gathered is not None:
            self.init_unsharded_param()
            self.unsharded.grad = unsharded_grad
        self.accumulated_grad, self.sharded.grad = accumulated_grad, sharded_grad

    def resume(self, state: ShardedState) -> None:
        """Take on `state`."""
        is_whole = state is ShardedState.UNSHARDED
        self.set_on_modules(self.unsharded if is_whole else self.sharded)
        self.state = state

    def set_on_modules(self, parameter: Parameter) -> None:
        """Let the modules have `parameter`."""
        for module, name in self.owners:
            setattr(module, name, parameter)

    def _free_unsharded(self) -> None:
        if self.gathered is not None:
            self.gathered.release()


class UnshardedParameter(Parameter):
    """The whole parameter, whose gradient may be of another type than it is itself."""

    __slots__ = ("grad_dtype",)

    grad_dtype: DType


_Kind = TypeVar("_Kind", bound=Parameter)


def _parameter(kind: type[_Kind], shape: tuple[int, ...], dtype: DType, storage: Storage) -> _Kind:
    """Return a parameter of a storage that is there already."""
    parameter = kind.__new__(kind)
    Tensor.__init__(parameter, shape, dtype, storage)
    parameter.requires_grad = True
    return parameter
