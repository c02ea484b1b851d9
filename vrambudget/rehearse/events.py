"""Rehearse a job of the product's own vocabulary: its peaks, and every event of the allocator.

The job (a line of tests/records/reference.jsonl) runs through `measure.runner` on a virtual GPU.
The events begin with the process's first allocation, the model's build included, so that they can
be replayed, and they carry the operation, the autograd node, the phase and the line of Python, so
that they can be held against an estimate's. What comes after the last step is the order in which
Python takes the process apart, and means nothing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse import jobs, process
from vrambudget.rehearse.left import read_records
from vrambudget.rehearse.options import RehearsalOptions, check
from vrambudget.rehearse.stub_libraries import stub_libraries
from vrambudget.rehearse.torch_build import find_torch, own_python
from vrambudget.rehearse.workplace import workplace

_EVERYTHING = 5_000_000  # events that the history keeps


@dataclass(frozen=True, slots=True)
class AllocatorEvent:
    """One event of the allocator. `block` numbers allocations from 1; a free names its own."""

    action: str  # as PyTorch has it: alloc, free_requested, free_completed, segment_alloc, …
    bytes: int  # asked for; of a segment: its size
    block: int  # 0 for segments
    address: int
    stream: int
    phase: str  # "build", "0:forward", "0:backward", "0:optimizer", "1:forward", …
    operation: str  # outermost ATen operation: "linear"
    node: str  # autograd's: "AddmmBackward0"
    line: str  # innermost line of Python outside torch: "modeling_gpt2.py:278 forward"


@dataclass(frozen=True, slots=True)
class JobRehearsal:
    """What a job's rehearsal found; `measured` has the keys of `measure.runner`."""

    job: Mapping[str, Any]
    gpu: str
    versions: Mapping[str, str]
    measured: Mapping[str, Any]
    events: tuple[AllocatorEvent, ...]


def rehearse_job(
    job: Mapping[str, Any],
    *,
    gpu: str | Gpu,
    events: bool = True,
    python: str | None = None,
    any_torch: bool = False,
    routing: str | None = None,
) -> JobRehearsal:
    """Run a job on a virtual `gpu`. Raises VramBudgetError where it cannot run or fails.

    `python` is the one whose PyTorch is used: VRAMBUDGET_PYTHON, or this one. `routing`: how tokens
    spread over experts, one of ROUTINGS.
    """
    check(RehearsalOptions(routing=routing))
    device = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    program = python or own_python()
    libraries = stub_libraries(find_torch([program], any_torch=any_torch))
    with workplace() as (folder, lock):
        stacks = "all" if events else "none"
        plan = process.ProcessPlan(
            folder, libraries, stacks=stacks, events=_EVERYTHING, routing=routing, lock=lock
        )
        run = jobs.JobFolder(folder, job)
        ended = process.run(run.command(program), device, plan, python_path=run.package)
        records = read_records(folder)
        if ended.exit_code or not records:
            raise VramBudgetError(f"the job failed (exit {ended.exit_code})")
        measured = run.measured()
    found = tuple(read_events(records[0])) if events else ()
    return JobRehearsal(job, device.name, records[0]["versions"], measured, found)


def read_events(record: Mapping[str, Any]) -> Iterator[AllocatorEvent]:
    """Yield a record's history, with the phases that the runner marked."""
    history = record["history"]
    marks = [(phase, a, f) for phase, a, f, *_ in record["marks"] if ":" in phase]
    blocks: dict[int, int] = {}
    stacks = [_described(stack) for stack in history["stacks"]]
    allocations = frees = 0
    phase = "build"
    columns = ("action", "bytes", "address", "stream", "stack")
    for action, size, address, stream, stack in zip(
        *(history[column] for column in columns), strict=True
    ):
        if action != "free_completed":  # it belongs to the request before it, in the same phase
            while marks and marks[0][1] <= allocations and marks[0][2] <= frees:
                phase = marks.pop(0)[0]
        if action == "alloc":
            allocations += 1
            blocks[address] = allocations
        elif action == "free_requested":
            frees += 1
        block = 0 if action.startswith("segment") else blocks.get(address, 0)
        yield AllocatorEvent(action, size, block, address, stream, phase, *stacks[stack])


def _described(stack: Any) -> tuple[str, str, str]:
    node, operation, lines = stack
    file, number, name = lines[0] if lines else ("", 0, "")
    return operation, node, f"{Path(file).name}:{number} {name}" if file else ""
