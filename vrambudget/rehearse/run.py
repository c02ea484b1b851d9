"""`rehearse(script, gpu=…)`: run a training script on a virtual GPU, and see its memory.

The script runs unmodified, in a process of its own, with PyTorch's own CUDA build; only the CUDA
libraries under it are stubs. So whatever decides memory is PyTorch's own: allocator,
autograd, dispatch, temporaries.

Integers and booleans that come from the host, and what follows from them, are read back as on a
GPU.

Not modelled: other values. What is computed in floating point is read back as `values` says, zeros
by default, so a script that decides by it (early stopping, NaN checks) takes that branch; the
warnings name the lines. Routers spread tokens as `routing` says. Neither are recurrent layers of
cuDNN (they take PyTorch's own kernels), what is the fastest of its engines, NCCL's buffers, the
device's speed, the CUDA context (a constant of the GPU table), and several processes that share
the GPU.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.files import write_file
from vrambudget.rehearse import process
from vrambudget.rehearse.advice import warnings_of
from vrambudget.rehearse.curve import curve_of
from vrambudget.rehearse.launcher_prefix import without_launcher
from vrambudget.rehearse.launchers import launched, launcher_of
from vrambudget.rehearse.left import (
    Progress,
    keep_snapshot,
    read_records,
    remove_shared_memory,
    unrecorded,
)
from vrambudget.rehearse.options import RehearsalOptions, check, read_values
from vrambudget.rehearse.page import page as page_of
from vrambudget.rehearse.record import Ending, GpuPeak, RecordedOutOfMemory, Rehearsal
from vrambudget.rehearse.servers.command import beside_python, server_of
from vrambudget.rehearse.servers.run import ServerRun, check_options, of_server
from vrambudget.rehearse.stub_libraries import stub_libraries
from vrambudget.rehearse.timeline import read_timeline
from vrambudget.rehearse.torch_build import check_script, find_torch, own_python
from vrambudget.rehearse.workplace import workplace

Command = str | Path | Sequence[str] | Callable[[], object]
_OUT_OF_MEMORY = "OutOfMemoryError"
_INTERRUPTED = 130  # as a shell says it
_BY_SIGNAL = 128  # and beyond: a signal's number on top
_UNRECORDED = _NO_STEP = 2
_TOO_SHORT = "the time limit was reached before an iteration was over: peaks are of its beginning"


def rehearse(
    script: Command,
    *,
    gpu: str | Gpu,
    steps: int | None = None,
    timeout: float | None = None,
    snapshot: str | Path | None = None,
    page: str | Path | None = None,
    any_torch: bool = False,
    quiet: bool = False,
    ranks: int | None = None,
    rank: int = 0,
    values: str = "zeros",
    routing: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Rehearsal:
    """Run a script, a command or a function on a virtual `gpu` and return what was seen.

    It ends by itself, after `steps` optimizer steps, or after `timeout` seconds. `snapshot` names
    a file for PyTorch's memory visualiser (pytorch.org/memory_viz), `page` one for the report in
    HTML, with the timeline. `quiet` drops the script's own output. With `ranks` it runs as one of
    so many (number `rank`), as torchrun would start it, with PyTorch's fake process group; a
    command of torchrun says so itself. Floating-point numbers that the script reads are "zeros",
    "ones" or "random" (in [0, 1), with a seed: "random:7"), and what is decided by them follows.
    `routing` says how tokens spread over experts: "uniform" (the default, which the warnings then
    tell) or "collapsed". A script's Python is VRAMBUDGET_PYTHON, or this one. Raises
    VramBudgetError where nothing can be run: no CUDA build of PyTorch, no compiler, not Linux.
    """
    file = Path(snapshot) if snapshot else None
    has_page = page is not None
    options = RehearsalOptions(
        steps, timeout, file, any_torch, quiet, ranks, rank, values, routing, say, has_page
    )
    device = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    result = rehearse_command(command_of(script), device, options)
    if page is not None:
        write_file(Path(page), page_of(result).encode())
    return result


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
    return (own_python(), *words) if is_script else words


def _call(function: Callable[[], object]) -> tuple[str, ...]:
    """Return a command that imports the function's file, not as __main__, and calls it."""
    name = getattr(function, "__qualname__", "")
    file = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if not file or not name.isidentifier() or not Path(file).is_file():
        raise VramBudgetError(
            f"{name or function!r} cannot be called in another process",
            hint="pass a function that is defined at the top of a file, or the path of a script",
        )
    code = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='rehearsed')[sys.argv[2]]()"
    return (own_python(), "-c", code, str(Path(file).resolve()), name)


def rehearse_command(
    command: tuple[str, ...], gpu: Gpu, options: RehearsalOptions, python_path: Path | None = None
) -> Rehearsal:
    """Run a command on a virtual `gpu`; `python_path`: one more folder to import from."""
    inner = without_launcher(command, os.environ)
    serving = server_of(inner.command)
    if serving is not None:
        inner = replace(inner, command=beside_python(inner.command))
        serving = server_of(inner.command)
    if serving is not None:
        check_options(options)
    given = inner.ranks if options.ranks is None else options.ranks
    options = replace(options, ranks=given)
    check(options)
    launcher, _ = launcher_of(inner.command)
    if options.rank and options.ranks is None and launcher is None:
        raise VramBudgetError("--rank needs --ranks: of how many?", where="--rank")
    any_torch = options.any_torch or serving is not None  # engines bring their own
    build = find_torch(inner.command, inner.prefix, any_torch=any_torch)
    check_script(inner.command)
    variables = {**os.environ, **inner.given}
    started, ranks = launched(inner.command, build.python, options.ranks, variables)
    if launcher is None:
        started = (*inner.prefix, *started)
    libraries = stub_libraries(build, options.say)
    with workplace() as (folder, lock):
        plan = process.ProcessPlan(
            folder,
            libraries,
            options.steps,
            options.timeout,
            snapshot=options.snapshot is not None,
            ranks=ranks,
            rank=options.rank,
            values=read_values(options.values),
            routing=options.routing,
            each=inner.each,
            launcher_variables=inner.variables(options.rank),
            lock=lock,
        )
        server = ServerRun(serving, folder, gpu, build.version) if serving else None
        if server is not None:
            started, plan = (*inner.prefix, *server.prepared.command), server.planned(plan)
        options.say(f"PyTorch {build.version} on a virtual GPU: {gpu.name}")
        ended = process.run(
            started,
            gpu,
            plan,
            watch=Progress(folder, options.say),
            quiet=options.quiet,
            python_path=python_path,
            base=variables,
            lines=server.log.read if server else None,
        )
        remove_shared_memory(folder)
        records = read_records(folder)
        start = server.start() if server else None
        records = server.records(records) if server else records
        unseen = unrecorded(folder, records)
        if options.snapshot is not None:
            keep_snapshot(folder, options.snapshot)
    result = _result(command, gpu, ended, records, options)
    if start is not None:
        return of_server(result, start, ended.cut)
    if unseen and ended.cut is None:
        return _blind(result, unseen)
    if result.ended == "timeout" and not result.steps:
        return replace(result, error=_TOO_SHORT, exit_code=_NO_STEP)
    return result


def _blind(result: Rehearsal, unseen: str) -> Rehearsal:
    """Return a rehearsal that missed what it should have seen: it never ends well."""
    if result.exit_code:
        return replace(result, warnings=(*result.warnings, unseen))
    return replace(result, ended="unrecorded", error=unseen, exit_code=_UNRECORDED)


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
        python=record.get("python", ""),
        ended=ending,
        exit_code=_exit_code(record, ended),
        error=_error(record),
        seconds=ended.seconds,
        steps=record.get("steps", 0),
        step_unit=record.get("unit", "optimizer step"),
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
                ranks=record.get("ranks", options.ranks),
            )
        ),
        gpus=_gpus(record),
        curve=curve_of(record) if options.curve and timeline and timeline.complete else None,
    )


def _gpus(record: Mapping[str, Any]) -> tuple[GpuPeak, ...]:
    """Return each GPU's peaks where the process used several."""
    gpus = sorted((int(device), peaks) for device, peaks in record.get("gpus", {}).items())
    return tuple(GpuPeak(device, *peaks) for device, peaks in gpus) if len(gpus) > 1 else ()


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
    left_none = record.get("ended") == "killed" and ended.exit_code < _BY_SIGNAL
    if record.get("ended") is not None and not left_none:  # a signal's name, or "killed"
        return "killed"
    return "finished" if ended.exit_code == 0 else "failed"


def _error(record: dict[str, Any]) -> str | None:
    name, message = record.get("error"), record.get("message")
    if str(record.get("ended")).startswith("SIG"):
        return f"it got {record['ended']}"
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
