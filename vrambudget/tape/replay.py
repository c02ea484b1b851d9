"""A tape, replayed through the caching allocator: what the job's counters would show, and when.

    weights       allocated once the model is built and the cache is emptied
    after_step    allocated when the last step is over
    steps         allocated after forward and backward, and the peaks up to the end of each step
    peak          the highest requested, allocated and reserved bytes, and the event of the second
    breakdown     what is alive at that event, by purpose; the allocator's rounding is one of them

On a GPU that is too small the replay ends where the GPU is full.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from vrambudget.budget import BLOCK_ROUNDING, OutOfMemory, Peak, Step
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.full_steps import full_steps
from vrambudget.tape.marks import Mark, Phase
from vrambudget.tape.steady import run

_MAY_GROW = 5  # a fifth of what is reserved; of 351 records none grew by more than 16 %


class Replay(NamedTuple):
    """What `torch.cuda`'s counters would have shown. Bytes."""

    weights_bytes: int
    steps: tuple[Step, ...]
    peak: Peak
    breakdown: Mapping[str, int]
    peak_event: int  # the event of the tape that most is allocated after
    unseen_step: int | None = None  # the peak is in this step, which is not on the tape
    after_step_bytes: int | None = None  # where steps have an end
    built_bytes: int = 0  # reserved once the model is built and the cache is emptied
    is_steady: bool = True  # False: later steps may reserve more, and that may decide


@dataclass(slots=True)
class _Readings:
    """Counters as the loop reads them."""

    weights_bytes: int = 0
    built_bytes: int = 0
    after_forward_bytes: int | None = None
    after_backward_bytes: int | None = None
    after_step_bytes: int | None = None


def replay_for(tape: Tape, available_bytes: int | None, *, settles: bool = True) -> Replay:
    """Replay for a GPU with so many bytes: steps go on until memory settles where that may decide.

    Where it does not fit, or far more would, the tape's own steps tell. Unless it `settles`, they
    always do, and the replay says whether later ones may decide.
    """
    went_on: list[bool] = []

    def may_decide(reserved: int) -> bool:
        most = reserved + reserved // _MAY_GROW
        went_on.append(available_bytes is not None and reserved <= available_bytes < most)
        return settles and went_on[-1]

    replayed = replay(tape, may_decide)
    return replayed if settles else replayed._replace(is_steady=not any(went_on))


def replay(tape: Tape, may_decide: Callable[[int], bool] = lambda _: True) -> Replay:
    """Replay on a GPU without limit, to the steady state if the reserved bytes `may_decide`."""
    allocator = allocator_for(tape)
    readings, steps, is_loading = _Readings(), [], False
    for mark, allocated_bytes in run(
        tape, allocator, lambda: may_decide(allocator.peak_reserved_bytes)
    ):
        if is_loading or mark.resets_allocator:
            readings.weights_bytes = allocated_bytes
        is_loading = mark.phase == Phase.LOADING
        if mark.resets_allocator:
            allocator.reset_peaks()
            readings.built_bytes = allocator.reserved_bytes
        elif mark.phase == Phase.BACKWARD:
            readings.after_forward_bytes = allocated_bytes
        elif mark.phase == Phase.OPTIMIZER_STEP:
            readings.after_backward_bytes = allocated_bytes
        elif mark.phase == Phase.STEP_END:
            readings.after_step_bytes = allocated_bytes
            steps.append(
                Step(
                    after_forward_bytes=readings.after_forward_bytes,
                    after_backward_bytes=readings.after_backward_bytes,
                    peak_allocated_bytes=allocator.peak_allocated_bytes,
                    peak_reserved_bytes=allocator.peak_reserved_bytes,
                )
            )
    event = allocator.peak_event or 0
    mark, operation = moment(tape, event)
    peak = Peak(
        requested_bytes=allocator.peak_requested_bytes,
        allocated_bytes=allocator.peak_allocated_bytes,
        reserved_bytes=allocator.peak_reserved_bytes,
        step=mark.step + 1,
        phase=str(mark.phase),
        operation=operation,
    )
    breakdown = _breakdown(tape, event, peak.allocated_bytes)
    unseen = any(m.steps is not None and m.position == event for m in tape.marks)
    step = allocator.peak_step if unseen else None
    return Replay(
        readings.weights_bytes,
        tuple(steps),
        peak,
        breakdown,
        event,
        step,
        readings.after_step_bytes,
        readings.built_bytes,
    )


def reserved_up_to(limit: int, tape: Tape) -> int:
    """Return the peak of reserved bytes; of the phases up to the one that is past `limit`."""
    allocator, built = allocator_for(tape), tape.built()
    for mark, _ in run(tape, allocator):
        if mark.resets_allocator:
            allocator.reset_peaks()
        elif mark.position >= built and allocator.peak_reserved_bytes > limit:
            break
    return allocator.peak_reserved_bytes


def replay_on(tape: Tape, available_bytes: int) -> OutOfMemory | None:
    """Return how a GPU with `available_bytes` for segments is full, None where it never is."""
    full = full_on(tape, available_bytes)
    if full is None:
        return None
    mark, operation = moment(tape, full.event)
    return OutOfMemory(
        step=mark.step + 1,
        phase=full.phase or str(mark.phase),
        operation=full.operation or operation,
        requested_bytes=full.requested_bytes,
        allocated_bytes=full.allocated_bytes,
    )


def full_on(tape: Tape, available_bytes: int) -> OutOfDeviceMemoryError | None:
    """Replay on a GPU with `available_bytes` for segments; return the request that fails there."""
    if not full_steps(tape, available_bytes):
        return None
    try:
        for _ in run(tape, allocator_for(tape, available_bytes)):
            pass
    except OutOfDeviceMemoryError as full:
        return full
    return None


def fits(tape: Tape, peak: Peak, available_bytes: int) -> bool:
    """Return whether a tape of this peak runs on a GPU with `available_bytes` for segments."""
    if peak.reserved_bytes <= available_bytes:
        return True
    return peak.requested_bytes <= available_bytes and replay_on(tape, available_bytes) is None


def moment(tape: Tape, event: int) -> tuple[Mark, str]:
    """Return the phase that an event belongs to, and the operation that made its storage."""
    index = bisect_right([mark.position for mark in tape.marks], event) - 1
    mark = tape.marks[index] if index >= 0 else Mark(0, 0, Phase.BUILD)
    return mark, tape.operations[tape.event(event).storage]


def _breakdown(tape: Tape, event: int, allocated_bytes: int) -> dict[str, int]:
    parts = dict.fromkeys(map(str, Purpose), 0)
    for storage in tape.alive_at(event):
        parts[tape.purposes[storage]] += tape.sizes[storage]
    parts[BLOCK_ROUNDING] = allocated_bytes - sum(parts.values())
    return parts
