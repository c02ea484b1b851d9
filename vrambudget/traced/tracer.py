"""The storages that PyTorch makes while a call runs on the meta device, each with an engine's.

Where a mask is an index, its places are looked for as on the GPU: the host may know how many are
true (`traced.mode`).
"""

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from vrambudget.engine.autograd import Saved
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.ops.selection import places
from vrambudget.ops.temporaries import BEFORE_RESULT
from vrambudget.tape.events import Storage
from vrambudget.traced import kernels
from vrambudget.traced.composed import composed, is_composed
from vrambudget.traced.multi_kernel import kernel_by_kernel
from vrambudget.traced.tensor import dtype_of, meta_of

# Under a dispatch mode PyTorch's formulas avoid writing into tensors that a subclass might be
# (areAnyTensorSubclassLike); on the GPU they write into the zeros that they just made.
_INTO_ZEROS = {"scatter", "scatter_add", "index_put", "index_add", "masked_fill", "put"}
_APART = ("ScatterReduce", "IndexReduce")  # nodes that never do (scatter_reduce_backward)

_BY_INDEX = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Tracer(TorchDispatchMode):
    """Gives each storage that aten operations make one of the engine's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.storages: dict[int, Storage] = {}
        self.counts: dict[int, int] = {}  # by our storage of a mask: how many places are true
        self.node = ""  # whose formula runs, in backward

    def bind(self, meta: torch.Tensor, storage: Storage) -> None:
        """Let `storage` live as long as the meta tensor's storage does."""
        raw = meta.untyped_storage()
        key = raw._cdata  # noqa: SLF001 - what it is known by
        self.storages[key] = storage
        weakref.finalize(raw, self.storages.pop, key, None).atexit = False

    def storage_of(self, meta: torch.Tensor) -> Storage | None:
        """Return our storage of a meta tensor's."""
        return self.storages.get(meta.untyped_storage()._cdata)  # noqa: SLF001

    def forget(self, meta: torch.Tensor) -> None:
        """Let go of our storage, however long PyTorch's graph holds on to the meta tensor."""
        self.storages.pop(meta.untyped_storage()._cdata, None)  # noqa: SLF001

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket.__name__
        steps = kernel_by_kernel(packet, args)
        if steps is not None:
            with self:
                return steps()
        if is_composed(func):
            with self:
                return composed(func, args, kwargs or {})
        if packet == "masked_select" and self.count_of(args[1]) is not None:
            with self:  # cuda/IndexKernel.cpp, masked_select_out_cuda_impl
                return torch.ops.aten.index(args[0].expand_as(args[1]), [args[1]])
        if packet in _BY_INDEX:
            args = (args[0], self._without_masks(args[1]), *args[2:])
        result = func(*args, **(kwargs or {}))
        context.operation = packet
        held = kernels.beforehand(packet, args)
        made = False
        for meta in filter(torch.is_tensor, tree_leaves(result)):
            if meta.device.type == "meta" and self.storage_of(meta) is None:
                nbytes = kernels.result_bytes(packet, args, meta)
                self.bind(meta, self._into(packet, args) or self.made(packet, meta, nbytes))
                made = True
        if packet not in BEFORE_RESULT and (made or packet in kernels.WITHOUT_RESULT):
            kernels.temporaries(func, packet, args, result)
        del held
        return result

    def count_of(self, meta: torch.Tensor) -> int | None:
        """Return how many places of a mask are true, None where nobody knows."""
        storage = self.storage_of(meta) if meta.dtype is torch.bool else None
        return None if storage is None else self.counts.get(id(storage))

    def _without_masks(self, indices: Any) -> list[Any]:
        """Return indices with the places where masks are true (native/IndexingUtils.h)."""
        found: list[Any] = []
        for index in indices:
            count = None if index is None else self.count_of(index)
            if count is None:
                found.append(index)
                continue
            v = places(tuple(index.shape), count)
            meta = meta_of(v)
            self.bind(meta, v.storage)
            found += meta.unbind(0)
        return found

    def _into(self, packet: str, args: Any) -> Storage | None:
        """Return the storage that the GPU would write into, None where it makes one."""
        if writes_into_zeros(packet, self.node):
            return self.storage_of(args[0])
        return None

    def made(self, operation: str, meta: torch.Tensor, nbytes: int | None = None) -> Storage:
        """Return a new engine's storage for the meta tensor's, of its size if no other is known."""
        dtype = dtype_of(meta.dtype)
        content = (tuple(meta.shape), dtype)
        nbytes = meta.untyped_storage().nbytes() if nbytes is None else nbytes
        return Storage(context.tape, nbytes, context.purpose, operation, content)


def writes_into_zeros(packet: str, node: str) -> bool:
    """Whether an operation of a node's formula writes on the GPU into what it is given."""
    return packet in _INTO_ZEROS and bool(node) and not node.startswith(_APART)


class Kept:
    """A tensor that PyTorch's graph saves: its layout, and our storage."""

    __slots__ = ("count", "dtype", "saved", "shape", "strides")

    def __init__(self, meta: torch.Tensor, saved: Saved, count: int | None) -> None:
        self.shape, self.strides, self.dtype = meta.shape, meta.stride(), meta.dtype
        self.saved, self.count = saved, count

    def unpacked(self, tracer: Tracer) -> torch.Tensor:
        """Return it; what a checkpoint recomputed is handed out once."""
        with _disable_current_modes():  # it is no allocation
            meta = torch.empty_strided(self.shape, self.strides, dtype=self.dtype, device="meta")
        storage: Any = self.saved
        if isinstance(storage, Holder):
            holder, storage = storage, storage.storage
            holder.storage = None
        if storage is not None:
            tracer.bind(meta, storage)
            if self.count is not None:
                tracer.counts[id(storage)] = self.count
        return meta
