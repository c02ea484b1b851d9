"""Operations of aten whose C++ reads a tensor's device: in Python, where it is the GPU.

    to           compares devices: what is on the GPU already is not copied to it
    linear       fuses the bias of a batch of rows for all devices but XLA
    attention    see attention.py

Source: aten/src/ATen/native/TensorConversions.cpp (to_impl), Linear.cpp (linear).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.attention import attend
from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.fake_storages import GpuMode

aten = torch.ops.aten
_KEY = torch._C.DispatchKey.CompositeImplicitAutograd
_MATRIX = 2


@contextmanager
def in_python(others: Mapping[Any, Callable[..., Any]]) -> Iterator[None]:
    """Let PyTorch's Python dispatcher, which tracing uses, take these and others inside."""
    functions = {**_FUNCTIONS, **others}
    with ExitStack() as stack:
        for op, function in functions.items():
            stack.enter_context(patch.dict(op.py_kernels, {_KEY: function}))
            op._dispatch_cache.clear()
        restored = torch._prims.rng_prims.graphsafe_run_with_rng_state
        stack.enter_context(patch.dict(restored.python_key_table, {GpuMode: _with_state}))
        try:
            yield
        finally:
            for op in functions:
                op._dispatch_cache.clear()


def _with_state(mode: GpuMode, op: Any, *args: Any, rng_state: Any = None, **kwargs: Any) -> Any:
    """Run an operation with random numbers drawn before."""
    del rng_state
    with mode:
        return op(*args, **kwargs)


def _moved(x: Any, device: Any, dtype: Any, *rest: Any, **options: Any) -> Any:
    """Return x on a device and of a dtype: x itself where it is so, unless a copy is asked for."""
    names = ("non_blocking", "copy", "memory_format")
    options = {**dict(zip(names, rest, strict=False)), **options}
    options.pop("pin_memory", None)
    copy = options.pop("copy", False)
    device = x.device if device is None else torch.device(device)
    own, device = (GPU if at.type in ("cuda", "xla") else at for at in (x.device, device))
    dtype = dtype or x.dtype
    lies_as = options.get("memory_format") or torch.preserve_format
    lies = lies_as is torch.preserve_format or x.is_contiguous(memory_format=lies_as)
    if own == device and x.dtype is dtype and lies and not copy:
        return x
    if own != device or device == GPU:  # within a kernel it is meta
        options["device"] = device
    return aten._to_copy(x, dtype=dtype, **options)


def _to_layout(x: Any, *, dtype: Any = None, device: Any = None, **options: Any) -> Any:
    return _moved(x, device, dtype, **options)


def _to_other(x: Any, other: Any, *rest: Any, **options: Any) -> Any:
    return _moved(x, other.device, other.dtype, *rest, **options)


def linear(
    x: Any, weight: Any, bias: Any = None, add: Callable[..., Any] = torch.Tensor.add
) -> Any:
    """Return x @ weight.t() + bias; `add` adds the bias where cuBLAS does not.

    Source: aten/src/ATen/native/Linear.cpp.
    """
    if bias is None:
        return torch.matmul(x, weight.t())
    if x.dim() == _MATRIX:
        return torch.addmm(bias, x, weight.t())
    if x.dim() and bias.dim() == 1 and x.is_contiguous():
        y = torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight.t())
        return y.view(*x.shape[:-1], y.shape[-1])
    return add(torch.matmul(x, weight.t()), bias)


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.to.device: _moved,
    aten.to.dtype_layout: _to_layout,
    aten.to.other: _to_other,
    aten.linear.default: linear,
    aten.scaled_dot_product_attention.default: attend,
}
