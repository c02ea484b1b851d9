"""What the card's arithmetic gives away: one small function a tell.

A tell looks at a `Scene` and returns a `Finding` (what happened, how many bytes it is about, what
to do next) or None. Comparisons are exact where the arithmetic decides.

Not modelled: other allocators than PyTorch's, unified memory (Jetson, GH200).
"""

from vrambudget.oom.scene import SMALLER, Finding, Scene
from vrambudget.units import format_bytes

# A bare CUDA context was measured at 0.13 GiB (RTX A2000) to 0.71 GiB (RTX 5090), above 1 GB only
# before CUDA 11.7 (pytorch/pytorch#107667): more than this is something else.
_LARGE_CONTEXT = 2**30
_FULL = 50  # less than 1/50 of the card left: say "full", not "in pieces" or "enough was free"


def no_numbers(scene: Scene) -> Finding | None:
    """Tell an error of the driver, which says nothing."""
    if scene.message.has_numbers:
        return None
    return Finding(
        "The driver ran out of memory, not PyTorch's allocator",
        f"A '{scene.message.backend} error: out of memory' has no numbers: something outside "
        "PyTorch's own pool asked the driver (the CUDA context itself, a library's handle, a CUDA "
        "graph, pinned host memory), usually on a card that is already full. The line where it "
        "shows up may be later than the call that failed.",
        step="look at `nvidia-smi` for other processes on the card; run once with "
        "CUDA_LAUNCH_BLOCKING=1 to see the true line; on WSL2 try pin_memory=False",
    )


def own_limit(scene: Scene) -> Finding | None:
    """Tell a cap that the program set for itself."""
    allowed, free = scene.message.allowed, scene.ledger.free
    if allowed is None or free is None or scene.asked > free:
        return None
    return Finding(
        "A limit that the program set, not the card",
        f"{format_bytes(free)} of the card was free. PyTorch was allowed {allowed.text} "
        "(torch.cuda.set_per_process_memory_fraction) and had used that up.",
        allowed.bytes,
        "raise the fraction given to torch.cuda.set_per_process_memory_fraction",
    )


def spilled(scene: Scene) -> Finding | None:
    """Tell memory that the driver lent from the machine's RAM."""
    held, capacity = scene.ledger.allocated, scene.ledger.capacity
    if not scene.ledger.spilled or held is None or capacity is None:
        return None
    return Finding(
        "More was already in use than the card has",
        f"PyTorch had {format_bytes(held)} on a card of {format_bytes(capacity)}: the Windows "
        "driver lends RAM when the card is full, slowly, until that ends too. What the job needs "
        "is more than the card.",
        held - capacity,
        "plan for the card's own capacity; the driver's 'Sysmem Fallback Policy' can be turned off",
    )


def fragmented(scene: Scene) -> Finding | None:
    """Tell memory that PyTorch holds in pieces that are too small."""
    cached, free, left = scene.ledger.cached, scene.ledger.free, _left(scene)
    if cached is None or free is None or left is None or scene.asked <= free or _is_full(scene):
        return None
    with_free = "" if scene.asked <= cached else f" and the {format_bytes(free)} that was free"
    return Finding(
        "Fragmentation: enough memory, but in pieces",
        f"PyTorch held {format_bytes(cached)} that no tensor used. In one piece, that"
        f"{with_free} would have served the request and left {format_bytes(left)}. Blocks that are "
        "free as a whole had been given back by then, so this is what lies between tensors that "
        "are still alive.",
        cached,
        f"set {scene.alloc_conf}=expandable_segments:True before the program starts (Linux, torch "
        "2.1 or newer; 2.9 wants it by this name, not as PYTORCH_ALLOC_CONF; before 2.1 try "
        "max_split_size_mb:512)",
    )


def full_card(scene: Scene) -> Finding | None:
    """Tell a card with next to nothing left: no fault in this request, the job is too large."""
    left = _left(scene)
    if left is None or not _is_full(scene):
        return None
    return Finding(
        "The card is full",
        f"With every free byte in one piece the request would have fitted, but left only "
        f"{format_bytes(left)}: the next one would have failed.",
        left,
        SMALLER,
    )


def too_big(scene: Scene) -> Finding | None:
    """Tell a request that nothing on the card could have made room for."""
    free, cached, elsewhere = scene.ledger.free, scene.ledger.cached or 0, _elsewhere(scene)
    if free is None or scene.ledger.spilled or scene.asked <= free + cached + elsewhere:
        return None
    ideal = ["the card to itself"] * bool(elsewhere) + ["no memory in pieces"] * bool(cached)
    short = scene.asked - free - cached - elsewhere
    even = f" Even with {' and '.join(ideal)} it would have been {format_bytes(short)} short."
    return Finding(
        "Too big for what the card had left",
        f"{format_bytes(scene.asked)} was asked for and {format_bytes(free)} was free: "
        f"{format_bytes(scene.asked - free)} is missing.{even if ideal else ''}",
        short,
        SMALLER,
    )


def room_was_free(scene: Scene) -> Finding | None:
    """Tell a card that had enough free memory when the message was made."""
    free = scene.ledger.free
    if free is None or scene.message.allowed or not 0 < scene.asked <= free or _is_full(scene):
        return None
    return Finding(
        "The card had enough free memory",
        f"{format_bytes(free)} was free when the message was made. Then another process took and "
        "gave back memory meanwhile, or the driver refused for another reason (on Windows and WSL2 "
        "it reserves some, integrated GPUs limit what one process may have).",
        free,
        "try again with the card to yourself; on WSL2 and integrated GPUs look at the limits there",
    )


def shared_card(scene: Scene) -> Finding | None:
    """Tell other processes, where they decide or hold much."""
    others, free = scene.ledger.others, scene.ledger.free or 0
    if others is None:
        return None
    missing = scene.asked - free
    decisive = 0 < missing <= others
    if not decisive and others < _LARGE_CONTEXT:
        return None
    named = [u for u in scene.message.processes if u.pid != scene.ledger.own_pid]
    names = ", ".join(f"process {use.pid}: {use.used.text}" for use in named)
    verdict = "Without them the request would have fitted." if decisive else ""
    return Finding(
        "Other processes use this card",
        f"{format_bytes(others)} of it is neither free nor this process's"
        f"{f' ({names})' if names else ''}. {verdict}".strip(),
        others,
        "see `nvidia-smi`: stop what is left over from earlier runs (notebooks!), or take another "
        "card with CUDA_VISIBLE_DEVICES",
    )


def unnamed_use(scene: Scene) -> Finding | None:
    """Tell use that the message does not split: the context, or other processes."""
    unnamed, free = scene.ledger.unnamed, scene.ledger.free or 0
    if unnamed is None or unnamed < _LARGE_CONTEXT:
        return None
    cache = "" if scene.ledger.cached is not None else " PyTorch's cache (not in this message),"
    decisive = free < scene.asked <= free + _elsewhere(scene)
    verdict = " Without that the request would have fitted." if decisive else ""
    return Finding(
        "Much of the card is in use outside PyTorch's tensors",
        f"{format_bytes(unnamed)} is neither free nor allocated by PyTorch. A CUDA context takes "
        f"0.1 to 0.7 GiB of that; the rest is{cache} other processes, or libraries such as NCCL."
        f"{verdict}",
        unnamed,
        "see `nvidia-smi` for other processes on the card",
    )


def outside_pytorch(scene: Scene) -> Finding | None:
    """Tell a process that uses much without PyTorch's allocator."""
    outside = scene.ledger.outside
    if outside is None or scene.ledger.cached is None or outside < _LARGE_CONTEXT:
        return None
    return Finding(
        "This process uses much memory outside PyTorch's allocator",
        f"{format_bytes(outside)} of it is not PyTorch's. A CUDA context takes 0.1 to 0.7 GiB; the "
        "rest belongs to libraries (NCCL's buffers grow with the number of communicators, other "
        "frameworks take the card for themselves).",
        outside,
        "look for a second framework (TensorFlow, JAX, vLLM) in the process, and for process "
        "groups that are not needed",
    )


def cuda_graphs(scene: Scene) -> Finding | None:
    """Tell memory that sits in the pools of CUDA graphs."""
    pools = scene.message.private_pools
    if pools is None or pools.bytes < scene.asked:
        return None
    return Finding(
        "CUDA graphs keep memory for themselves",
        f"{pools.text} lies free in private pools, where only the graphs may use it; the message "
        "counts it as allocated.",
        pools.bytes,
        'capture fewer shapes, or compile without mode="reduce-overhead"',
    )


def seen_from_a_container(scene: Scene) -> Finding | None:
    """Tell that 'Process N' is the process itself."""
    if scene.ledger.own_pid is None:
        return None
    return Finding(
        f"'Process {scene.ledger.own_pid}' is most likely this process itself",
        "It uses what PyTorch reserved and a context. In a container a process has another id than "
        "the driver knows it by, so the message lists it like a stranger.",
        scene.ledger.this_process,
    )


def _left(scene: Scene) -> int | None:
    """Return what a perfectly packed card would have left after the request (None: not enough)."""
    if scene.ledger.free is None or not scene.asked:
        return None
    left = scene.ledger.free + (scene.ledger.cached or 0) - scene.asked
    return left if left >= 0 else None


def _is_full(scene: Scene) -> bool:
    left, capacity = _left(scene), scene.ledger.capacity
    return left is not None and capacity is not None and left < capacity // _FULL


def _elsewhere(scene: Scene) -> int:
    """Return what leaves with the other processes (where unknown: all but a large context)."""
    if scene.ledger.others is not None:
        return scene.ledger.others
    return max(0, (scene.ledger.unnamed or 0) - _LARGE_CONTEXT)
