"""Detectors that need only the GPU's arithmetic, one small function each.

A detector takes a `Scene` and returns a `Finding` (what happened, how many bytes it concerns, what
to do next) or None. Comparisons are exact where the arithmetic decides.

Not modelled: other allocators than PyTorch's, unified memory (Jetson, GH200).
"""

from vrambudget.oom.scene import Finding, Scene, finding
from vrambudget.units import format_bytes

# A bare CUDA context was measured at 0.13 GiB (RTX A2000) to 0.71 GiB (RTX 5090), above 1 GB only
# before CUDA 11.7 (pytorch/pytorch#107667): more than this is something else.
_LARGE_CONTEXT = 2**30
_FULL = 50  # less than 1/50 of the GPU left: say "full", not "in pieces" or "enough was free"


def no_numbers(scene: Scene) -> Finding | None:
    """Detect an error of the driver, which has no numbers."""
    if scene.message.has_numbers:
        return None
    return finding("no_numbers", backend=scene.message.backend)


def own_limit(scene: Scene) -> Finding | None:
    """Detect a limit that the program set for itself."""
    allowed, free = scene.message.allowed, scene.ledger.free
    if allowed is None or free is None or scene.asked > free:
        return None
    return finding("own_limit", allowed.bytes, free=free, allowed=allowed.text)


def spilled(scene: Scene) -> Finding | None:
    """Detect memory that the driver took from the machine's RAM."""
    held, capacity = scene.ledger.allocated, scene.ledger.capacity
    if not scene.ledger.spilled or held is None or capacity is None:
        return None
    return finding("spilled", held - capacity, held=held, capacity=capacity)


def fragmented(scene: Scene) -> Finding | None:
    """Detect free memory that PyTorch holds in pieces that are too small."""
    cached, free, left = scene.ledger.cached, scene.ledger.free, _left(scene)
    if cached is None or free is None or left is None or scene.asked <= free or _is_full(scene):
        return None
    and_free = "" if scene.asked <= cached else f" and the {format_bytes(free)} that was free"
    variable = scene.alloc_conf
    return finding(
        "fragmented", cached, cached=cached, and_free=and_free, left=left, variable=variable
    )


def full_gpu(scene: Scene) -> Finding | None:
    """Detect a GPU with almost nothing left: the job is too large, not this request."""
    left = _left(scene)
    if left is None or not _is_full(scene):
        return None
    return finding("full_gpu", left, left=left)


def too_big(scene: Scene) -> Finding | None:
    """Detect a request that the GPU could not have served in any case."""
    free, cached, elsewhere = scene.ledger.free, scene.ledger.cached or 0, _elsewhere(scene)
    if free is None or scene.ledger.spilled or scene.asked <= free + cached + elsewhere:
        return None
    ideal = ["the GPU to itself"] * bool(elsewhere) + ["no fragmentation"] * bool(cached)
    short = scene.asked - free - cached - elsewhere
    even: dict[str, int | str] = {"ideal": " and ".join(ideal), "short": short} if ideal else {}
    missing = scene.asked - free
    return finding("too_big", short, asked=scene.asked, free=free, missing=missing, **even)


def memory_was_free(scene: Scene) -> Finding | None:
    """Detect a GPU that had enough free memory when the message was made."""
    free = scene.ledger.free
    if free is None or scene.message.allowed or not 0 < scene.asked <= free or _is_full(scene):
        return None
    return finding("memory_was_free", free, free=free)


def shared_gpu(scene: Scene) -> Finding | None:
    """Detect other processes, if they are decisive or hold much."""
    others, free = scene.ledger.others, scene.ledger.free or 0
    if others is None:
        return None
    decisive = 0 < scene.asked - free <= others
    if not decisive and others < _LARGE_CONTEXT:
        return None
    named = [u for u in scene.message.processes if u.pid != scene.ledger.own_pid]
    uses = ", ".join(f"process {use.pid}: {use.used.text}" for use in named)
    names = f" ({uses})" if uses else ""
    return finding("shared_gpu", others, *["decisive"] * decisive, others=others, names=names)


def unnamed_use(scene: Scene) -> Finding | None:
    """Detect use that the message does not itemise: the context, or other processes."""
    unnamed, free = scene.ledger.unnamed, scene.ledger.free or 0
    if unnamed is None or unnamed < _LARGE_CONTEXT:
        return None
    cache = "" if scene.ledger.cached is not None else " PyTorch's cache (not in this message),"
    decisive = free < scene.asked <= free + _elsewhere(scene)
    return finding("unnamed_use", unnamed, *["decisive"] * decisive, unnamed=unnamed, cache=cache)


def outside_pytorch(scene: Scene) -> Finding | None:
    """Detect a process that uses much without PyTorch's allocator."""
    outside = scene.ledger.outside
    if outside is None or scene.ledger.cached is None or outside < _LARGE_CONTEXT:
        return None
    return finding("outside_pytorch", outside, outside=outside)


def cuda_graphs(scene: Scene) -> Finding | None:
    """Detect free memory in the pools of CUDA graphs."""
    pools = scene.message.private_pools
    if pools is None or pools.bytes < scene.asked:
        return None
    return finding("cuda_graphs", pools.bytes, free=pools.text)


def seen_from_a_container(scene: Scene) -> Finding | None:
    """Detect that 'Process N' is the process itself."""
    if scene.ledger.own_pid is None:
        return None
    pid = str(scene.ledger.own_pid)
    return finding("seen_from_a_container", scene.ledger.this_process, pid=pid)


def _left(scene: Scene) -> int | None:
    """Return what a perfectly packed GPU would have left after the request (None: not enough)."""
    if scene.ledger.free is None or not scene.asked:
        return None
    left = scene.ledger.free + (scene.ledger.cached or 0) - scene.asked
    return left if left >= 0 else None


def _is_full(scene: Scene) -> bool:
    left, capacity = _left(scene), scene.ledger.capacity
    return left is not None and capacity is not None and left < capacity // _FULL


def _elsewhere(scene: Scene) -> int:
    """Return what the other processes hold (if unknown: all but a large context)."""
    if scene.ledger.others is not None:
        return scene.ledger.others
    return max(0, (scene.ledger.unnamed or 0) - _LARGE_CONTEXT)
