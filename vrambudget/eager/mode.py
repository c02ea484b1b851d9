"""What each operation of an eager step makes on the fake GPU, and what its kernels need.

PyTorch's own C++ decides which operations run, in forward and in backward, and what lives how long.
Some of its formulas write into what they just made, but not into a subclass of Tensor, which a
fake one is: the node that runs says where.

Source: torch/csrc/autograd/FunctionsManual.cpp (areAnyTensorSubclassLike).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.hidden import buffers
from vrambudget.compiled.private import FakeTensor, fake_tensor
from vrambudget.eager import gpu_kernels, numbers
from vrambudget.eager.notes import note_of
from vrambudget.eager.sparse import by_parts, is_sparse
from vrambudget.eager.value_sizes import without_masks
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError
from vrambudget.tape.events import Purpose, Storage
from vrambudget.traced import kernels
from vrambudget.traced.composed import composed, is_composed
from vrambudget.traced.known import Known, worked_out
from vrambudget.traced.lines import own_line, stack
from vrambudget.traced.tensor import REHEARSE, dtype_of, no_rule, with_layouts
from vrambudget.traced.tracer import writes_into_zeros

_aten = torch.ops.aten
_READ = _aten._local_scalar_dense.default
_IN_PLACE = {
    "BinaryCrossEntropy": {"sub", "mul"},
    "Clamp": {"logical_and", "logical_or"},
    "MaxBackward1": {"logical_and"},
    "MinBackward1": {"logical_and"},
    "MaskedSelectBackward": {"masked_scatter"},
}
"""By nodes of autograd's: operations that write into what the node just made."""
_UNSURE = {"prod", "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"}
"""Operations whose backward, or whose parts, depend on values."""
_ZEROS = _aten._efficientzerotensor
_SPARSE = _aten._sparse_coo_tensor_with_dims_and_tensors
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
_MOVE = _aten._to_copy.default
_COPY = _aten.copy_.default


class EagerMode(GpuMode):
    """The fake mode of a step that is not compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.allow_fallback_kernels = False  # they would look for a real GPU
        self.operation = ""
        self.autocast: set[torch.dtype] = set()  # that regions of the step compute in

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; read what is asked back, and leave the host what is the host's."""
        kwargs = kwargs or {}
        run = partial(super().dispatch, func, types, args, kwargs)
        if self._is_quiet or func is torch.ops.prim.device.default:
            return run()
        if func is _READ and is_on_gpu(args[0]):
            return self._number(args[0])
        if kwargs.get("pin_memory"):
            return func(*args, **{**kwargs, "pin_memory": False})
        if func is _COPY and is_on_gpu(args[1]) and not is_on_gpu(args[0]):
            self._convert(args[1], args[0].dtype)
            return args[0]  # to the host, where nobody knows it
        if func is _MOVE and is_on_gpu(args[0]) and _names_host(**kwargs):
            self._convert(args[0], kwargs.get("dtype") or args[0].dtype)
        self.running.look()
        try:
            return self._by_kernels(func, args, kwargs, run)
        except fake_tensor.DynamicOutputShapeException as error:
            raise NotModelledError(
                f"the size of what {func.__name__} makes depends on values", hint=REHEARSE
            ) from error
        except (fake_tensor.UnsupportedOperatorException, NotImplementedError) as error:
            raise no_rule(func.__name__, error) from error

    def _by_kernels(self, func: Any, args: Any, kwargs: Any, run: Any) -> Any:
        """Run an operation by the rule of its kernels, if it has one, or by its parts."""
        packet = func.overloadpacket
        rule = gpu_kernels.RULES.get(packet) or gpu_kernels.RULES.get(packet._qualified_op_name)
        leaves = tree_leaves((args, kwargs))
        if packet is _SPARSE or any(map(is_sparse, leaves)):
            return by_parts(self, func, args, kwargs)
        given = map(is_on_gpu, leaves)
        if rule is not None and (any(given) or packet is _ZEROS):
            context.operation = self.operation = packet.__name__
            return rule(self, run, *args, **kwargs)
        name = packet.__name__
        if name == "masked_scatter" and self._lies_in(name, args) is not None:
            with self:
                return args[0].masked_scatter_(*args[1:])
        if name == "index_put" and _has_mask(args[1]) and self._lies_in(name, args) is None:
            with self:  # masks are looked through after the copy
                return args[0].clone().index_put_(*args[1:])
        if name in _INDEXING and (name == "index" or args[2].numel() > 1):
            indices = without_masks(self, args[1])
            args = (args[0], indices, *args[2:])
            run = partial(super().dispatch, func, (), args, kwargs)
        has_backward = name != "prod" or args[0].is_floating_point()
        is_unsure = name in _UNSURE and has_backward
        if is_unsure or (name == "addmm" and kwargs.get("beta", 1) != 1):
            kernels.unchecked.add(name)
        if is_composed(func) and not writes_into_zeros(name, self.running.node):
            with self:
                return composed(func, args, kwargs)
        result = self._written(func, name, args, run)
        if func.is_view:
            _keep_known(func, args, kwargs, result)
        return result

    def _written(self, func: Any, name: str, args: Any, run: Any) -> Any:
        """Run an operation; its result lies in its first argument where a formula writes there."""
        if self.running.node == "MaskedFillBackward1" and name == "where":  # it picks by the mask
            kernels.unchecked.add("masked_fill by a tensor")
        into = self._lies_in(name, args)
        if into is None:
            return run()
        with self._quiet():
            result = run()
            self._need(func, name, args, result)
        self._bind(result.untyped_storage(), into)
        return result

    def _lies_in(self, name: str, args: Any) -> Storage | None:
        """Return the storage of its first argument where a formula of autograd's writes there."""
        node, first = self.running.node, self.running.first
        own = any(node.startswith(kind) and name in names for kind, names in _IN_PLACE.items())
        writes = (own or writes_into_zeros(name, node)) and is_on_gpu(args[0])
        into = self.storage_of(args[0]) if writes else None
        made_by = "" if into is None else into.tape.operations[into.index]
        return None if into is None or into.index < first or made_by in _KEPT else into

    def _convert(self, x: Any, dtype: torch.dtype) -> None:
        """Make what is copied to the host in its type, and without gaps.

        Source: aten/src/ATen/native/cuda/Copy.cu (copy_requires_temporaries, copy_kernel_cuda).
        """
        if dtype is not x.dtype or not with_layouts(x).is_dense:
            made = empty(tuple(x.shape), dtype_of(dtype))
            del made

    def _need(self, func: Any, name: str, args: Any, result: Any) -> None:
        is_cast = name == "_to_copy" and result.dtype in self.autocast
        if is_cast and args[0].is_leaf and args[0].requires_grad:
            self.storage_of(result).purpose = Purpose.AUTOCAST_COPIES
        if func.overloadpacket not in gpu_kernels.RULES:
            buffers(func, name, args, result)

    def contiguous(self, x: torch.Tensor) -> Tensor | None:
        """Return the copy that a kernel makes of x, None where it makes none."""
        return None if x.is_contiguous() else empty(tuple(x.shape), dtype_of(x.dtype))

    def count(self, mask: torch.Tensor) -> int:
        """Return how many elements of a mask are taken to be true."""
        note = note_of(mask)
        if note.known is None and not note.spread:
            numbers.assume(numbers.ALL_KEPT, own_line(stack()))
            return note.numel()
        if note.known is None:
            numbers.assume(numbers.SPREAD, own_line(stack()))
        return int(note.ordinary().count_nonzero())

    def knows(self, x: Any) -> bool:
        """Whether the values of a tensor are known."""
        return not is_on_gpu(x) or note_of(x).known is not None

    def largest(self, x: torch.Tensor) -> int:
        """Return the largest number of a tensor of integers, as far as it is known."""
        if not self.knows(x):
            numbers.note([own_line(stack())])
        return int(self.known(x).max())

    def known(self, x: torch.Tensor) -> torch.Tensor:
        """Return what a tensor is known, or taken, to hold."""
        return note_of(x).ordinary() if is_on_gpu(x) else x

    def _number(self, x: FakeTensor) -> Any:
        """Return the number that C++ reads back."""
        note = note_of(x)
        if note.known is None:
            numbers.note([own_line(stack())])
        return note.ordinary().item()


def _has_mask(indices: Any) -> bool:
    return any(x is not None and x.dtype in {torch.bool, torch.uint8} for x in indices)


_KEPT = {"xlogy", "special_xlog1py", "neg"}  # results that no formula writes into


def _keep_known(func: Any, args: Any, kwargs: Any, result: Any) -> None:
    """Keep what is known of a tensor that C++ itself views: a mask, or one number of repeats."""
    note = vars(args[0]).get("_numbers") if is_on_gpu(args[0]) else None
    if note is not None and note.known is not None and is_on_gpu(result):
        given = note.known, *args[1:]  # without the tensor, which is not to live longer
        note_of(result).known = Known(lambda: worked_out(func, given, kwargs))


def _names_host(device: Any = None, **_: Any) -> bool:
    return device is not None and torch.device(device).type == "cpu"


def is_on_gpu(x: Any) -> bool:
    """Whether x is a tensor on the fake GPU."""
    return isinstance(x, FakeTensor) and x.fake_device.type == GPU.type
