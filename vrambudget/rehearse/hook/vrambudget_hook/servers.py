"""What an inference server measures of itself, noted in the processes that hold the GPUs.

A server's engine is ended by its parent, so its notes are left as soon as they are known: at the
end of the profiled step, which decides how much is left for keys and values, and when the server is
warm. Their own log lines are read beside them (rehearse/servers/log.py).

Runs in the user's Python, 3.9 or later.

Source: vllm/v1/worker/gpu_worker.py (Worker.determine_available_memory,
compile_or_warm_up_model), 0.11 to 0.23; flashinfer/jit/core.py (JitSpec).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

JIT = "flashinfer.jit.core"
SHARED = "multiprocessing.shared_memory"
WORKERS = ("vllm.v1.worker.gpu_worker",)
PROFILE = "profiled step"  # the phase's name in the report

_OF_THE_WORKER = {
    "requested_bytes": "requested_memory",
    "activations_bytes": "peak_activation_memory",
    "outside_bytes": "non_torch_memory",
    "cache_bytes": "available_kv_cache_memory_bytes",
    "estimated_graphs_bytes": "cudagraph_memory_estimate",
}


class _Module:
    """A compiled module of kernels: each does nothing."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0


def compile_nothing(module: ModuleType) -> None:
    """Let FlashInfer not compile its kernels with nvcc, which nobody runs."""
    module.JitSpec.build_and_load = lambda spec, *_, **__: _Module(spec.name)
    module.JitSpec.build = lambda *_, **__: None


def note_shared(module: ModuleType, recorder: Any) -> None:
    """Note the shared memory that this process makes: it outlives a process that is ended."""
    owner: Any = module.SharedMemory
    make = owner.__init__

    @functools.wraps(make)
    def noted(own: Any, name: Any = None, create: bool = False, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001, FBT002 - as Python has it
        make(own, name, create, *args, **kwargs)
        if create:
            (recorder.folder / f"shared-{own.name}").touch()

    owner.__init__ = noted


def watch(module: ModuleType, recorder: Any) -> None:
    """Note what vLLM's worker measures, where this version has these methods."""
    worker: Any = module.Worker
    notes: dict[str, Any] = {}
    _after(worker, "determine_available_memory", lambda own: _profiled(own, recorder, notes))
    _after(worker, "compile_or_warm_up_model", lambda own: _warm(own, recorder, notes))
    profile = worker.determine_available_memory

    @functools.wraps(profile)
    def marked(own: Any, *args: Any, **kwargs: Any) -> Any:
        recorder.mark(PROFILE)
        # Before CUDA graphs are profiled, with a cache for keys and values of their own.
        _after(type(own.model_runner), "profile_run", lambda _: _keep(recorder))
        return profile(own, *args, **kwargs)

    worker.determine_available_memory = marked


def _after(owner: Any, name: str, then: Callable[[Any], None]) -> None:
    run = getattr(owner, name, None)
    if run is None:
        return

    @functools.wraps(run)
    def noted(own: Any, *args: Any, **kwargs: Any) -> Any:
        out = run(own, *args, **kwargs)
        then(own)
        return out

    setattr(owner, name, noted)


def _profiled(worker: Any, recorder: Any, notes: dict[str, Any]) -> None:
    found = {name: getattr(worker, attribute, None) for name, attribute in _OF_THE_WORKER.items()}
    notes.update({name: int(value) for name, value in found.items() if value is not None})
    runner = worker.model_runner
    notes["rank"] = int(getattr(worker, "rank", 0))
    notes["weights_bytes"] = int(getattr(runner, "model_memory_usage", 0))
    recorder.note("worker", notes)


def _keep(recorder: Any) -> None:
    recorder.keep("profile")
    recorder.mark("serving")


def _warm(_worker: Any, recorder: Any, notes: dict[str, Any]) -> None:
    cuda = recorder.torch.cuda
    free, _ = cuda.mem_get_info()
    notes.update(free_bytes=free, reserved_bytes=cuda.memory_reserved(), pid=os.getpid())
    recorder.note("worker", notes)
