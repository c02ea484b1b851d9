"""What the job gives away: the tensor asked for, what is still held, what grows.

Each tell is a small function from a `Scene` to a `Finding` or None. Without a job these are signs
and their words say so; with one (`Scene.matches`, `Scene.resident_bytes`) they are arithmetic.

Not modelled: which name in the user's code holds a tensor.
"""

from itertools import pairwise

from vrambudget.oom.scene import SMALLER, Finding, Scene
from vrambudget.units import format_bytes

_LARGEST_SHARED_SEGMENT = 20 * 2**20  # a request printed as this or less may be any small tensor
_READINGS = 3  # two in a row may rise by chance
_STEADY_STEP = 3  # optimizer states and the last step's outputs are all there in the second step


def named_request(scene: Scene) -> Finding | None:
    """Tell which tensor was asked for."""
    if not scene.matches:
        return None
    first = scene.matches[0]
    same = [m.request for m in scene.matches if m.how == first.how]
    names = list(dict.fromkeys(f"{r.description} ({r.phase})" for r in same))
    rounding = "" if first.how == "exact" else ", rounded up by the allocator"
    return Finding(
        f"What was asked for: {names[0]}",
        f"{first.request.bytes:,} bytes{rounding}."
        + (f" Others of this size: {', '.join(names[1:])}." if names[1:] else ""),
        first.request.bytes,
    )


def second_copy(scene: Scene) -> Finding | None:
    """Tell that what is asked for exists already: the loop still holds the last one."""
    allocated = scene.ledger.allocated
    if allocated is None or not scene.asked > _LARGEST_SHARED_SEGMENT:
        return None
    rest = allocated - (scene.resident_bytes or 0)
    sure = bool(scene.matches) and scene.resident_bytes is not None
    if rest < scene.asked or (not sure and rest >= 2 * scene.asked):
        return None
    loop = "the evaluation loop" if scene.phase == "evaluation" else "a loop"
    how = (
        f"{loop} that says `out = model(x)` keeps the last iteration's result until the name is "
        "bound again, and that is after the new one was made. Dropped before, it would have made "
        "room for the new one."
    )
    return Finding(
        "The last iteration's result is still held" if sure else "A second one may still be held",
        (_held(scene, allocated, rest) if sure else _may_be_held(allocated)) + how,
        scene.asked,
        "drop the result before the next one is made (`del logits` at the end of the loop's body), "
        "or return only the loss",
    )


def _held(scene: Scene, allocated: int, rest: int) -> str:
    activations = " Without gradients a forward keeps nothing else." * (scene.phase == "evaluation")
    return (
        f"Of the {format_bytes(allocated)} allocated, {format_bytes(allocated - rest)} is what the "
        f"job holds in any case.{activations} The other {format_bytes(rest)} has room for "
        f"{rest // scene.asked} more of {scene.matches[0].request.description}: "
    )


def _may_be_held(allocated: int) -> str:
    return (
        f"The {format_bytes(allocated)} allocated may hold another tensor of the size that was "
        "asked for: "
    )


def growing(scene: Scene) -> Finding | None:
    """Tell memory that grows from line to line of the log."""
    sizes = scene.history
    if len(sizes) < _READINGS or any(now <= before for before, now in pairwise(sizes)):
        return None
    return Finding(
        "Allocated memory grows: something is kept from each iteration",
        f"From {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} in {len(sizes)} readings. "
        "Typical: a loss that is summed up or listed with its graph, outputs that are collected "
        "on the GPU, hooks, or growing inputs.",
        sizes[-1] - sizes[0],
        "keep numbers, not tensors: `total += loss.item()`, `outputs.append(out.detach().cpu())`",
    )


def late(scene: Scene) -> Finding | None:
    """Tell a failure after the peak should be steady."""
    step = scene.message.step
    if step is None or step < _STEADY_STEP:
        return None
    return Finding(
        f"It did not fail at once: the log was at step {step:,}",
        "With inputs of one size, a training loop's peak is reached by its second step. So either "
        "something is kept from step to step, or this input was longer than those before, or "
        "another phase (evaluation, saving, sampling) began.",
        step="log torch.cuda.memory_allocated() and the input's shape at each step: a slope is a "
        "leak, a jump is a long batch (sort or truncate by length)",
    )


def beyond_the_card(scene: Scene) -> Finding | None:
    """Tell a request of the same job that no free card could serve."""
    capacity = scene.ledger.capacity
    largest = max(scene.requests, key=lambda request: request.bytes, default=None)
    if capacity is None or largest is None or largest.bytes <= capacity:
        return None
    return Finding(
        "The job would ask for more than the whole card later",
        f"{largest.description} ({largest.phase}) is {format_bytes(largest.bytes)}; the card has "
        f"{format_bytes(capacity)}.",
        largest.bytes,
        SMALLER,
    )
