"""Detectors that need only the GPU's arithmetic, one small function each.

A detector takes a `Scene` and returns a `Finding` (what happened, how many bytes it concerns, what
to do next) or None. Comparisons are exact where the arithmetic decides.

Not modelled: other allocators than PyTorch's, unified memory (Jetson, GH200).
"""

from vrambudget.oom.scene import SMALLER, Finding, Scene
from vrambudget.units import format_bytes

# A bare CUDA context was measured at 0.13 GiB (RTX A2000) to 0.71 GiB (RTX 5090), above 1 GB only
# before CUDA 11.7 (pytorch/pytorch#107667): more than this is something else.
_LARGE_CONTEXT = 2**30
_FULL = 50  # less than 1/50 of the GPU left: say "full", not "in pieces" or "enough was free"


def no_numbers(scene: Scene) -> Finding | None:
    """Detect an error of the driver, which has no numbers."""
    if scene.message.has_numbers:
        return None
    return Finding(
        "The driver ran out of memory, not PyTorch's allocator",
        f"A '{scene.message.backend} error: out of memory' has no numbers: something outside "
        "PyTorch's own pool asked the driver for memory (the CUDA context itself, a library's "
        "handle, a CUDA graph, pinned host memory), usually on a GPU that is already full. The "
        "error may be raised at a later line than that of the call that failed.",
        step="look at `nvidia-smi` for other processes on the GPU; run once with "
        "CUDA_LAUNCH_BLOCKING=1 to see the line that failed; on WSL2 try pin_memory=False",
    )


def own_limit(scene: Scene) -> Finding | None:
    """Detect a limit that the program set for itself."""
    allowed, free = scene.message.allowed, scene.ledger.free
    if allowed is None or free is None or scene.asked > free:
        return None
    return Finding(
        "A limit that the program set, not the GPU",
        f"{format_bytes(free)} of the GPU was free, but PyTorch was limited to {allowed.text} "
        "(torch.cuda.set_per_process_memory_fraction) and had used that up.",
        allowed.bytes,
        "raise the fraction given to torch.cuda.set_per_process_memory_fraction",
    )


def spilled(scene: Scene) -> Finding | None:
    """Detect memory that the driver took from the machine's RAM."""
    held, capacity = scene.ledger.allocated, scene.ledger.capacity
    if not scene.ledger.spilled or held is None or capacity is None:
        return None
    return Finding(
        "More was already in use than the GPU has",
        f"PyTorch had {format_bytes(held)} on a GPU with {format_bytes(capacity)}: when the GPU is "
        "full, the Windows driver uses RAM, which is slow, until that runs out too. The job needs "
        "more than the GPU has.",
        held - capacity,
        "plan for the GPU's own capacity; the driver's 'Sysmem Fallback Policy' can be turned off",
    )


def fragmented(scene: Scene) -> Finding | None:
    """Detect free memory that PyTorch holds in pieces that are too small."""
    cached, free, left = scene.ledger.cached, scene.ledger.free, _left(scene)
    if cached is None or free is None or left is None or scene.asked <= free or _is_full(scene):
        return None
    with_free = "" if scene.asked <= cached else f" and the {format_bytes(free)} that was free"
    return Finding(
        "Fragmentation: enough memory, but in pieces",
        f"PyTorch held {format_bytes(cached)} that no tensor used. In one piece, that"
        f"{with_free} would have served the request and left {format_bytes(left)}. PyTorch had "
        "already returned every segment that was wholly free, so what is left lies between "
        "tensors that are still alive.",
        cached,
        f"set {scene.alloc_conf}=expandable_segments:True before the program starts (Linux, torch "
        "2.1 or newer; 2.9 reads this name, not PYTORCH_ALLOC_CONF; before 2.1 try "
        "max_split_size_mb:512)",
    )


def full_gpu(scene: Scene) -> Finding | None:
    """Detect a GPU with almost nothing left: the job is too large, not this request."""
    left = _left(scene)
    if left is None or not _is_full(scene):
        return None
    return Finding(
        "The GPU is full",
        f"With every free byte in one piece the request would have fit, but it would have left "
        f"only {format_bytes(left)}: the next one would have failed.",
        left,
        SMALLER,
    )


def too_big(scene: Scene) -> Finding | None:
    """Detect a request that the GPU could not have served in any case."""
    free, cached, elsewhere = scene.ledger.free, scene.ledger.cached or 0, _elsewhere(scene)
    if free is None or scene.ledger.spilled or scene.asked <= free + cached + elsewhere:
        return None
    ideal = ["the GPU to itself"] * bool(elsewhere) + ["no fragmentation"] * bool(cached)
    short = scene.asked - free - cached - elsewhere
    even = f" Even with {' and '.join(ideal)} it would have been {format_bytes(short)} short."
    return Finding(
        "Too big for what the GPU had left",
        f"{format_bytes(scene.asked)} was requested and {format_bytes(free)} was free: "
        f"{format_bytes(scene.asked - free)} is missing.{even if ideal else ''}",
        short,
        SMALLER,
    )


def room_was_free(scene: Scene) -> Finding | None:
    """Detect a GPU that had enough free memory when the message was made."""
    free = scene.ledger.free
    if free is None or scene.message.allowed or not 0 < scene.asked <= free or _is_full(scene):
        return None
    return Finding(
        "The GPU had enough free memory",
        f"{format_bytes(free)} was free when the message was written. Either another process took "
        "memory and released it in between, or the driver refused for another reason (it reserves "
        "some on Windows and WSL2; integrated GPUs limit what one process may have).",
        free,
        "try again with no other process on the GPU; on WSL2 and integrated GPUs check the limits",
    )


def shared_gpu(scene: Scene) -> Finding | None:
    """Detect other processes, if they are decisive or hold much."""
    others, free = scene.ledger.others, scene.ledger.free or 0
    if others is None:
        return None
    missing = scene.asked - free
    decisive = 0 < missing <= others
    if not decisive and others < _LARGE_CONTEXT:
        return None
    named = [u for u in scene.message.processes if u.pid != scene.ledger.own_pid]
    names = ", ".join(f"process {use.pid}: {use.used.text}" for use in named)
    verdict = "Without them the request would have fit." if decisive else ""
    return Finding(
        "Other processes use this GPU",
        f"{format_bytes(others)} of it is neither free nor this process's"
        f"{f' ({names})' if names else ''}. {verdict}".strip(),
        others,
        "check `nvidia-smi`: stop what is left over from earlier runs (notebooks!), or select "
        "another GPU with CUDA_VISIBLE_DEVICES",
    )


def unnamed_use(scene: Scene) -> Finding | None:
    """Detect use that the message does not itemise: the context, or other processes."""
    unnamed, free = scene.ledger.unnamed, scene.ledger.free or 0
    if unnamed is None or unnamed < _LARGE_CONTEXT:
        return None
    cache = "" if scene.ledger.cached is not None else " PyTorch's cache (not in this message),"
    decisive = free < scene.asked <= free + _elsewhere(scene)
    verdict = " Without that the request would have fit." if decisive else ""
    return Finding(
        "Much of the GPU is in use outside PyTorch's tensors",
        f"{format_bytes(unnamed)} is neither free nor allocated by PyTorch. A CUDA context takes "
        f"0.1 to 0.7 GiB of that; the rest is{cache} other processes, or libraries such as NCCL."
        f"{verdict}",
        unnamed,
        "check `nvidia-smi` for other processes on the GPU",
    )


def outside_pytorch(scene: Scene) -> Finding | None:
    """Detect a process that uses much without PyTorch's allocator."""
    outside = scene.ledger.outside
    if outside is None or scene.ledger.cached is None or outside < _LARGE_CONTEXT:
        return None
    return Finding(
        "This process uses much memory outside PyTorch's allocator",
        f"{format_bytes(outside)} of it is not PyTorch's. A CUDA context takes 0.1 to 0.7 GiB; the "
        "rest belongs to libraries (NCCL's buffers grow with the number of communicators, other "
        "frameworks reserve the whole GPU).",
        outside,
        "look for a second framework (TensorFlow, JAX, vLLM) in the process, and for process "
        "groups that are not needed",
    )


def cuda_graphs(scene: Scene) -> Finding | None:
    """Detect free memory in the pools of CUDA graphs."""
    pools = scene.message.private_pools
    if pools is None or pools.bytes < scene.asked:
        return None
    return Finding(
        "CUDA graphs keep memory for themselves",
        f"{pools.text} is free in private pools, where only the graphs can use it; the message "
        "counts it as allocated.",
        pools.bytes,
        'capture fewer shapes, or compile without mode="reduce-overhead"',
    )


def seen_from_a_container(scene: Scene) -> Finding | None:
    """Detect that 'Process N' is the process itself."""
    if scene.ledger.own_pid is None:
        return None
    return Finding(
        f"'Process {scene.ledger.own_pid}' is most likely this process itself",
        "It uses what PyTorch reserved and a context. In a container a process has a different id "
        "from the one that the driver knows, so the message lists it as another process.",
        scene.ledger.this_process,
    )


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
