"""The flat parameter of one wrapped module.

    flat      all its parameters, one after another [P]; with use_orig_params each begins at a
              multiple of 16 bytes and P is a multiple of the ranks
    shard     [ceil(P / W)] in the original type: what the optimizer steps, as itself or, with
              use_orig_params, as the parts that it has of the original parameters
    whole     [W * ceil(P / W)] in param_dtype, freed and filled again; parameters are views of it
    gradient  autograd's [P] in param_dtype; cast to reduce_dtype; padded; its shard

Source: torch/distributed/fsdp/_flat_param.py (FlatParamHandle); _runtime_utils.py (_reduce_grad,
_get_reduce_scatter_tensors).
A frozen one is gathered in the same way and has no gradient. From main memory (`device_id`) a
module's parameters come to the GPU just before they are flattened, and with CPU offload the shard
goes back: it is copied to the GPU for every gather, and its gradient to main memory.

Not modelled: NO_SHARD, hybrid shards, no_sync, communication hooks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autograd import record_many
from vrambudget.engine.context import context, made_for, on_meta, on_stream
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like, numel
from vrambudget.ops.creation import made
from vrambudget.parallel.group import Group
from vrambudget.tape.events import Purpose, Storage

UNSHARD, POST_BACKWARD, PRE_UNSHARD = 1, 2, 3
"""Streams besides the default one; all-gathers have one more, on which nothing is allocated."""

_ALIGNMENT = 16  # bytes


@dataclass(frozen=True, slots=True)
class FlatSettings:
    """The arguments of FullyShardedDataParallel that memory depends on."""

    group: Group
    param_dtype: DType | None = None
    reduce_dtype: DType | None = None
    reshards: bool = True  # FULL_SHARD; else SHARD_GRAD_OP
    use_orig_params: bool = False
    forward_prefetch: bool = False
    backward_prefetch: bool = True  # BACKWARD_PRE
    buffer_dtype: DType | None = None
    offload: bool = False  # CPUOffload(offload_params=True)
    from_host: bool = False  # device_id and sync_module_states of a model in main memory


class FlatParameter:
    """FlatParamHandle: a module's parameters as one."""

    def __init__(
        self, owners: Sequence[Sequence[tuple[Module, str]]], settings: FlatSettings
    ) -> None:
        self.owners, self.settings, self.group = owners, settings, settings.group
        self.originals: list[Parameter] = [getattr(*places[0]) for places in owners]
        self.shapes = [x.shape for x in self.originals]
        self.dtype = self.originals[0].dtype
        self.requires_grad = self.originals[0].requires_grad
        self.param_dtype = settings.param_dtype or self.dtype
        self.offsets, self.paddings, self.numel = self._laid_out()
        self.shard_numel = self.group.padded(self.numel)
        self.shard: Parameter | None = None
        self.local: list[Tensor] = []
        self.whole: Storage | None = None
        self.is_unsharded = False
        self.leaf: Tensor | None = None
        self.saved_gradient: Tensor | None = None

    def _laid_out(self) -> tuple[list[int], list[int], int]:
        """Return where parameters begin, the paddings between them, and all elements."""
        aligned = _ALIGNMENT // self.param_dtype.itemsize if self.settings.use_orig_params else 1
        offsets, paddings, end = list[int](), list[int](), 0
        for original in self.originals:
            padding = -end % aligned
            paddings += [padding] if padding else []
            offsets.append(end + padding)
            end += padding + original.numel
        rest = -end % self.group.size if self.settings.use_orig_params else 0
        return offsets, paddings + ([rest] if rest else []), end + rest

    def flatten(self) -> None:
        """Move the parameters into one, and keep the rank's shard of it."""
        context.operation = "cat"
        with made_for(Purpose.WEIGHTS):
            flat = empty((self.numel,), self.dtype)
            own = self.group.local(self.numel)
            context.operation = "clone"
            self.shard = Parameter((own,), self.dtype)
            if own < self.shard_numel:
                context.operation = "pad"
                self.shard = Parameter((self.shard_numel,), self.dtype)
        self.shard.requires_grad = self.requires_grad
        del flat
        if self.settings.offload:
            self.shard.storage = on_host(self.shard)
        self.local = [self._local(*place) for place in zip(self.offsets, self.shapes, strict=True)]
        self._set(self.local)
        while self.originals:  # the last dies first
            self.originals.pop()

    def _local(self, offset: int, shape: tuple[int, ...]) -> Tensor:
        """Return the part of an original parameter that the rank has."""
        assert self.shard is not None  # noqa: S101 - flatten made it
        begin = self.group.rank * self.shard_numel
        length = min(offset + numel(shape), begin + self.shard_numel) - max(offset, begin)
        kind = Parameter if self.settings.use_orig_params else Tensor
        part = kind.__new__(kind)
        Tensor.__init__(part, (max(0, length),), self.dtype, self.shard.storage)
        part.requires_grad = self.requires_grad
        return part

    def _set(self, tensors: Sequence[Tensor]) -> None:
        for places, x in zip(self.owners, tensors, strict=True):
            for module, name in places:
                setattr(module, name, x)

    def make_storages(self) -> None:
        """Make, and give back at once, what is filled later (init_flat_param_attributes)."""
        whole = (self.shard_numel * self.group.size,)
        with made_for(Purpose.COMMUNICATION):
            if self.param_dtype is not self.dtype:
                made("low_precision_shard", (self.shard_numel,), self.param_dtype)
            made("padded_unsharded_flat_param", whole, self.param_dtype)
            if self.param_dtype is not self.dtype:
                made("full_precision_flat_param", whole, self.dtype)

    def unshard(self) -> None:
        """Gather; a cast shard is freed once that is begun.

        A shard in main memory is copied even if the whole is there (pre_unshard).
        """
        if self.is_unsharded and not self.settings.offload:
            return
        with on_stream(PRE_UNSHARD), made_for(Purpose.COMMUNICATION):
            given = self._given_to_gather()
        if self.is_unsharded:
            return
        self.is_unsharded = True
        with on_stream(UNSHARD):
            if self.whole is None:
                nbytes = self.shard_numel * self.group.size * self.param_dtype.itemsize
                self.whole = Storage(
                    context.tape, nbytes, Purpose.GATHERED, "padded_unsharded_flat_param"
                )
            else:
                self.whole.fill()
        del given

    def _given_to_gather(self) -> Tensor | None:
        """Return what is gathered, if it is not the shard itself (pre_unshard)."""
        shape = (self.shard_numel,)
        cast = None
        if self.param_dtype is not self.dtype:
            context.operation = "low_precision_shard"
            cast = empty(shape, self.param_dtype)
        if not self.settings.offload:
            return cast
        copied = made("to_device", shape, self.dtype)
        return cast or copied

    def upcast(self) -> None:
        """Make the shard that is trained float32, as accelerate does under mixed precision."""
        if self.requires_grad and self.dtype is not float32:
            assert self.shard is not None  # noqa: S101 - flatten made it
            self.dtype = float32
            with made_for(Purpose.WEIGHTS):
                cast = made("to_float32", self.shard.shape, float32)
            self.shard.storage, self.shard.dtype = cast.storage, float32
            for part in self.local:
                part.storage, part.dtype = cast.storage, float32
            if self.settings.offload:
                self.shard.storage = on_host(self.shard)

    def use_views(self) -> None:
        """Let the modules compute with views of the whole, of which autograd knows."""
        assert self.whole is not None  # noqa: S101 - it was gathered
        if self.leaf is None:
            self.leaf = Tensor((self.numel,), self.param_dtype, self.whole)
            self.leaf.requires_grad = self.requires_grad
        leaf = self.leaf  # one for all graphs: a checkpoint's second, too
        views = [leaf.viewed(shape, None) for shape in self.shapes]

        def backward(*grads: Tensor | None) -> Tensor:
            with on_stream(UNSHARD):
                context.operation = "split_backward"
                pads = [empty((n,), self.param_dtype) for n in self.paddings]
                whole = empty((self.numel,), self.param_dtype)
            del pads, grads
            return whole

        record_many("split", views, inputs=(leaf,), backward=backward)
        if views[0].node is not None:
            views[0].node.adds_on = UNSHARD  # where the node was made, for a tied weight
        self._set(views)

    def reshard(self) -> None:
        """Give the whole back."""
        if self.is_unsharded and self.whole is not None:
            self.whole.release()
        self.is_unsharded = False
        if self.settings.use_orig_params:  # else modules keep forward's views until the next
            self._set(self.local)

    def reduce(self, leaf: Tensor) -> None:
        """Reduce autograd's gradient, which is freed here, and give the shard its part of it."""
        computed, leaf.grad = leaf.grad, None
        assert computed is not None  # noqa: S101 - its hook is called with one
        reduce_dtype = self.settings.reduce_dtype or self.param_dtype
        with on_stream(POST_BACKWARD), made_for(Purpose.COMMUNICATION):
            unsharded = computed
            if computed.dtype is not reduce_dtype:
                context.operation = "to_copy"
                unsharded = empty_like(computed, reduce_dtype)
            padded = None
            if self.shard_numel * self.group.size > self.numel:
                context.operation = "pad"
                padded = empty((self.shard_numel * self.group.size,), reduce_dtype)
            with made_for(Purpose.GRADIENTS):
                context.operation = "sharded_grad"
                gradient = empty((self.shard_numel,), reduce_dtype)
                if reduce_dtype is not self.dtype and self.saved_gradient is None:
                    context.operation = "to_copy"
                    gradient = empty_like(gradient, self.dtype)
        if self.saved_gradient is None:
            self.saved_gradient = gradient
        del padded, unsharded, computed
        if not self.settings.offload:
            self._give_gradient()

    def _give_gradient(self) -> None:
        gradient = self.saved_gradient
        assert gradient is not None and self.shard is not None  # noqa: S101, PT018 - just made
        if not self.settings.use_orig_params:
            self.shard.grad, self.saved_gradient = gradient, None
            return
        for part in self.local:
            if part.numel:
                part.grad = Tensor(part.shape, self.dtype, gradient.storage)

    def let_gradient_go(self) -> None:
        """Let a gradient go that was copied to main memory (prepare_gradient_for_optim)."""
        if self.settings.offload:
            self.saved_gradient = None

    def forget_gradient(self) -> None:
        """Let a gradient go that an optimizer cleared (_reset_flat_param_grad_info_if_needed)."""
        if all(part.grad is None for part in self.local):
            self.saved_gradient = None


def on_host(x: Tensor) -> Storage:
    """Return a storage of this tensor's size that takes nothing of the GPU."""
    with on_meta():
        return empty(x.shape, x.dtype).storage
