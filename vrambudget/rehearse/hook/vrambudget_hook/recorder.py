"""Records what PyTorch's allocator does in a rehearsed process; written as JSON at its end.

It loads the stand-in libraries before torch can load the real ones, starts the allocator's own
history when CUDA is first used, counts optimizer steps, notes where values are read back from the
device, and stops the script after so many steps or seconds by raising SystemExit in its main
thread. It changes two things that the script could see: cuDNN is switched off (it is not virtual),
and the allocator's history is on.

This file runs in the user's Python, 3.9 or later, without the rest of vrambudget.

Not modelled: processes that end without Python's own exit (os._exit, SIGKILL) leave no record.
"""

# ruff: noqa: SLF001 - the allocator's history and the engine have no public names

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

from .frames import addresses, history, native_callers, own_frames, place
from .ranks import pretend

SHAPE_FROM_DATA = ("nonzero", "masked_select", "unique", "repeat_interleave", "bincount", "histc")
"""Parts of names of operations that read their output's shape from the device."""


class Stopped(SystemExit):
    """Ends the script with exit code 0; its `finally` clauses and exit handlers still run."""


class Recorder:
    """The state of one process. `plan` is what the parent asked for (see process.py)."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.folder = Path(plan["folder"])
        self.started = time.time()
        self.steps = 0
        self.ended: str | None = None  # "steps" or "timeout", where we ended it
        self.marks: deque[tuple[str, int, int, dict[str, list[int]]]] = deque(maxlen=plan["marks"])
        self.reads: dict[tuple[Any, Any], list[Any]] = {}
        self.out_of_memory: list[dict[str, Any]] = []
        self.peaks = [0, 0, 0]  # requested, allocated, reserved
        self.in_backward = 0
        self.torch: Any = None
        self.runtime: ctypes.CDLL | None = None
        self.on_read: Any = None  # ctypes' callback: it must live while the library may call it

    # ---- set up
    # --------------------------------------------------------------------------------------

    def load_libraries(self) -> None:
        """Load the stand-ins: who asks for one of their names later gets what is there."""
        loaded = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in self.plan["libraries"]]
        self.runtime = loaded[0]

    def torch_imported(self, torch: ModuleType) -> None:
        """Watch torch, which was just imported; the script has not used it yet."""
        self.torch = torch
        if self.torch.version.cuda is None:
            return
        kernels = [int(a.split("_")[1]) for a in _architectures(self.torch)]
        runnable = [version for version in kernels if version <= self.plan["capability"]]
        self._native().virtual_gpu_set_kernels(max(runnable, default=0))
        self.torch.backends.cudnn.enabled = False
        self.torch.cuda._lazy_call(self._cuda_starts)
        self._watch_optimizers()
        self._watch_backward()
        self._watch_reset()
        if self.plan["ranks"]:
            pretend(self.plan["ranks"], self._native().virtual_gpu_remember)
        atexit.register(self.write)
        if self.plan["timeout"] and threading.current_thread() is threading.main_thread():
            self._watch_clock()

    def _native(self) -> ctypes.CDLL:
        if self.runtime is None:
            self.load_libraries()
        assert self.runtime is not None  # noqa: S101 - loaded in the line above
        return self.runtime

    def _cuda_starts(self) -> None:
        if self.plan["stacks"] != "none":
            # Stacks of allocations only: gathering one at a free that an exception causes would
            # lose the exception, and a checkpoint's recomputation ends by one.
            self.torch.cuda.memory._record_memory_history(
                max_entries=self.plan["events"], context="alloc", stacks=self.plan["stacks"]
            )
        self.torch._C._cuda_attach_out_of_memory_observer(self._ran_out)
        self.on_read = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self._was_read)
        self._native().virtual_gpu_on_read(self.on_read)

    def _watch_optimizers(self) -> None:
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch hides the name
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)

    def _watch_backward(self) -> None:
        """Note when backward begins and ends, keeping nothing alive that the caller does not."""
        run = getattr(self.torch.autograd, "_engine_run_backward", None)
        if run is None:
            return

        def watched(*args: Any, **kwargs: Any) -> Any:
            outermost = not self.in_backward
            if outermost:
                self.mark("backward", self._parameters() if not self.marks else None)
            self.in_backward += 1
            try:
                return run(*args, **kwargs)
            finally:
                self.in_backward -= 1
                if outermost:
                    self.mark("forward")

        self.torch.autograd._engine_run_backward = watched

    def _watch_reset(self) -> None:
        """Keep the highest peak where the script resets its own."""
        reset = self.torch._C._cuda_resetPeakMemoryStats

        def watched(device: int) -> None:
            self._keep_peaks()
            reset(device)

        self.torch._C._cuda_resetPeakMemoryStats = watched

    def _watch_clock(self) -> None:
        def ring() -> None:
            time.sleep(max(0.0, self.plan["timeout"] - (time.time() - self.started)))
            self.ended = self.ended or "timeout"
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

        signal.signal(signal.SIGUSR1, _stop)
        threading.Thread(target=ring, daemon=True, name="vrambudget timeout").start()

    # ---- while the script runs
    # -------------------------------------------------------------------------

    def _stats(self) -> Any:
        return self.torch._C._cuda_memoryStats(0)

    def mark(self, phase: str, owners: dict[str, list[int]] | None = None) -> None:
        """Note that a phase begins: the numbers of allocations and frees say where."""
        if self.torch.cuda.is_initialized():
            count = self._stats()["allocation"]["all"]
            self.marks.append((phase, count["allocated"], count["freed"], owners or {}))

    def _keep_peaks(self) -> None:
        stats = self._stats()
        for i, name in enumerate(("requested_bytes", "allocated_bytes", "reserved_bytes")):
            self.peaks[i] = max(self.peaks[i], stats[name]["all"]["peak"])

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        self.mark(
            "optimizer_step",
            {"parameter": addresses(parameters), "gradient": addresses(gradients)},
        )

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.steps += 1
        states = [v for state in optimizer.state.values() for v in state.values()]
        self.mark("forward", {"optimizer_state": addresses(states)})
        if self.torch.cuda.is_initialized():
            self._keep_peaks()
            with (self.folder / f"progress-{os.getpid()}").open("a") as file:
                file.write(json.dumps([self.steps, *self.peaks]) + "\n")
        if self.plan["steps"] and self.steps >= self.plan["steps"]:
            self.ended = "steps"
            raise Stopped(0)

    def _parameters(self) -> dict[str, list[int]]:
        parameter, tensor = self.torch.nn.Parameter, self.torch.Tensor
        tensors = [o for o in gc.get_objects() if issubclass(type(o), tensor)]
        return {"parameter": addresses(o for o in tensors if isinstance(o, parameter))}

    def _ran_out(self, _device: int, asked: int, _total: int, free: int) -> None:
        thread = threading.main_thread().ident or 0
        frames = sys._current_frames().get(thread)
        stats = self._stats()
        self.mark("", self._parameters())  # names the owners; the phase goes on
        self.out_of_memory.append(
            {
                "requested_bytes": asked,
                "free_bytes": free,
                "allocated_bytes": stats["allocated_bytes"]["all"]["current"],
                "reserved_bytes": stats["reserved_bytes"]["all"]["current"],
                "step": self.steps,
                "stack": [place(f) for f in own_frames(frames)],
            }
        )

    def _was_read(self, count: int) -> None:
        frames = own_frames(sys._getframe())  # ours is no own frame
        at = place(frames[-1]) if frames else ["(inside backward)", 0, "", ""]
        key = (at[0], at[1])
        if key not in self.reads:
            self.reads[key] = [*at, 0, 0, any(map(_makes_shape, native_callers()))]
        entry = self.reads[key]
        entry[4] += 1
        entry[5] = max(entry[5], count)

    # ---- at the end
    # ------------------------------------------------------------------------------------

    def write(self) -> None:
        """Write the record in one go, under a name of this process."""
        if self.on_read is not None:
            self._native().virtual_gpu_on_read(None)
        record: dict[str, Any] = {"pid": os.getpid(), "steps": self.steps, "ended": self.ended}
        record["versions"] = _versions(self.torch)
        record["architectures"] = _architectures(self.torch)
        last = getattr(sys, "last_value", None)
        record["error"] = type(last).__name__ if last is not None else None
        record["message"] = str(last)[:4000] if last is not None else None
        record["cuda"] = bool(self.torch.cuda.is_initialized())
        if record["cuda"]:
            self._add_history(record)
        target = self.folder / f"record-{os.getpid()}.json"
        draft = target.with_suffix(".part")
        draft.write_text(json.dumps(record))
        draft.rename(target)

    def _add_history(self, record: dict[str, Any]) -> None:
        self._keep_peaks()
        count = self._stats()["allocation"]["all"]
        record["parameters"] = self._parameters()["parameter"]
        snapshot = self.torch.cuda.memory._snapshot()
        if self.plan["snapshot"]:
            with (self.folder / f"snapshot-{os.getpid()}.pickle").open("wb") as file:
                pickle.dump(snapshot, file)
        record.update(
            counts=[count["allocated"], count["freed"]],
            peaks=self.peaks,
            marks=list(self.marks),
            reads=list(self.reads.values()),
            out_of_memory=self.out_of_memory,
            history=history(snapshot["device_traces"][0], cplusplus=self.plan["stacks"] == "all"),
        )


def _architectures(torch: Any) -> list[str]:
    flags = torch._C._cuda_getArchFlags() if hasattr(torch._C, "_cuda_getArchFlags") else None
    return [a for a in (flags or "").split() if a.startswith("sm_") and a[3:].isdigit()]


def _versions(torch: Any) -> dict[str, str]:
    versions = {"torch": str(torch.__version__), "cuda": str(torch.version.cuda)}
    versions["python"] = ".".join(map(str, sys.version_info[:3]))
    for name in ("transformers", "peft", "accelerate"):
        module = sys.modules.get(name)
        if module is not None and hasattr(module, "__version__"):
            versions[name] = str(module.__version__)
    return versions


# ---- getting in
# ----------------------------------------------------------------------------------------


class TorchFinder(importlib.abc.MetaPathFinder):
    """Calls `then(torch)` when torch has been imported."""

    def __init__(self, then: Callable[[ModuleType], None]) -> None:
        self.then = then

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        """Find the real torch, and run our part after its own."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_then(module: ModuleType) -> None:
                run(module)
                self.then(module)

            spec.loader.exec_module = run_then  # type: ignore[method-assign]
        return spec


def _makes_shape(name: str) -> bool:
    """Tell whether a C++ function reads its output's shape (`is_nonzero` reads a truth value)."""
    return "is_nonzero" not in name and any(part in name for part in SHAPE_FROM_DATA)


def _stop(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Stopped(0)


def install(plan: str) -> None:
    """Prepare this process: the parent's plan is JSON."""
    # Started in the background by a shell, we ignore SIGINT, and so would the script, which we end
    # by it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    recorder = Recorder(json.loads(plan))
    recorder.load_libraries()
    sys.modules["vrambudget_hook"].mark = recorder.mark  # type: ignore[attr-defined]
    sys.meta_path.insert(0, TorchFinder(recorder.torch_imported))
