"""What integers and booleans on the virtual GPU hold, as far as it is known.

Kernels don't run, so the GPU's memory holds nothing. A storage whose values follow from what the
host wrote has a copy of at most `LIMIT` bytes on the CPU, laid out alike: views of the one are
views of the other. The copy hangs on a weak reference to the storage and goes when the storage
goes; PyTorch's allocator and autograd see nothing of it. A storage of which nothing is known is
never asked for in Python: its object would be one more reference, and autograd adds gradients in
place only where there is one (input_buffer.cpp, can_accumulate_inplace).

A value is true, or it is assumed: what came from elsewhere on the GPU counts as zero.

Runs in the user's Python, 3.9 or later.
"""

# ruff: noqa: SLF001 - storages' and tensors' addresses have no public names

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from .storages import Storages, offset_of_keys

LIMIT = 8 << 20  # bytes of a storage
FILLED = 1 << 20  # bytes of a storage that is filled on the GPU: larger ones are work space
WIDE = 128 << 20  # the same where experts' rows are counted: one_hot [N, k, E] in int64
FLOATS = 65_536  # numbers of a floating-point tensor: a mask [B, T], which may be made as such
_MASK = 2  # dimensions
_FEW = 16  # numbers of a tensor that may count something
_INT64 = 8  # bytes


class UnknownValue(Exception):  # noqa: N818 - not an error
    """An operation has an argument whose value is not known."""


class Value(weakref.ref):  # type: ignore[type-arg]
    """What a storage on the GPU holds: a weak reference to it, with the CPU's copy."""

    __slots__ = ("key", "memory", "true", "writes")
    key: int
    memory: Any  # torch.UntypedStorage
    true: bool
    writes: int


class KnownValues:
    """The values of one process. Tensors that have one carry the dispatch key `followed`."""

    def __init__(self, torch: Any, traced: Any, on_gpu: Callable[[Any], bool]) -> None:
        self.torch, self.on_gpu = torch, on_gpu
        self.plain = (torch.Tensor, torch.nn.Parameter)
        self.cpu = torch.device("cpu")
        self.on_cpu = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        self.bit = torch._C.DispatchKeySet(traced).raw_repr()
        self.offset = offset_of_keys(torch)
        self.storages = Storages(torch)
        self.limit, self.most_filled = LIMIT, FILLED
        self.known: dict[int, Value] = {}
        self.aten = aten = torch.ops.aten
        self.empty, self.copy = aten.empty.memory_format, aten.copy_.default
        self.look = aten.set_.source_Storage_storage_offset

    def of(self, tensor: Any) -> Value | None:
        """Return what a tensor's storage holds."""
        if type(tensor) not in self.plain or not self.on_gpu(tensor):
            return None
        value = self.known.get(self.storages.of(tensor))
        return value if value is not None and value() is tensor.untyped_storage() else None

    def is_worth(self, tensor: Any, op: Any) -> bool:
        """Return whether a tensor that is filled is one whose values may decide something."""
        if type(tensor) not in self.plain or not self.on_gpu(tensor):
            return False
        if tensor.is_floating_point() and not self._may_decide(tensor, op):
            return False
        return self.storages.nbytes(tensor) <= self.most_filled

    def widen(self) -> None:
        """Know larger storages from now on."""
        self.limit = self.most_filled = WIDE

    def _may_decide(self, tensor: Any, op: Any) -> bool:
        """Return whether numbers may be a mask [B, T], or count from zero, as an optimizer's steps.

        A gradient's first one is filled, too, and those that follow from it are no data.
        """
        is_counter = op is self.aten.zero_.default and tensor.numel() <= _FEW
        return (is_counter or tensor.ndim == _MASK) and self.is_data(tensor)

    def is_data(self, tensor: Any) -> bool:
        """Return whether few numbers are data: neither weights nor gradients."""
        is_tensor = type(tensor) is self.torch.Tensor and not tensor.requires_grad
        is_data = is_tensor and self.torch._C._current_graph_task_id() == -1
        return bool(is_data and tensor.numel() <= FLOATS)

    def eligible(self, tensor: Any) -> bool:
        """Return whether a tensor is of a kind that can be known."""
        if type(tensor) not in self.plain or not self.on_gpu(tensor) or tensor.is_complex():
            return False
        if tensor.layout is not self.torch.strided:
            return False
        if tensor.is_floating_point():
            is_gradient = self.torch._C._current_graph_task_id() != -1  # added in place if not held
            if is_gradient or tensor.numel() > FLOATS:
                return False
        return self.storages.nbytes(tensor) <= self.limit

    def memory(self, tensor: Any) -> Any:
        """Return zeros on the CPU of the size of a tensor's storage."""
        return self._memory(tensor, 0)

    def _memory(self, tensor: Any, byte: int) -> Any:
        """Return memory of the size of a tensor's storage; its own fill_ is an operation, too."""
        memory = self.torch.UntypedStorage(self.storages.nbytes(tensor))
        ctypes.memset(memory.data_ptr(), byte, memory.nbytes())
        return memory

    def hold(self, tensor: Any, memory: Any, *, true: bool) -> None:
        """Let `memory` be what the tensor's storage holds."""
        storage = tensor.untyped_storage()
        value = Value(storage, self.lose)
        value.key, value.memory, value.true, value.writes = storage._cdata, memory, true, 0
        self.known[value.key] = value
        ctypes.c_uint64.from_address(tensor._cdata + self.offset).value |= self.bit

    def hold_copy(self, tensor: Any, found: Any, *, true: bool) -> None:
        """Let the tensor's storage hold what a tensor on the CPU has."""
        memory = self.memory(tensor)
        self._on_cpu(self.copy, self.as_on_cpu(tensor, memory), found)
        self.hold(tensor, memory, true=true)

    def hold_made(self, tensor: Any, made: Any, found: Arguments) -> None:
        """Let the tensor's storage hold what an operation made of `found`.

        New memory in which it lies as on the GPU is taken over, other memory is copied.
        """
        memory = made.untyped_storage()
        is_new = memory._cdata not in found.lent
        is_as_large = memory.nbytes() == self.storages.nbytes(tensor)
        if is_new and is_as_large and _layout(made) == _layout(tensor):
            self.hold(tensor, memory, true=found.true)
        else:
            self.hold_copy(tensor, made, true=found.true)

    def hold_all(self, tensor: Any, byte: int, *, true: bool = False) -> None:
        """Let a tensor of booleans hold 1, or 0, everywhere: assumed, or known to be true."""
        self.hold(tensor, self._memory(tensor, byte), true=true)

    def keep(self, value: Value, *, true: bool) -> None:
        """Note that something known was written there."""
        value.writes += 1
        value.true = true
        self.known[value.key] = value

    def count(self, tensor: Any, number: int) -> bool:
        """Add to a counter, an int64 that is all of its storage; False: none, or not known."""
        value = self.of(tensor)
        is_one = tensor.dtype is self.torch.int64 and self.storages.nbytes(tensor) == _INT64
        if value is not None and is_one:
            ctypes.c_int64.from_address(value.memory.data_ptr()).value += number
            value.writes += 1
        return value is not None and is_one

    def lose(self, value: Value) -> None:
        """Forget a value: something unknown was written there."""
        value.writes += 1
        if self.known.get(value.key) is value:
            del self.known[value.key]

    def copy_of(self, tensor: Any) -> tuple[Any, bool]:
        """Return a tensor's values on the CPU, None where they are not known, and whether true."""
        value = self.of(tensor)
        if value is None:
            return None, False
        return self.as_on_cpu(tensor, value.memory).clone(), value.true

    def bring(self, target: Any, found: Any, *, true: bool) -> None:
        """Note what another way than an operation wrote into a tensor; None: it is not known."""
        value = self.of(target)
        if value is not None and found is None:
            self.lose(value)
        elif value is not None:
            self.as_on_cpu(target, value.memory).copy_(found)
            self.keep(value, true=true)
        elif found is not None and self.is_new(target):
            self.hold_copy(target, found.to(target.dtype), true=true)

    def is_new(self, target: Any) -> bool:
        """Return whether a tensor can be known and is all of its storage."""
        return self.eligible(target) and self.storages.is_whole(target)

    def as_on_cpu(self, tensor: Any, memory: Any) -> Any:
        """Return a tensor on the CPU that lies in `memory` as the other does on the GPU."""
        empty = self._on_cpu(self.empty, [0], dtype=tensor.dtype)
        return self._on_cpu(self.look, empty, memory, *_layout(tensor))

    def put(self, target: Any, found: Any) -> None:
        """Copy into a tensor of the host."""
        self._on_cpu(self.copy, target, found)

    def constant(self, shape: list[int], number: float, dtype: Any) -> Any:
        """Return a tensor on the CPU that holds one number everywhere, in one place."""
        one = self._on_cpu(self.empty, [], dtype=dtype)
        self._on_cpu(self.aten.fill_.Scalar, one, number)
        return self._on_cpu(self.aten.expand.default, one, shape)

    def uniform(self, shape: list[int], dtype: Any, generator: Any) -> Any:
        """Return random numbers in [0, 1) on the CPU."""
        wide = dtype if dtype.itemsize > 1 else self.torch.float32  # of 8 bits: none are drawn
        found = self._on_cpu(self.empty, shape, dtype=wide)
        return self._on_cpu(self.aten.uniform_.default, found, 0.0, 1.0, generator=generator)

    def _on_cpu(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Call an operation where no mode of the script sees it."""
        return op._handle.redispatch_boxed(self.on_cpu, *args, **kwargs)


class Arguments:
    """The arguments of one operation as the CPU has them. Raises Unknown where one is not known.

    `fresh` has memory for those that are only written. `true`: whether all that is read is.
    `numbers`: what unknown floating-point tensors are taken to hold.
    """

    def __init__(
        self,
        values: KnownValues,
        args: Any,
        kwargs: Any,
        fresh: dict[int, Any],
        numbers: Callable[[Any], Any] | None = None,
    ) -> None:
        self.values, self.fresh, self.numbers = values, fresh, numbers
        self.read: dict[int, Any] = {}  # x != x: one tensor's numbers are the same twice
        self.lent: set[int] = set()  # addresses of memory that is read
        self.true = True
        self.is_known = self.is_assumed = False
        self.args, self.kwargs = self._of(args), self._of(kwargs)
        self.kwargs.pop("pin_memory", None)
        if self.is_assumed and not self.is_known:
            raise UnknownValue

    def _of(self, argument: Any) -> Any:
        if isinstance(argument, self.values.torch.Tensor):
            return self._of_tensor(argument)
        if isinstance(argument, (list, tuple)):
            return [self._of(item) for item in argument]
        if isinstance(argument, dict):
            return {name: self._of(item) for name, item in argument.items()}
        if isinstance(argument, self.values.torch.device):
            return self.values.cpu
        return argument

    def _of_tensor(self, tensor: Any) -> Any:
        values = self.values
        if type(tensor) not in values.plain or tensor.layout is not values.torch.strided:
            raise UnknownValue
        if id(tensor) in self.fresh:
            return values.as_on_cpu(tensor, self.fresh[id(tensor)])
        value = values.of(tensor)
        if value is not None:
            self.true = self.true and value.true
            self.is_known = True
            self.lent.add(value.memory._cdata)
            return values.as_on_cpu(tensor, value.memory)
        if self.numbers is not None and tensor.is_floating_point() and values.on_gpu(tensor):
            self.true, self.is_known = False, True
            if id(tensor) not in self.read:
                self.read[id(tensor)] = self.numbers(tensor)
            return self.read[id(tensor)]
        if values.storages.nbytes(tensor) > values.limit:
            raise UnknownValue
        if not values.on_gpu(tensor):
            self.lent.add(values.storages.of(tensor))
            return tensor
        if tensor.is_floating_point() or tensor.is_complex():
            raise UnknownValue
        self.true, self.is_assumed = False, True
        return values.as_on_cpu(tensor, values.memory(tensor))


def _layout(tensor: Any) -> tuple[int, list[int], list[int]]:
    return tensor.storage_offset(), list(tensor.shape), list(tensor.stride())
