"""The parts that llama.cpp's graphs are made of: products with weights, norms, sums.

Source: llama.cpp 0c1e570 of October 2026: src/llama-graph.cpp (build_norm, build_lora_mm),
ggml/src/ggml-cuda/ggml-cuda.cu (offload_op).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vrambudget.serving.ggml_graph import CACHE, HOST, GgmlNode

F32 = 4
"""Bytes of a number in a graph."""
_LEAST_ROWS = 32  # op_offload_min_batch_size


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor where it lies: its bytes as a GPU's buffer has it."""

    shape: tuple[int, ...]
    nbytes: int
    device: int


class Builder:
    """A graph in the making, of so many rows.

    `gpu`: where weights of main memory are computed with; `keeps_norms`: norms are where their
    layer is, else where the operation before them is; `is_fused`: CUDA's kernels do several
    operations at once, and keep what they read until all are done.
    """

    def __init__(self, *, rows: int, gpu: int, keeps_norms: bool, is_fused: bool) -> None:
        self.rows, self.gpu, self.keeps_norms = rows, gpu, keeps_norms
        self.is_fused = is_fused
        self.nodes: list[GgmlNode] = []
        self.expanded = 0  # nodes that stand, when others are asked for
        self.leaves: list[GgmlNode] = []

    def norm(
        self, of: Mapping[str, Weight], name: str, x: GgmlNode, *, in_place: bool = False
    ) -> GgmlNode:
        """Return x normalised and scaled: in its place where nothing else reads it."""
        width = (x.nbytes - x.more) // F32 // self.rows
        weight = of[name]
        device = weight.device if self.keeps_norms else None
        return self.scaled(weight, self.node(width, x, in_place=in_place, device=device))

    def scaled(self, weight: Weight, x: GgmlNode) -> GgmlNode:
        """Return x times a weight, or with it as a bias."""
        rows = (x.nbytes - x.more) // F32 // weight.shape[0]
        return self.same(x, self.weight(weight), device=self.runs_on(weight, rows))

    def matrix(
        self, of: Mapping[str, Weight], name: str, *sources: GgmlNode, times: int = 1
    ) -> GgmlNode:
        """Return a product with a weight, and its bias's sum. `times`: experts of a token."""
        found = self._product(of[name], *sources, times=times)
        if adapter := of.get(f"{name}.lora_a"):
            low = self._product(adapter, *sources, times=times)
            _, *others = sources
            found = self.add(
                found, self.same(self._product(of[f"{name}.lora_b"], low, *others, times=times))
            )
        if bias := of.get(f"{name}.bias"):
            found = self.scaled(bias, found)
        return found

    def _product(self, weight: Weight, *sources: GgmlNode, times: int) -> GgmlNode:
        width, device = weight.shape[1] * times, self.runs_on(weight)
        return self.node(width, self.weight(weight), *sources, device=device)

    def heads(self, of: Mapping[str, Weight], name: str, x: GgmlNode, width: int) -> GgmlNode:
        """Return a product with a weight of each head."""
        weight = of[name]
        return self.node(width, self.weight(weight), x, device=self.runs_on(weight))

    def add(self, cur: GgmlNode, x: GgmlNode) -> GgmlNode:
        """Return a sum, in the place of the first where nothing else reads it."""
        found = GgmlNode(cur.nbytes, None, [cur, x], in_place=True)
        self.nodes.append(found)
        return found

    def same(self, cur: GgmlNode, *sources: GgmlNode, device: int | None = None) -> GgmlNode:
        """Return what replaces `cur` where nothing else reads it."""
        found = GgmlNode(cur.nbytes, device, [cur, *sources], in_place=True)
        self.nodes.append(found)
        return found

    def by_scores(
        self,
        number: int,
        width: int,
        queries: GgmlNode,
        caches: list[GgmlNode],
        mask: GgmlNode,
        *,
        copied: int,
    ) -> GgmlNode:
        """Return attention by way of so many scores a row; `copied`: bytes of transposed values."""
        if copied:
            caches[1] = GgmlNode(copied, None, caches[1:])
            self.nodes.append(caches[1])
        scores = self.same(self.node(number, queries, *caches[:1]), mask)
        return self.node(width, self.node(width, scores, *caches[1:]))

    def keep(self, of: GgmlNode, nbytes: int, device: int) -> None:
        """Write a part of a tensor to memory that stays."""
        part = GgmlNode(nbytes, None, [of], lies=True)
        self.nodes += [part, GgmlNode(0, device, [part], lies=True)]
        self.expand()

    def expand(self) -> None:
        """Let all nodes stand: what is written `early` comes after them."""
        self.expanded = len(self.nodes)

    def early(self, node: GgmlNode) -> GgmlNode:
        """Write a node before those that nothing has asked for yet."""
        self.nodes.insert(self.expanded, node)
        self.expanded += 1
        return node

    def view(self, of: GgmlNode, nbytes: int, device: int | None = None) -> GgmlNode:
        """Return a part of a tensor, which is copied by itself where another device reads it."""
        found = GgmlNode(nbytes, device, [of], shape=CACHE, lies=True)
        self.nodes.append(found)
        return found

    def fuses(self, weight: Weight) -> bool:
        """Return whether CUDA's kernels do several operations around a weight's at once."""
        return self.is_fused and self.runs_on(weight) != HOST

    def stays(self, *kept: GgmlNode) -> None:
        """Keep what one kernel reads, and what it makes, until here."""
        self.nodes.append(GgmlNode(0, None, kept, lies=True))

    def copied(self, x: GgmlNode) -> GgmlNode:
        """Return what is made of a view."""
        return self.node(x.nbytes // F32 // self.rows, x)

    def node(
        self,
        width: int,
        *sources: GgmlNode,
        device: int | None = None,
        in_place: bool = False,
        more: int = 0,
    ) -> GgmlNode:
        """Return a tensor of so many numbers a row. `more`: bytes that follow it."""
        nbytes = width * self.rows * F32
        found = GgmlNode(nbytes + more, device, sources, shape=nbytes, in_place=in_place)
        self.nodes.append(found)
        return found

    def leaf(self, elements: int) -> GgmlNode:
        """Return an input of so many numbers."""
        found = GgmlNode(elements * F32, HOST)
        self.leaves.append(found)
        return found

    def weight(self, weight: Weight) -> GgmlNode:
        """Return a weight as it lies."""
        return GgmlNode(weight.nbytes, weight.device, lies=True)

    def runs_on(self, weight: Weight, rows: int = 0) -> int:
        """Return where a weight's operation runs: large batches on a GPU. `rows`: of heads."""
        is_moved = weight.device == HOST and max(rows, self.rows) >= _LEAST_ROWS
        return self.gpu if is_moved else weight.device
