"""The GPU that torch.cuda, Dynamo and Inductor ask about while a model is compiled.

Inductor reads the number of multiprocessors (how a reduction is split), the compute capability
(which kernels there are) and limits of a block. Nothing here asks a driver.

Source: torch/_dynamo/device_interface.py (CudaInterface), torch/_inductor/runtime/hints.py
(DeviceProperties).
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.private import device_interface
from vrambudget.config.architectures import limits_of
from vrambudget.engine.context import Platform

_AMPERE = 8


@contextmanager
def named(platform: Platform) -> Iterator[None]:
    """Let torch.cuda answer for this GPU inside."""
    gpu = _properties(platform)
    answers = _answers(gpu)
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        interfaces = device_interface.device_interfaces
        device_interface.get_interface_for_device("cuda")  # which fills the table
        stack.enter_context(patch.dict(interfaces, {"cuda": _interface(gpu, answers)}))
        available = "torch.cuda.amp.common.amp_definitely_not_available"
        stack.enter_context(patch(available, lambda: False))
        yield


def _properties(platform: Platform) -> Any:
    major, minor = platform.compute_capability
    shared = limits_of(platform.compute_capability).shared_per_block
    return SimpleNamespace(
        name="CUDA card",
        type="cuda",
        index=0,
        major=major,
        minor=minor,
        cc=10 * major + minor,
        multi_processor_count=platform.multiprocessors,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=platform.max_threads_per_multiprocessor,
        max_threads_per_block=1024,
        warp_size=32,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=shared,
        shared_memory_per_multiprocessor=shared + 1024,
        L2_cache_size=platform.l2_bytes,
        total_memory=2**40,
        gcnArchName="",
        is_integrated=False,
    )


class _Stream:
    """The default stream."""

    cuda_stream = stream_id = device_index = 0
    device_type = 1
    device = torch.device("cuda", 0)


class _Generator(torch.Generator):
    """The GPU's source of random numbers: what recomputes dropout keeps and restores its state."""

    device = torch.device("cuda", 0)

    def clone_state(self) -> "_Generator":
        """Return another of the same state: nothing is drawn."""
        return self

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, _state: Any) -> "_Generator":
        """Do nothing."""
        return self


class GeneratorOfEither(torch.Generator):
    """`torch.Generator`, which makes one of the host for the GPU, too: nothing is drawn there."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Return a generator of the GPU's, or one of the host's."""
        is_of_gpu = torch.device(device).type == "cuda"
        return _Generator() if is_of_gpu else super().__new__(cls)


class _Entered:
    """`torch.cuda.device` and its like: there is one device."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _answers(gpu: Any) -> dict[str, Any]:
    """Return what stands in for functions of torch.cuda, by name."""
    stream = _Stream()
    return {
        "get_device_properties": lambda _device=None: gpu,
        "get_device_capability": lambda _device=None: (gpu.major, gpu.minor),
        "get_device_name": lambda _device=None: gpu.name,
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "is_bf16_supported": lambda including_emulation=True: (
            including_emulation or gpu.major >= _AMPERE
        ),
        "synchronize": lambda _device=None: None,
        "set_device": lambda _device: None,
        "current_stream": lambda _device=None: stream,
        "_exchange_device": lambda _device: 0,
        "_maybe_exchange_device": lambda _device: 0,
        "default_generators": (_Generator(),),
        "_DeviceGuard": _Entered,
        "device": _Entered,
    }


def _interface(gpu: Any, answers: dict[str, Any]) -> type[device_interface.DeviceInterface]:
    """Return the device interface of "cuda" for the GPU."""

    class Worker:
        set_device = staticmethod(answers["set_device"])
        current_device = staticmethod(answers["current_device"])
        get_device_properties = staticmethod(answers["get_device_properties"])

    shared = (
        "get_device_properties",
        "current_device",
        "device_count",
        "is_bf16_supported",
        "synchronize",
        "set_device",
        "current_stream",
    )
    named: dict[str, Any] = {name: answers[name] for name in shared}
    named["exchange_device"] = answers["_exchange_device"]
    named["maybe_exchange_device"] = answers["_maybe_exchange_device"]
    for name, answer in (
        ("get_raw_stream", 0),
        ("is_available", True),
        ("get_compute_capability", gpu.cc),
        ("is_triton_capable", True),
        ("raise_if_triton_unavailable", None),
    ):
        named[name] = _always(answer)
    own = {name: staticmethod(answer) for name, answer in named.items()}
    return type("NamedCard", (device_interface.CudaInterface,), {**own, "Worker": Worker})


def _always(answer: Any) -> Any:
    return lambda *_, **__: answer
