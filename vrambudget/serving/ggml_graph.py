"""What a ggml graph needs of each device: its tensors, as scheduler and allocator place them.

    split      consecutive nodes of one device, and again where a weight has to come from another:
               each begins with copies of what it reads from elsewhere (once for each device)
    allocate   leaves first, then node by node: in place of a source that nothing else reads, or in
               the smallest free block that fits; the end of the last block grows
    free       after the last reader

A node's device may be left open: it is then that of the node before it, if that is a GPU, or of
the next on one.

Source: llama.cpp 0c1e570 of October 2026: ggml/src/ggml-backend.cpp
(ggml_backend_sched_split_graph), ggml/src/ggml-alloc.c (ggml_gallocr_alloc_graph_impl,
ggml_dyn_tallocr_alloc).
Not modelled: buffers in several chunks, nodes that a device does not support.
"""

from bisect import bisect_left
from collections.abc import Sequence

from vrambudget.units import round_up

HOST = -1
"""The number of main memory among devices."""
CACHE = "of a cache"  # a shape of what lies and is no weight: copies of it begin no split
ALIGNMENT, OF_HOST = 128, 32  # of tensors in CUDA's buffers, and in main memory
_COPIES = 4  # GGML_SCHED_MAX_COPIES
_ENDLESS = 1 << 62


class GgmlNode:
    """A tensor. `lies`: it has memory of its own (a weight, a cache) and needs none.

    `more`: bytes of it that follow what is read.
    """

    __slots__ = (
        "at",
        "device",
        "in_place",
        "lies",
        "more",
        "nbytes",
        "readers",
        "shape",
        "sources",
    )

    def __init__(
        self,
        nbytes: int,
        device: int | None,
        sources: Sequence["GgmlNode"] = (),
        *,
        shape: object = None,
        in_place: bool = False,
        lies: bool = False,
    ) -> None:
        self.nbytes, self.device, self.sources = nbytes, device, list(sources)
        self.shape = nbytes if shape is None else shape  # what may take its place has the same
        self.in_place, self.lies = in_place, lies
        self.readers, self.at, self.more = 0, -1, 0


def needed(
    leaves: Sequence[GgmlNode], nodes: Sequence[GgmlNode], *, pipelined: bool
) -> dict[int, int]:
    """Return the bytes that each device's buffer has. `pipelined`: with inputs of four batches."""
    place_open(nodes)
    ordered, kept = _with_copies(nodes)
    arenas: dict[int, _Arena] = {}
    if pipelined:
        for leaf in (*kept, *leaves):
            is_input = leaf.readers and (leaf.sources or leaf.device == HOST)
            for _ in range(_COPIES if is_input else 1):
                _arena(arenas, leaf).take(leaf.nbytes)
            leaf.at, leaf.readers = 0, _ENDLESS
    for leaf in leaves:
        if leaf.at < 0:
            leaf.at = _arena(arenas, leaf).take(leaf.nbytes)
    for node in ordered:
        _allocate(arenas, node)
        for source in node.sources:
            source.readers -= 1
            if not source.readers and source.at >= 0:
                _arena(arenas, source).give(source.at, source.nbytes)
    return {device: arena.top for device, arena in arenas.items()}


def place_open(nodes: Sequence[GgmlNode]) -> None:
    """Give open nodes the device of the GPU's node before them, else of the next one."""
    for ways in (nodes, list(reversed(nodes))):
        current: int | None = None
        for node in ways:
            if node.device is None:
                node.device = current
            else:
                current = None if node.device == HOST else node.device
    for node in nodes:
        node.device = HOST if node.device is None else node.device


def _with_copies(nodes: Sequence[GgmlNode]) -> tuple[list[GgmlNode], list[GgmlNode]]:
    """Return the nodes with copies of what each split reads, and the copies."""
    ordered: list[GgmlNode] = []
    copies: dict[tuple[GgmlNode, int], GgmlNode] = {}
    device: int | None = None
    start = 0  # of the split, in `ordered`
    inputs = 0
    for node in nodes:
        foreign = [s for s in node.sources if s.device != node.device]
        if node.device != device or (inputs and any(s.lies and s.shape != CACHE for s in foreign)):
            device, start, inputs = node.device, len(ordered), 0
        assert device is not None  # noqa: S101 - `place_open` has seen to it
        for source in foreign:
            if (source, device) not in copies:
                copy = copies[source, device] = GgmlNode(source.nbytes, device, [source])
                ordered.insert(start + inputs, copy)
                inputs += 1
        if foreign:
            node.sources = [copies[s, device] if s in foreign else s for s in node.sources]
        ordered.append(node)
    for node in ordered:
        for source in node.sources:
            source.readers += 1
    return ordered, list(copies.values())


def _allocate(arenas: dict[int, "_Arena"], node: GgmlNode) -> None:
    if node.lies or node.at >= 0:
        return
    if node.in_place:
        for source in node.sources:
            is_free = source.at >= 0 and source.readers == 1 and source.device == node.device
            if is_free and source.shape == node.shape:
                node.at, source.at = source.at, -1
                _arena(arenas, node).shrink(node.at, source.nbytes, node.nbytes)
                return
    node.at = _arena(arenas, node).take(node.nbytes)


def _arena(arenas: dict[int, "_Arena"], node: GgmlNode) -> "_Arena":
    assert node.device is not None  # noqa: S101 - `place_open` has seen to it
    found = arenas.get(node.device)
    if found is None:
        found = arenas[node.device] = _Arena(OF_HOST if node.device == HOST else ALIGNMENT)
    return found


class _Arena:
    """A buffer's free blocks, by their offsets; the last has no end."""

    def __init__(self, alignment: int) -> None:
        self.free: list[tuple[int, int]] = [(0, _ENDLESS)]
        self.top, self.alignment = 0, alignment

    def take(self, nbytes: int) -> int:
        """Return the offset of so many bytes."""
        nbytes = round_up(nbytes, self.alignment)
        number, (at, size) = len(self.free) - 1, self.free[-1]
        for k, (start, n) in enumerate(self.free):  # of equals the last
            if nbytes <= n <= size:
                number, at, size = k, start, n
        left = _ENDLESS if number == len(self.free) - 1 else size - nbytes
        self.free[number : number + 1] = [(at + nbytes, left)] if left else []
        self.top = max(self.top, at + nbytes)
        return at

    def give(self, at: int, nbytes: int) -> None:
        """Free a block, as one with those that it touches."""
        size = round_up(nbytes, self.alignment)
        number = bisect_left(self.free, (at, size))
        if number < len(self.free) and self.free[number][0] == at + size:
            size += self.free.pop(number)[1]
        if number and sum(self.free[number - 1]) == at:
            number -= 1
            at, before = self.free.pop(number)
            size += before
        self.free.insert(number, (at, size))

    def shrink(self, at: int, old: int, new: int) -> None:
        """Free the end of a block whose tensor is replaced by a smaller one."""
        old, new = (round_up(n, self.alignment) for n in (old, new))
        if old > new:
            self.give(at + new, old - new)
