"""`rehearse(script, gpu=…)`: run a training script on a virtual card, and see its memory.

The script runs unmodified, in a process of its own, with PyTorch's own CUDA build; only the CUDA
libraries under it are stand-ins. So whatever decides memory is PyTorch's own: allocator, autograd,
dispatch, temporaries.

Not modelled: values. Everything that is read back from the device is zero, so a script that decides
by values (early stopping, NaN checks, shapes that follow from data) takes the branch for zeros; the
warnings name the lines. Neither are cuDNN (convolutions take PyTorch's own kernels, attention on
Hopper the flash kernel), NCCL's buffers, the device's speed, the CUDA context (a constant of the
GPU table), and several processes that share the card.
"""

import inspect
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse import process
from vrambudget.rehearse.advice import warnings_of
from vrambudget.rehearse.record import Ending, RecordedOutOfMemory, Rehearsal
from vrambudget.rehearse.stand_in import stand_in
from vrambudget.rehearse.timeline import read_timeline
from vrambudget.rehearse.torch_build import find_torch
from vrambudget.units import format_bytes

Command = str | Path | Sequence[str] | Callable[[], object]
_OUT_OF_MEMORY = "OutOfMemoryError"
_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch"}
_QUIET_SECONDS = 5.0  # between two lines of progress, after the first steps
_FIRST_STEPS = 3
_INTERRUPTED = 130  # as a shell says it


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    """How to rehearse; `say` gets the progress, a line at a time."""

    steps: int | None = None
    timeout: float | None = None
    snapshot: Path | None = None
    any_torch: bool = False
    quiet: bool = False
    ranks: int | None = None
    say: Callable[[str], None] = lambda _: None


def rehearse(
    script: Command,
    *,
    gpu: str | Gpu,
    steps: int | None = None,
    timeout: float | None = None,
    snapshot: str | Path | None = None,
    any_torch: bool = False,
    quiet: bool = False,
    ranks: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Run a script, a command or a function on a virtual `gpu` and return what was seen.

    It ends by itself, after `steps` optimizer steps, or after `timeout` seconds. `snapshot` names
    a file for PyTorch's memory visualiser (pytorch.org/memory_viz). `quiet` drops the script's
    own output. With `ranks` it runs as the first of so many, as torchrun would start it, with
    PyTorch's fake process group: the peak is each rank's. A script's Python is VRAMBUDGET_PYTHON,
    or this one. Raises VramBudgetError where nothing can be run: no CUDA build of PyTorch, no
    compiler, not Linux.
    """
    file = Path(snapshot) if snapshot else None
    options = RehearsalOptions(steps, timeout, file, any_torch, quiet, ranks, say)
    card = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    return rehearse_command(command_of(script), card, options)


def command_of(script: Command) -> tuple[str, ...]:
    """Return the command that runs it."""
    if callable(script):
        return _call(script)
    if isinstance(script, str | Path):
        script = (str(script),)
    words = tuple(map(str, script))
    if not words:
        raise VramBudgetError("there is nothing to rehearse", hint="write -- python train.py …")
    is_script = words[0].endswith(".py") and not os.access(words[0], os.X_OK)
    return (os.environ.get("VRAMBUDGET_PYTHON", sys.executable), *words) if is_script else words


def _call(function: Callable[[], object]) -> tuple[str, ...]:
    """Return a command that imports the function's file, not as __main__, and calls it."""
    name = getattr(function, "__qualname__", "")
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if not file or not name.isidentifier() or not Path(file).is_file():
        raise VramBudgetError(
            f"{name or function!r} cannot be called in another process",
            hint="pass a function that is defined at the top of a file, or the path of a script",
        )
    python = os.environ.get("VRAMBUDGET_PYTHON", sys.executable)
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='rehearsed')[sys.argv[2]]()"
    return (python, "-c", code, str(Path(file).resolve()), name)


def _check(options: RehearsalOptions) -> None:
    if options.steps is not None and options.steps < 1:
        raise VramBudgetError("steps must be 1 or more", where="--steps")
    if options.timeout is not None and not 0 < options.timeout < float("inf"):
        raise VramBudgetError("the time limit must be more than 0 seconds", where="--timeout")
    if options.ranks is not None and options.ranks < 1:
        raise VramBudgetError("ranks must be 1 or more", where="--ranks")
    if options.snapshot and not options.snapshot.absolute().parent.is_dir():
        raise VramBudgetError("no such folder", where=str(options.snapshot.absolute().parent))


def _check_launcher(command: Sequence[str]) -> None:
    """Refuse torchrun: its ranks would speak through NCCL, which is not virtual."""
    words = [Path(command[0]).name, *command[1:]] if command else []
    if "torchrun" in words[:1] or set(words[1:3]) & _LAUNCHERS:
        raise VramBudgetError(
            "torchrun starts ranks that speak through NCCL, which is not virtual",
            hint="rehearse one of them: --ranks 8 -- python train.py",
        )


def rehearse_command(
    command: tuple[str, ...], gpu: Gpu, options: RehearsalOptions, python_path: Path | None = None
) -> Rehearsal:
    """Run a command on a virtual `gpu`; `python_path`: one more folder to import from."""
    _check(options)
    _check_launcher(command)
    build = find_torch(command, any_torch=options.any_torch)
    libraries = stand_in(build, options.say)
    with tempfile.TemporaryDirectory(prefix="vrambudget-") as name:
        folder = Path(name)
        plan = process.Plan(
            folder,
            libraries,
            options.steps,
            options.timeout,
            snapshot=options.snapshot is not None,
            ranks=options.ranks,
        )
        options.say(f"PyTorch {build.version} on a virtual GPU: {gpu.name}")
        ended = process.run(
            command,
            gpu,
            plan,
            watch=Progress(folder, options.say),
            quiet=options.quiet,
            python_path=python_path,
        )
        records = read_records(folder)
        if options.snapshot is not None:
            _keep_snapshot(folder, options.snapshot)
    return _result(command, gpu, ended, records, options)


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Return the processes' records, the one with the highest peak first."""
    records = [json.loads(path.read_text()) for path in folder.glob("record-*.json")]
    return sorted(records, key=lambda record: record.get("peaks", [0, 0, -1])[2], reverse=True)


def _keep_snapshot(folder: Path, target: Path) -> None:
    found = sorted(folder.glob("snapshot-*.pickle"), key=lambda path: path.stat().st_size)
    if found:
        draft = target.with_name(f".{target.name}.part")
        shutil.move(found[-1], draft)
        draft.replace(target)


class Progress:
    """Says how far the script is: after each of the first steps, and then now and then."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self.folder, self.say, self.seen, self.said = folder, say, 0, 0.0

    def __call__(self) -> None:
        """Look for steps that were not seen yet."""
        if self.seen >= _FIRST_STEPS and time.monotonic() - self.said < _QUIET_SECONDS:
            return
        for path in self.folder.glob("progress-*"):
            lines = path.read_text().splitlines()
            if lines and len(lines) > self.seen and lines[-1].endswith("]"):
                self.seen, self.said = len(lines), time.monotonic()
                step, _, _, reserved = json.loads(lines[-1])
                self.say(f"step {step}: peak reserved {format_bytes(reserved)}")


def _result(
    command: tuple[str, ...],
    gpu: Gpu,
    ended: process.Ended,
    records: list[dict[str, Any]],
    options: RehearsalOptions,
) -> Rehearsal:
    record = records[0] if records else {}
    timeline = read_timeline(record) if record.get("history") else None
    requested, allocated, reserved = record.get("peaks", (0, 0, 0))
    ending = _ending(record, ended)
    return Rehearsal(
        command=command,
        gpu=gpu.name,
        capacity_bytes=gpu.capacity_bytes,
        context_bytes=gpu.context_bytes,
        versions=record.get("versions", {}),
        ended=ending,
        exit_code=_exit_code(record, ended),
        error=_error(record),
        seconds=ended.seconds,
        steps=record.get("steps", 0),
        peak_requested_bytes=requested,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=reserved,
        peak=timeline.peak if timeline else None,
        phases=timeline.phases if timeline else (),
        out_of_memory=_out_of_memory(record, ending),
        warnings=tuple(
            warnings_of(
                record,
                records,
                gpu,
                complete=not timeline or timeline.complete,
                ranks=options.ranks,
            )
        ),
    )


def _exit_code(record: dict[str, Any], ended: process.Ended) -> int:
    """Return the script's own; interrupted, Python may say 1 where exit handlers ran code."""
    if ended.cut == "interrupt" and record.get("error") == "KeyboardInterrupt":
        return _INTERRUPTED
    return ended.exit_code


def _ending(record: dict[str, Any], ended: process.Ended) -> Ending:
    if ended.cut == "interrupt":
        return "interrupt"
    if ended.cut == "timeout" or record.get("ended") == "timeout":
        return "timeout"
    if record.get("ended") == "steps":
        return "steps"
    if record.get("error") == _OUT_OF_MEMORY:
        return "out of memory"
    return "finished" if ended.exit_code == 0 else "failed"


def _error(record: dict[str, Any]) -> str | None:
    name, message = record.get("error"), record.get("message")
    return None if name in (None, "Stopped") else f"{name}: {message}"


def _out_of_memory(record: dict[str, Any], ending: Ending) -> tuple[RecordedOutOfMemory, ...]:
    found = record.get("out_of_memory", [])
    last = len(found) - 1
    return tuple(
        RecordedOutOfMemory(
            requested_bytes=event["requested_bytes"],
            free_bytes=event["free_bytes"],
            allocated_bytes=event["allocated_bytes"],
            reserved_bytes=event["reserved_bytes"],
            step=event["step"],
            stack=tuple(
                f"{file}:{line} {name}  {text}" for file, line, name, text in event["stack"]
            ),
            handled=ending != "out of memory" or i < last,
        )
        for i, event in enumerate(found)
    )
