"""Detectors that look at the job: the tensor requested, what is still held, what grows.

Each is a small function from a `Scene` to a `Finding` or None. Without a job they see only signs,
and their texts say so; with a job (`Scene.matches`, `Scene.resident_bytes`) they are arithmetic.

Not modelled: which name in the user's code holds a tensor.
"""

from itertools import pairwise

from vrambudget.oom.scene import Finding, Scene, finding

_LARGEST_SHARED_SEGMENT = 20 * 2**20  # a request printed as this or less may be any small tensor
_READINGS = 3  # two in a row may rise by chance
_STEADY_STEP = 3  # optimizer states and the last step's outputs are all there in the second step


def named_request(scene: Scene) -> Finding | None:
    """Name the tensor that was requested."""
    if not scene.matches:
        return None
    first = scene.matches[0]
    same = [m.request for m in scene.matches if m.how == first.how]
    name, *others = dict.fromkeys(f"{r.description} ({r.phase})" for r in same)
    names = {
        "name": name,
        "exact": f"{first.request.bytes:,}",
        "rounding": "" if first.how == "exact" else ", rounded up by the allocator",
        **({"others": ", ".join(others)} if others else {}),
    }
    return finding("named_request", first.request.bytes, **names)


def second_copy(scene: Scene) -> Finding | None:
    """Detect that the loop still holds the last iteration's copy of what is requested."""
    allocated = scene.ledger.allocated
    if allocated is None or not scene.asked > _LARGEST_SHARED_SEGMENT:
        return None
    rest = allocated - (scene.resident_bytes or 0)
    sure = bool(scene.matches) and scene.resident_bytes is not None
    if rest < scene.asked or (not sure and rest >= 2 * scene.asked):
        return None
    evaluates = scene.phase == "evaluation"
    loop = "the evaluation loop" if evaluates else "a loop"
    if not sure:
        return finding("may_be_held", scene.asked, allocated=allocated, loop=loop)
    return finding(
        "still_held",
        scene.asked,
        allocated=allocated,
        resident=allocated - rest,
        activations=" Without gradients, forward keeps nothing else." * evaluates,
        rest=rest,
        count=f"{rest // scene.asked}",
        request=scene.matches[0].request.description,
        loop=loop,
    )


def growing(scene: Scene) -> Finding | None:
    """Detect memory that grows from line to line of the log."""
    sizes = scene.history
    if len(sizes) < _READINGS or any(now <= before for before, now in pairwise(sizes)):
        return None
    first, *_, last = sizes
    return finding("growing", last - first, first=first, last=last, readings=f"{len(sizes)}")


def late(scene: Scene) -> Finding | None:
    """Detect a failure after the peak should have settled."""
    step = scene.message.step
    if step is None or step < _STEADY_STEP:
        return None
    return finding("late", step=f"{step:,}")


def beyond_the_gpu(scene: Scene) -> Finding | None:
    """Detect a request of the same job that is larger than the whole GPU."""
    capacity = scene.ledger.capacity
    largest = max(scene.requests, key=lambda request: request.bytes, default=None)
    if capacity is None or largest is None or largest.bytes <= capacity:
        return None
    request = f"{largest.description} ({largest.phase})"
    sizes = {"largest": largest.bytes, "capacity": capacity}
    return finding("beyond_the_gpu", largest.bytes, request=request, **sizes)
