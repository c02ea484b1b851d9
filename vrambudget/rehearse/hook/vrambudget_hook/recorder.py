"""Records what PyTorch's allocator does in a rehearsed process; written as JSON at its end.

It loads the stub libraries before torch can load the real ones, starts the allocator's own
history when CUDA is first used, counts iterations, notes where values are read back that are not
known, and stops the script after so many steps or seconds by raising SystemExit in its main thread.
It changes two things that the script could see: cuDNN is switched off where it cannot be asked
without a GPU, and the allocator's history is on.

This file runs in the user's Python, 3.9 or later, without the rest of vrambudget.
"""

# ruff: noqa: SLF001 - the allocator's history and the engine have no public names

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import json
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

from .counting import Iterations
from .cudnn import CudnnStub
from .endings import Stopped, watch_clock, watch_endings
from .frames import addresses, history, own_frames, parameters, place
from .modules import ModulePaths
from .ranks import pretend
from .reads import Reads
from .value_tracer import ValueTracer
from .versions import architectures, check_backend, versions

_NAME = type.__dict__["__name__"].__get__  # a class's, whatever its metaclass says


class Recorder:
    """The state of one process. `plan` is what the parent asked for (see process.py)."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.folder = Path(plan["folder"])
        self.started = time.time()
        self.torch: Any = None
        self.runtime: ctypes.CDLL | None = None
        self.is_child = self.is_used = False
        self.unfollowed: str | None = None  # why values are not followed
        self.assuming: Any = None
        self.callbacks: list[Any] = []  # ctypes': they must live while the library may call them
        self.writing = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.iterations = Iterations()
        self.message: str | None = None  # of the exception that ended the script
        self.ended: str | None = None  # "steps" or "timeout" where we ended it, or a signal's name
        self.marks: deque[Any] = deque(maxlen=self.plan["marks"])
        self.reads, self.modules = Reads(), ModulePaths()
        self.out_of_memory: list[dict[str, Any]] = []
        self.peaks: dict[int, list[int]] = {}  # by GPU: requested, allocated, reserved
        self.in_backward = 0
        self.gpu = 0  # which of the GPUs: the main thread's

    def forked(self) -> None:
        """Begin anew in a child: it uses the GPU by itself, or not at all."""
        self.is_child, self.is_used = True, False
        self.writing = threading.Lock()
        self._begin()

    # ---- set up

    def load_libraries(self) -> None:
        """Load the stub libraries: who asks for one of their names later gets what is there."""
        loaded = [ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in self.plan["libraries"]]
        self.runtime = loaded[0]

    def torch_imported(self, torch: ModuleType) -> None:
        """Watch torch, which was just imported; the script has not used it yet."""
        self.torch = torch
        if self.torch.version.cuda is None:
            return
        self.cudnn = CudnnStub(torch, self.plan["libraries"])
        self.torch.cuda._lazy_call(self._cuda_starts)
        self._watch_optimizers()
        self._watch_backward()
        self._watch_reset()
        tracer = self._trace_values()
        if not self.plan["server"]:  # whose ranks all run, each in a process of its own
            pretend(self.plan["ranks"], self.plan["rank"], tracer)
        self.callbacks.append(watch_endings(self.write, self._native()))
        if self.plan["timeout"] and threading.current_thread() is threading.main_thread():
            left = self.plan["timeout"] - (time.time() - self.started)
            is_writing = self.writing.locked
            watch_clock(left, self.plan["grace"], self._time_is_up, self.write, is_writing)

    def _native(self) -> ctypes.CDLL:
        if self.runtime is None:
            self.load_libraries()
        assert self.runtime is not None  # noqa: S101 - loaded in the line above
        return self.runtime

    def _trace_values(self) -> ValueTracer | None:
        """Let what the host wrote be read back; without it, reads are zeros and are reported."""
        answer = self._native().virtual_gpu_answer
        answer.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong)
        try:
            numbers, routing = self.plan["values"], self.plan["routing"]
            tracer = ValueTracer(self.torch, answer, numbers=tuple(numbers), routing=routing)
            tracer.start()
        except Exception as error:  # noqa: BLE001 - another version of PyTorch: it is said
            self.unfollowed = f"{type(error).__name__}: {error}"
            return None
        self.assuming = tracer.assuming
        return tracer

    def _cuda_starts(self) -> None:
        check_backend(self.torch)
        # Not before: asked for its kernels, PyTorch lets no forked process use the GPU.
        kernels = [int(a.split("_")[1]) for a in architectures(self.torch)]
        runnable = [version for version in kernels if version <= self.plan["capability"]]
        self._native().virtual_gpu_set_kernels(max(runnable, default=0))
        self.cudnn.ask()
        if self.plan["stacks"] != "none":
            # Stacks of allocations only: gathering one at a free that an exception causes would
            # lose the exception, and a checkpoint's recomputation ends by one.
            self.torch.cuda.memory._record_memory_history(
                max_entries=self.plan["events"], context="alloc", stacks=self.plan["stacks"]
            )
        self.torch._C._cuda_attach_out_of_memory_observer(self._ran_out)
        on_read = ctypes.CFUNCTYPE(None, ctypes.c_size_t)(self._was_read)
        self.callbacks.append(on_read)
        self._native().virtual_gpu_on_read(on_read)
        self.is_used = True
        self._note_progress()

    def _watch_optimizers(self) -> None:
        optimizer = importlib.import_module("torch.optim.optimizer")  # torch hides the name
        optimizer.register_optimizer_step_pre_hook(self._before_step)
        optimizer.register_optimizer_step_post_hook(self._after_step)
        make = optimizer.Optimizer.__init__

        @functools.wraps(make)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            make(optimizer, *args, **kwargs)
            self.iterations.made(optimizer)

        optimizer.Optimizer.__init__ = watched

    def _watch_backward(self) -> None:
        """Note when backward begins and ends, keeping nothing alive that the caller does not.

        It is watched at the engine, which Megatron's schedules call without `torch.autograd`. What
        torch.compile traces on fake tensors is no pass of the script's.
        """
        variable = self.torch.autograd.Variable
        engine = getattr(variable, "_execution_engine", None)
        if engine is None:
            return

        core = self.torch._C
        fake = core._TorchDispatchModeKey.FAKE

        def run_backward(_: Any, *args: Any, **kwargs: Any) -> Any:
            if core._get_dispatch_mode(fake) is not None:
                return engine.run_backward(*args, **kwargs)
            outermost = not self.in_backward
            if outermost:
                self.iterations.before_backward()
                self._stop_after_steps()
                self.mark("backward", None if self.marks else self._owned())
            self.in_backward += 1
            try:
                return engine.run_backward(*args, **kwargs)
            finally:
                self.in_backward -= 1
                if outermost:
                    self.iterations.after_backward()
                    self.mark("forward")
                    if self.iterations.is_by_backward:
                        self._note_progress()

        kind = type(engine)
        watched = type(kind.__name__, (kind,), {"run_backward": run_backward})
        variable._execution_engine = watched()

    def _owned(self) -> dict[str, list[int]]:
        """Return where parameters are, and learn what they and the modules are called."""
        self.modules.look(self.torch)
        return parameters(self.torch)

    def _watch_reset(self) -> None:
        """Keep the highest peak where the script resets its own."""
        reset = self.torch._C._cuda_resetPeakMemoryStats

        def watched(device: int) -> None:
            self._keep_peaks()
            reset(device)

        self.torch._C._cuda_resetPeakMemoryStats = watched

    def _time_is_up(self) -> None:
        self.ended = self.ended or "timeout"

    # ---- while the script runs

    def _gpus(self) -> Iterable[int]:
        """Return the GPUs that are looked at: all, or that of the main thread of a rank."""
        if self.plan["ranks"] is None:
            return range(self.torch._C._cuda_getDeviceCount())
        if threading.current_thread() is threading.main_thread():
            self.gpu = self.torch._C._cuda_getDevice()
        return (self.gpu,)

    def _stats(self, gpu: int) -> Any:
        return self.torch._C._cuda_memoryStats(gpu)

    def mark(self, phase: str, owners: dict[str, list[int]] | None = None) -> None:
        """Note that a phase begins: the numbers of allocations and frees say where."""
        if self.torch.cuda.is_initialized():
            counts = {gpu: self._counts(gpu) for gpu in self._gpus()}
            self.marks.append((phase, counts, owners or {}, self.iterations.done))

    def _counts(self, gpu: int) -> tuple[int, int]:
        count = self._stats(gpu)["allocation"]["all"]
        return count["allocated"], count["freed"]

    def _keep_peaks(self) -> None:
        for gpu in self._gpus():
            stats, peaks = self._stats(gpu), self.peaks.setdefault(gpu, [0, 0, 0])
            for i, name in enumerate(("requested_bytes", "allocated_bytes", "reserved_bytes")):
                peaks[i] = max(peaks[i], stats[name]["all"]["peak"])

    def _fullest(self) -> int:
        """Return the GPU with the highest peak, of which the record is."""
        return max(self.peaks, key=lambda gpu: self.peaks[gpu][2], default=self.gpu)

    def _before_step(self, optimizer: Any, *_: Any) -> None:
        self.iterations.before_step(optimizer)
        self._stop_after_steps()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in parameters if p.grad is not None]
        self.mark(
            "optimizer_step",
            {"parameter": addresses(parameters), "gradient": addresses(gradients)},
        )

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        self.iterations.after_step(optimizer)
        states = [v for state in optimizer.state.values() for v in state.values()]
        self.mark("forward", {"optimizer_state": addresses(states)})
        self._note_progress()
        if not self.iterations.is_by_backward:
            self._stop_after_steps()

    def _stop_after_steps(self) -> None:
        if self.plan["steps"] and self.iterations.done >= self.plan["steps"]:
            self.ended = "steps"
            raise Stopped(0)

    def _note_progress(self) -> None:
        """Report progress to the parent: of a process that is killed, nothing else is left."""
        if self.is_used:
            self._keep_peaks()
            with (self.folder / f"progress-{os.getpid()}").open("a") as file:
                peaks = self.peaks[self._fullest()]
                file.write(json.dumps([self.iterations.done, *peaks]) + "\n")

    def _ran_out(self, gpu: int, asked: int, _total: int, free: int) -> None:
        thread = threading.main_thread().ident or 0
        frames = sys._current_frames().get(thread)
        stats = self._stats(gpu)
        self.mark("", self._owned())  # names the owners; the phase goes on
        self.out_of_memory.append(
            {
                "requested_bytes": asked,
                "free_bytes": free,
                "allocated_bytes": stats["allocated_bytes"]["all"]["current"],
                "reserved_bytes": stats["reserved_bytes"]["all"]["current"],
                "step": self.iterations.done + 1,
                "stack": [place(f) for f in own_frames(frames)],
            }
        )

    def _was_read(self, count: int) -> None:
        self.reads(count)

    # ---- at the end

    def write(self, ended: str | None = None) -> bool:
        """Write the record in one go, under a name of this process: once, and not of a mere child.

        `ended` says by what the process ends, where it is not by itself. Returns False where it was
        written before, or is being written.
        """
        if self.is_child and not self.is_used:
            return True
        self._ask_the_error()
        if not self.writing.acquire(blocking=False):
            return False
        self.ended = self.ended or ended
        self._native().virtual_gpu_on_read(None)
        try:
            self._leave(f"record-{os.getpid()}.json", self._record())
        except Exception as error:  # noqa: BLE001 - a full disk, or torch without its modules
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            _say(f"vrambudget: the record cannot be written: {reason}\n")
        return True

    def keep(self, name: str) -> None:
        """Leave a record of what was seen so far, and go on."""
        self._leave(f"{name}-{os.getpid()}.json", self._record())

    def note(self, name: str, values: dict[str, Any]) -> None:
        """Leave a few values of this process."""
        self._leave(f"{name}-{os.getpid()}.json", values)

    def _leave(self, name: str, values: dict[str, Any]) -> None:
        draft = (self.folder / name).with_suffix(".part")
        draft.write_text(json.dumps(values))
        draft.rename(self.folder / name)

    def _record(self) -> dict[str, Any]:
        done, unit = self.iterations.done, self.iterations.unit
        record: dict[str, Any] = {"pid": os.getpid(), "steps": done, "unit": unit}
        record.update(ended=self.ended, unfollowed=self.unfollowed, ranks=self.plan["ranks"])
        record["python"] = sys.executable
        record["versions"] = versions(self.torch, self.cudnn.version)
        record["architectures"] = architectures(self.torch)
        last = getattr(sys, "last_value", None)
        record["error"] = None if last is None else _NAME(type(last))
        record["message"] = self.message
        record["cuda"] = bool(self.torch.cuda.is_initialized())
        if record["cuda"]:
            self._add_history(record)
        return record

    def _ask_the_error(self) -> None:
        """Keep what the script's exception says, if it does: its `__str__` may raise, or not end.

        So it is asked once, and before anything is locked: a second writer goes on without it.
        """
        last = getattr(sys, "last_value", None)
        if last is not None and self.message is None:
            self.message = "(its text cannot be shown)"
            with contextlib.suppress(BaseException):
                self.message = str(last)[:4000]

    def _add_history(self, record: dict[str, Any]) -> None:
        self._keep_peaks()
        gpu = self._fullest()
        record["parameters"] = self._owned()["parameter"]
        record["names"] = self.modules.parameters
        snapshot = self.torch.cuda.memory._snapshot()
        trace = snapshot["device_traces"][gpu]
        if self.plan["snapshot"]:
            with (self.folder / f"snapshot-{os.getpid()}.pickle").open("wb") as file:
                pickle.dump(snapshot, file)
        marks = [(phase, *at.get(gpu, (0, 0)), *rest) for phase, at, *rest in self.marks]
        record.update(
            counts=self._counts(gpu),
            peaks=self.peaks[gpu],
            gpus={gpu: peaks for gpu, peaks in self.peaks.items() if peaks[2]},
            marks=marks,
            values=self.plan["values"],
            routing=self.plan["routing"],
            reads=list(self.reads.entries.values()),
            router=self.assuming and self.assuming.router,
            cudnn_unknown=self.cudnn.unknown(),
            unknown_workspaces=self._native().virtual_gpu_unknown_workspaces(),
            out_of_memory=self.out_of_memory,
            history=history(trace, self.modules.of, cplusplus=self.plan["stacks"] == "all"),
        )


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
