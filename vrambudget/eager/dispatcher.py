"""PyTorch's Python dispatcher as an eager step has it: C++ runs, but where it asks for the device.

Tracing takes decompositions and shapes from Python where C++ has kernels of its own, which lay a
dimension of one element otherwise; eager code never does. In their place are the functions here, of
operations whose C++ looks whether a tensor is CUDA's.

Source: torch/_meta_registrations.py (activate_meta), _subclasses/fake_impls.py (_view_meta);
aten/src/ATen/native/Dropout.cpp (is_fused_kernel_acceptable), Onehot.cpp (one_hot), SoftMax.cpp
(softmax, log_softmax).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses import fake_impls, fake_tensor

from vrambudget.compiled.python_ops import linear
from vrambudget.eager import recurrent

_aten = torch.ops.aten
_KEYS = (
    torch._C.DispatchKey.Autograd,
    torch._C.DispatchKey.CompositeImplicitAutograd,
    torch._C.DispatchKey.Meta,
)
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)


@contextmanager
def in_cpp() -> Iterator[None]:
    """Let operations run by their C++ inside."""
    operations = _decomposed()
    implementations: Any = fake_impls.op_implementations_dict
    with ExitStack() as stack:
        stack.enter_context(patch.dict(implementations))
        stack.enter_context(patch.object(fake_tensor, "torch_decomp_decompositions", _only_python))
        for op in _VIEWS:
            implementations.pop(op, None)
        for op in operations:
            stack.enter_context(patch.dict(op.py_kernels))
            for key in _KEYS:
                op.py_kernels.pop(key, None)
            op._dispatch_cache.clear()
        try:
            yield
        finally:
            for op in operations:
                op._dispatch_cache.clear()


@functools.cache
def _decomposed() -> list[Any]:
    """Return the operations of aten that tracing takes from Python."""
    packets = [getattr(_aten, name) for name in dir(_aten)]
    names = [(p, name) for p in packets if hasattr(p, "overloads") for name in p.overloads()]
    operations = [getattr(packet, name, None) for packet, name in names]
    return [op for op in operations if op and any(key in op.py_kernels for key in _KEYS)]


_in_python = fake_tensor.torch_decomp_decompositions


def _only_python(op: Any) -> bool:
    """Whether Python alone says what an operation makes, and how that lies."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "Meta")
    return bool(not has_kernel and _in_python(op))


def _dropout(x: Any, p: float, train: bool) -> Any:  # noqa: FBT001 - the schema of aten
    if not train or not p or not x.numel():
        return x
    return _aten.native_dropout(x, p, train)[0] if p < 1 else x.mul(x.new_zeros(()))


def _one_hot(x: Any, classes: int = -1) -> Any:
    classes = classes if classes >= 0 else int(x.max()) + 1
    return x.new_zeros((*x.shape, classes)).scatter_(-1, x.unsqueeze(-1), 1)


def _softmax(kernel: Any, x: Any, dim: int, dtype: torch.dtype | None = None) -> Any:
    if x.dtype is torch.float16 and dtype is torch.float32:  # without a copy in float32
        return kernel(x, dim, half_to_float=True)
    return kernel(x if dtype is None else x.to(dtype), dim, half_to_float=False)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **recurrent.FUNCTIONS,
    _aten.dropout.default: _dropout,
    _aten.one_hot.default: _one_hot,
    _aten.softmax.int: functools.partial(_softmax, _aten._softmax),
    _aten.log_softmax.int: functools.partial(_softmax, _aten._log_softmax),
    _aten.linear.default: functools.partial(linear, add=torch.Tensor.add_),
}
"""By operation."""
