"""The prediction as a snapshot of PyTorch's allocator, for the viewer that people know.

    snapshot(traced)      what torch.cuda.memory._snapshot() would return
    snapshot_bytes(traced)    the file that torch.cuda.memory._dump_snapshot() would write

pytorch.org/memory_viz and `python -m torch.cuda._memory_viz` open it. A stack reads, from the top:
the operation, the module that ran it, the tensor that it made, what that is for, the phase and
step. Colours are purposes.
On a GPU that is too small the history ends with the request that failed.

Source: torch/cuda/memory.py (_snapshot), torch/cuda/_memory_viz.py, torch/utils/viz/MemoryViz.js.
Its reader knows pickle's protocols 2 to 4, and stops at a history in which some entries have a
category and none is "unknown": segments are.

Not modelled: time; an entry's time_us is its number.
"""

import pickle
from collections.abc import Iterator
from functools import cache
from typing import Any

from vrambudget.estimator import Traced
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import moment
from vrambudget.tape.trace import Action, Trace, trace
from vrambudget.units import format_bytes

_BASE = 0x7F00_0000_0000  # where a driver's addresses lie; 0 is no address
_SMALL_SEGMENT = 2 * 2**20
_PROTOCOL = 4
_FREES = {
    "free": ("free_requested", "free_completed"),
    "free_requested": ("free_requested",),
    "free_completed": ("free_completed",),
}

Entry = dict[str, Any]


def snapshot_bytes(traced: Traced) -> bytes:
    """Return the pickled snapshot."""
    return pickle.dumps(snapshot(traced), protocol=_PROTOCOL)


def snapshot(traced: Traced) -> dict[str, Any]:
    """Return the snapshot at the end of the job, or where its GPU is full."""
    tape = traced.tape
    placed = trace(tape)
    if traced.budget.out_of_memory is not None:
        placed = trace(tape, traced.available_bytes)
    capacity = traced.available_bytes or 0
    frames = _Frames(tape)
    entries = enumerate(_entries(placed, frames, capacity))
    history = [{**entry, "time_us": n} for n, entry in entries]
    return {
        "segments": [_segment(at, size, placed, frames) for at, size in placed.segments.items()],
        "device_traces": [history],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
        "external_annotations": [],
    }


def _tensor_name(tape: Tape, storage: int) -> str:
    """Return what a storage was made for: "float32 [8, 1024, 768]", or its size for raw bytes."""
    content = tape.contents[storage]
    if content is None:
        return f"{format_bytes(tape.sizes[storage])} of raw memory"
    shape, dtype = content
    return f"{dtype} {list(shape)}" if shape else f"{dtype} scalar"


class _Frames:
    """Stacks that say what Python's and C++'s would: who asked for a block, and when."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self._when = cache(self._phase_frame)
        self._born: dict[int, list[Entry]] = {}

    def at_allocation(self, storage: int, event: int) -> list[Entry]:
        """Return the stack of the request for a storage."""
        tape = self.tape
        made = _frame(tape.operations[storage], "operation")
        of = _frame(_tensor_name(tape, storage), "tensor")
        purpose = _frame(str(tape.purposes[storage]), "purpose")
        path = tape.path_of(storage)
        module = [_frame(path, "module")] if path else []
        self._born[storage] = [made, *module, of, purpose, self.when(event)]
        return self._born[storage]

    def of(self, storage: int) -> list[Entry]:
        """Return the stack with which a storage was asked for."""
        return self._born[storage]

    def when(self, event: int) -> Entry:
        """Return the frame that names the phase."""
        mark, _ = moment(self.tape, event)
        return self._when(mark.step, str(mark.phase))

    def _phase_frame(self, step: int, phase: str) -> Entry:
        return _frame(phase.replace("_", " "), f"step {step + 1}")


def _frame(name: str, filename: str) -> Entry:
    return {"name": name, "filename": filename, "line": 0}


def _entries(placed: Trace, frames: _Frames, capacity: int) -> Iterator[Entry]:
    tape = frames.tape
    for action in placed.actions:
        storage = action.storage
        if action.kind == "alloc":
            stack = frames.at_allocation(storage, action.event)
            yield _entry("alloc", action, stack, str(tape.purposes[storage]))
        elif action.kind in _FREES:
            for word in _FREES[action.kind]:
                yield _entry(word, action, frames.of(storage))
        elif action.kind == "oom":
            stack = frames.at_allocation(storage, action.event)
            free = max(capacity - action.reserved_bytes, 0)
            yield {
                "action": "oom",
                "size": action.size_bytes,
                "frames": stack,
                "device_free": free,
                "stream": action.stream,
            }
        else:
            yield _entry(action.kind, action, [frames.when(action.event)], "unknown")


def _entry(word: str, action: Action, frames: list[Entry], category: str | None = None) -> Entry:
    entry: Entry = {
        "action": word,
        "addr": _BASE + action.address,
        "size": action.size_bytes,
        "frames": frames,
        "stream": action.stream,
    }
    return entry | ({"category": category} if category else {})


def _segment(address: int, total: int, placed: Trace, frames: _Frames) -> Entry:
    inside = sorted(at for at in placed.blocks if address <= at < address + total)
    blocks = list(_blocks(address, total, inside, placed, frames))
    active = [block for block in blocks if block["state"] != "inactive"]
    used = sum(block["size"] for block in active if block["state"] == "active_allocated")
    return {
        "device": 0,
        "address": _BASE + address,
        "total_size": total,
        "allocated_size": used,
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": placed.streams[address],
        "segment_type": "small" if total == _SMALL_SEGMENT else "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def _blocks(
    address: int, total: int, inside: list[int], placed: Trace, frames: _Frames
) -> Iterator[Entry]:
    """Yield the blocks of a segment in order, free ones between those that are in use."""
    end = address
    for at in inside:
        if at > end:
            yield _block(end, at - end, 0, "inactive", [])
        storage, size = placed.blocks[at]
        asked = frames.tape.sizes[storage]
        state = "active_pending_free" if storage in placed.waiting else "active_allocated"
        yield _block(at, size, asked, state, frames.of(storage))
        end = at + size
    if end < address + total:
        yield _block(end, address + total - end, 0, "inactive", [])


def _block(address: int, size: int, asked: int, state: str, frames: list[Entry]) -> Entry:
    return {
        "address": _BASE + address,
        "size": size,
        "requested_size": asked,
        "state": state,
        "frames": frames,
    }
