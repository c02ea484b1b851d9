"""Storages of fake tensors, put on the tape: each has a storage of the engine as long as it lives.

PyTorch itself decides how long: a fake tensor's storage has no data, but the same references as on
a GPU, and a weak reference notes its end. What the compiler makes while it traces is not on the
tape, because on a GPU those tensors are fake, too; only its benchmarks run there.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from vrambudget.compiled.accumulated import ADD, Running
from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.hidden import buffers, copied, on_host
from vrambudget.compiled.private import (
    CompileContext,
    FakeTensor,
    FakeTensorMode,
    disable_current_modes,
)
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.tape.events import Storage
from vrambudget.traced.kernels import WITHOUT_RESULT, knows, result_bytes, unchecked
from vrambudget.traced.tensor import DTYPE, TORCH_DTYPE, dtype_of

_HOST = torch.device("cpu")
_COPY = torch.ops.aten._to_copy.default
_READ = torch.ops.aten._local_scalar_dense.default
_CALLED = {"empty_strided": "compiled_code"}  # the buffers of Inductor's wrappers


class GpuMode(FakeTensorMode):
    """The fake mode of a job: what runs in it, runs on the GPU."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.cache_enabled = False  # a cached result would be made before its inputs die
        self._is_quiet = self._benchmarks = False
        self._says: bool | None = None  # what is asked of truth values, if anything is
        self.tuned: set[str] = set()  # kernels that were timed, by what describes them
        self.padded: dict[str, bool] = {}  # products that were timed: whether they are padded
        self._storages: dict[int, tuple[Any, Storage]] = {}
        self.running = Running()

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation; note what it made."""
        if self._says is not None and func is _READ and args[0].dtype is torch.bool:
            return self._says
        is_asked = func is torch.ops.prim.device.default
        compiles = CompileContext.try_get() is not None and not self._benchmarks
        if is_asked or self._is_quiet or compiles:
            return super().dispatch(func, types, args, kwargs)
        if _is_on_host(args, kwargs or {}):
            return func(*args, **kwargs or {})
        if func is _COPY and not isinstance(args[0], FakeTensor):
            args = (self.from_tensor(args[0]), *args[1:])  # torch 2.8 would look for a real GPU
        self.running.look()
        if func is ADD and self._adds_in_place(args):
            return self._added(func, types, args, kwargs)
        name = func.__name__.split(".")[0]
        context.operation = _CALLED.get(name, name.removeprefix("_scaled_dot_product_"))
        copies = copied(name, args)
        with self._quiet():  # Python's version of a C++ operation may make more than C++ does
            result = super().dispatch(func, types, args, kwargs)
        elsewhere = set(map(id, on_host(name, result)))
        first = len(context.tape.sizes)
        for x in tree_leaves(result):
            if isinstance(x, FakeTensor) and id(x) not in elsewhere:
                self._note(x, result_bytes(name, args, x))
        if len(context.tape.sizes) > first or name in WITHOUT_RESULT:
            self._need(func, name, args, result)
        elif any(is_empty(x) for x in tree_leaves(result)) and not knows(func, name):
            unchecked.add(name)
        del copies
        return result

    def _need(self, func: Any, name: str, args: Any, result: Any) -> None:
        """Allocate and free what an operation's kernels need besides its results."""
        if isinstance(result, torch.Tensor):
            buffers(func, name, args, result)

    @contextmanager
    def on_the_gpu(self) -> Iterator[None]:
        """Put what runs inside on the tape, although the compiler traces: its benchmarks."""
        with disable_current_modes():
            self._benchmarks = True
            try:
                with self:
                    yield
            finally:
                self._benchmarks = False

    @contextmanager
    def saying(self, *, truth: bool) -> Iterator[None]:
        """Give this answer inside to code that reads a boolean of the GPU."""
        self._says = truth
        try:
            yield
        finally:
            self._says = None

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Note nothing of what runs inside."""
        before, self._is_quiet = self._is_quiet, True
        try:
            yield
        finally:
            self._is_quiet = before

    def _note(self, x: FakeTensor, nbytes: int | None = None) -> None:
        if x.fake_device.type != GPU.type:
            return
        storage = x.untyped_storage()
        known = self._storages.get(storage._cdata)
        has = None if known is None else known[1].tape.sizes[known[1].index]
        if has is None or storage.nbytes() > has:  # new, or resized, as `out=` is
            dtype = DTYPE.get(x.dtype)  # random states are of a type of their own
            content = None if dtype is None else (tuple(x.shape), dtype)
            nbytes = storage.nbytes() if nbytes is None else nbytes
            on_tape = Storage(context.tape, nbytes, context.purpose, context.operation, content)
            self._bind(storage, on_tape)

    def _bind(self, storage: Any, on_tape: Storage) -> None:
        key, storages = storage._cdata, self._storages
        storages[key] = (weakref.ref(storage, lambda _: storages.pop(key)), on_tape)

    def _adds_in_place(self, args: Any) -> bool:
        x = args[0]
        if not isinstance(x, FakeTensor) or x.untyped_storage()._cdata not in self._storages:
            return False
        return self.running.adds_in_place(x, self.storage_of(x).index)

    def _added(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Return a sum that is in the storage of its first operand."""
        with self._quiet():
            result: Any = super().dispatch(func, types, args, kwargs)
        self._bind(result.untyped_storage(), self.storage_of(args[0]))
        return result

    def storage_of(self, x: torch.Tensor) -> Storage:
        """Return the storage on the tape of a fake tensor."""
        return self._storages[x.untyped_storage()._cdata][1]

    def tensor_of(self, x: torch.Tensor) -> Tensor:
        """Return the engine's tensor of a fake one."""
        strides = None if x.is_contiguous() else tuple(x.stride())
        return Tensor(tuple(x.shape), dtype_of(x.dtype), self.storage_of(x), strides)

    def fake_of(self, v: Tensor) -> torch.Tensor:
        """Return a fake tensor that holds the storage of one of the engine's."""
        x = self._unseen(v.shape, v.actual_strides(), TORCH_DTYPE[v.dtype])
        self._bind(x.untyped_storage(), v.storage)
        return x

    def unseen_like(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor like `x` whose storage is not on the tape."""
        return self._unseen(x.shape, x.stride(), x.dtype)

    def _unseen(self, shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        with self, self._quiet():
            return torch.empty_strided(shape, strides, dtype=dtype, device=GPU)

    def apart(self, x: torch.Tensor) -> torch.Tensor:
        """Return a tensor on no tape whose gradient is that of `x`, and which does not hold `x`."""
        with self, self._quiet():
            return x.unsqueeze(0).sum(0)

    def alive_since(self, first: int) -> list[int]:
        """Return the storages from number `first` on that live."""
        tape = context.tape  # storages without bytes are on none
        found = [on_tape for _, on_tape in self._storages.values() if on_tape.tape is tape]
        return [on_tape.index for on_tape in found if on_tape.index >= first]


def is_empty(x: Any) -> bool:
    """Whether x is a tensor of no elements."""
    return isinstance(x, FakeTensor) and not x.numel()


def _is_on_host(args: Any, kwargs: Any) -> bool:
    """Whether an operation takes and makes values in main memory, which code may read."""
    if kwargs.get("device", _HOST) not in (None, _HOST):
        return False
    leaves = tree_leaves((args, kwargs))
    return not any(isinstance(x, FakeTensor) for x in leaves) and all(
        x.device == _HOST for x in leaves if isinstance(x, torch.Tensor)
    )
