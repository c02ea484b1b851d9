"""The device that PyTorch's C++ sees on fake tensors, so that its autograd runs without a GPU.

Two readers ask a fake tensor for its device. Python code (Dynamo, Inductor, the model) must see
cuda:0, for it decides what is compiled. C++ asks through Python, too (`prim.device`). If the answer
is "cuda", autograd looks for streams and a device count, which a CPU build, or a machine without a
GPU, lacks. If it is "xla", autograd runs on the caller's thread without streams, and autocast still
treats the tensor as one of CUDA's (`is_autocast_eligible`). So C++ is answered xla:0.

What C++ makes by the device that it read then asks for xla:0: the modes' dispatch turns that back
into cuda:0. And autograd asks each device type for its guard. PyTorch has none for XLA, so its own
guard of the type meta, which does nothing, is registered for it, by PyTorch's own function.

Source: torch/csrc/autograd/input_metadata.cpp, input_buffer.cpp; aten/src/ATen/autocast_mode.h;
aten/src/ATen/DeviceAccelerator.cpp; c10/core/impl/DeviceGuardImplInterface.h (registerDeviceGuard);
torch/_subclasses/fake_tensor.py, functional_tensor.py.
"""

import ctypes
import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.private import (
    REGISTER_GUARD,
    REGISTERED_GUARDS,
    FakeTensor,
    FakeTensorMode,
    FunctionalTensor,
    FunctionalTensorMode,
    ProxyTorchDispatchMode,
    fake_tensor,
    get_proxy_slot,
)

GPU = torch.device("cuda:0")
_FOR_CPP = torch.device("xla:0")

_XLA, _META = 9, 14  # of c10::DeviceType
_MOVES = (torch.ops.prims.device_put.default, torch.ops.aten._to_copy.default)
_DEVICE = torch.ops.prim.device.default


@contextmanager
def devices_for_cpp() -> Iterator[None]:
    """Let C++ see tensors on the GPU as xla:0 inside."""
    _register_guard()
    multithreading = torch.autograd.is_multithreading_enabled()
    torch.autograd.set_multithreading_enabled(False)
    try:
        with ExitStack() as stack:
            for change in _changes():
                stack.enter_context(change)
            yield
    finally:
        torch.autograd.set_multithreading_enabled(multithreading)


def _changes() -> Iterator[Any]:
    handlers: Any = fake_tensor._DISPATCH_META_HANDLERS
    yield patch.dict(handlers, {_DEVICE: _device_for_cpp(handlers[_DEVICE])})
    asked = FakeTensor.__torch_dispatch__.__func__  # type: ignore[attr-defined]

    def dispatch(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _DEVICE and _is_on_gpu(args[0]):
            return _FOR_CPP
        return asked(cls, func, types, args, kwargs or {})

    yield patch.object(FakeTensor, "__torch_dispatch__", classmethod(dispatch))
    for mode in (FakeTensorMode, FunctionalTensorMode, ProxyTorchDispatchMode):
        own = mode.__torch_dispatch__
        yield patch.object(mode, "__torch_dispatch__", _on_gpu(own))
    tracer = ProxyTorchDispatchMode
    yield patch.object(tracer, "__torch_dispatch__", _without_constants(tracer.__torch_dispatch__))
    yield patch.object(FunctionalTensor, "device", property(_functional_device), create=True)
    for kind in (FakeTensor, FunctionalTensor):
        for name, device in (("is_cuda", GPU), ("is_xla", _FOR_CPP)):
            answer = property(functools.partial(_is_on, device.type))
            yield patch.object(kind, name, answer, create=True)
    make = torch.Tensor._make_wrapper_subclass
    yield patch.object(torch.Tensor, "_make_wrapper_subclass", staticmethod(_made(make)))
    yield patch.object(torch._C, "_ensureCUDADeviceGuardSet", lambda: None, create=True)


def _device_for_cpp(asked: Callable[..., Any]) -> Callable[..., Any]:
    def device(args: Any) -> Any:
        (x,) = args
        while isinstance(x, FunctionalTensor):  # since 2.15 its device is asked of the mode
            x = torch._from_functional_tensor(x.elem)
        return _FOR_CPP if _is_on_gpu(x) else asked([x])

    return device


def _is_on_gpu(x: Any) -> bool:
    return (
        isinstance(x, FakeTensor)
        and x.fake_device.type == GPU.type
        and not x.fake_mode.in_kernel_invocation
    )


def _on_gpu(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return a mode's dispatch that turns a device which C++ read off a tensor into the GPU."""

    @functools.wraps(own)
    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        if device is not None and device.type == _FOR_CPP.type:
            kwargs = {**kwargs, "device": GPU}
        return own(mode, func, types, args, kwargs)

    # As PyTorch's own: Dynamo meets it between two graphs.
    untraced: Callable[..., Any] = torch.compiler.disable(dispatch)
    return untraced


def _without_constants(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return the tracer's dispatch that forgets a constant's values once it is on the GPU.

    PyTorch computes on constants while it traces, which needs their device. T5's cache begins as
    one without elements: `torch.tensor([], device="cuda")`.

    Source: torch/fx/experimental/proxy_tensor.py (proxy_call).
    """

    @functools.wraps(own)
    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = get_proxy_slot(args[0], mode.tracer, None) if func in _MOVES else None
        if known is None or known.constant is None:
            return own(mode, func, types, args, kwargs)
        constant, known.constant = known.constant, None
        try:
            return own(mode, func, types, args, kwargs)
        finally:
            known.constant = constant

    return dispatch


def _is_on(device_type: str, x: Any) -> bool:
    return bool(x.device.type == device_type)


def _functional_device(x: Any) -> torch.device:
    return torch._from_functional_tensor(x.elem).device


def _made(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return the maker of wrappers: a functional tensor has the GPU's dispatch keys."""
    place, asks = 7, 11  # of `device` and `dispatch_device`

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is FunctionalTensor and args[place - 1].type == _FOR_CPP.type:
            given = [*args]
            given[place - 1], given[asks - 1] = GPU, True
            args = tuple(given)
        return make(cls, *args, **kwargs)

    return made


@functools.cache
def _register_guard() -> None:
    """Register the guard of meta for XLA, once."""
    if not REGISTERED_GUARDS[_XLA]:
        itself = ctypes.create_string_buffer(1)  # a registrar has no members
        REGISTER_GUARD(itself, _XLA, REGISTERED_GUARDS[_META])
