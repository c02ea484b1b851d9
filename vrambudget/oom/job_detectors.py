"""Detectors that look at the job: the tensor requested, what is still held, what grows.

Each is a small function from a `Scene` to a `Finding` or None. Without a job they see only signs,
and their texts say so; with a job (`Scene.matches`, `Scene.resident_bytes`) they are arithmetic.

Not modelled: which name in the user's code holds a tensor.
"""

from itertools import pairwise

from vrambudget.oom.scene import SMALLER, Finding, Scene
from vrambudget.units import format_bytes

_LARGEST_SHARED_SEGMENT = 20 * 2**20  # a request printed as this or less may be any small tensor
_READINGS = 3  # two in a row may rise by chance
_STEADY_STEP = 3  # optimizer states and the last step's outputs are all there in the second step


def named_request(scene: Scene) -> Finding | None:
    """Name the tensor that was requested."""
    if not scene.matches:
        return None
    first = scene.matches[0]
    same = [m.request for m in scene.matches if m.how == first.how]
    names = list(dict.fromkeys(f"{r.description} ({r.phase})" for r in same))
    rounding = "" if first.how == "exact" else ", rounded up by the allocator"
    return Finding(
        f"The request: {names[0]}",
        f"{first.request.bytes:,} bytes{rounding}."
        + (f" Others of this size: {', '.join(names[1:])}." if names[1:] else ""),
        first.request.bytes,
    )


def second_copy(scene: Scene) -> Finding | None:
    """Detect that the loop still holds the last iteration's copy of what is requested."""
    allocated = scene.ledger.allocated
    if allocated is None or not scene.asked > _LARGEST_SHARED_SEGMENT:
        return None
    rest = allocated - (scene.resident_bytes or 0)
    sure = bool(scene.matches) and scene.resident_bytes is not None
    if rest < scene.asked or (not sure and rest >= 2 * scene.asked):
        return None
    loop = "the evaluation loop" if scene.phase == "evaluation" else "a loop"
    how = (
        f"{loop} with `out = model(x)` keeps the last iteration's result until the name is "
        "rebound, which happens after the new one was created. Dropped earlier, it would have "
        "made room for the new one."
    )
    return Finding(
        "The last iteration's result is still held" if sure else "A second one may still be held",
        (_held(scene, allocated, rest) if sure else _may_be_held(allocated)) + how,
        scene.asked,
        "drop the result before the next one is created (`del logits` at the end of the loop's "
        "body), or return only the loss",
    )


def _held(scene: Scene, allocated: int, rest: int) -> str:
    activations = " Without gradients, forward keeps nothing else." * (scene.phase == "evaluation")
    return (
        f"Of the {format_bytes(allocated)} allocated, {format_bytes(allocated - rest)} is what the "
        f"job holds in any case.{activations} The other {format_bytes(rest)} has room for "
        f"{rest // scene.asked} more of {scene.matches[0].request.description}: "
    )


def _may_be_held(allocated: int) -> str:
    return (
        f"The {format_bytes(allocated)} allocated may hold another tensor of the size that was "
        "requested: "
    )


def growing(scene: Scene) -> Finding | None:
    """Detect memory that grows from line to line of the log."""
    sizes = scene.history
    if len(sizes) < _READINGS or any(now <= before for before, now in pairwise(sizes)):
        return None
    return Finding(
        "Allocated memory grows: something is kept from each iteration",
        f"From {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} in {len(sizes)} readings. "
        "Typical causes: a loss that is accumulated with its graph, outputs that are collected on "
        "the GPU, hooks, or growing inputs.",
        sizes[-1] - sizes[0],
        "keep numbers, not tensors: `total += loss.item()`, `outputs.append(out.detach().cpu())`",
    )


def late(scene: Scene) -> Finding | None:
    """Detect a failure after the peak should have settled."""
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


def beyond_the_gpu(scene: Scene) -> Finding | None:
    """Detect a request of the same job that is larger than the whole GPU."""
    capacity = scene.ledger.capacity
    largest = max(scene.requests, key=lambda request: request.bytes, default=None)
    if capacity is None or largest is None or largest.bytes <= capacity:
        return None
    return Finding(
        "Later the job would request more than the whole GPU",
        f"{largest.description} ({largest.phase}) is {format_bytes(largest.bytes)}; the GPU has "
        f"{format_bytes(capacity)}.",
        largest.bytes,
        SMALLER,
    )
