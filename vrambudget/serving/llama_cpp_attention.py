"""Attention in llama.cpp's graphs, its cache and what it reads beside them.

    inputs     positions, the rows that keys and values go to (since July 2025), masks [cells, T]
    plain      queries, keys, values, or all of them as one; norms of heads; rotated; stored
    latent     queries against latent rows, which are keys and values at once
    kernel     one operation, or scores [cells, T, H] and what is made of them

Since 2026 keys and values of a quantised cache are turned by a matrix, queries and results too.

Source: llama.cpp 0c1e570 of October 2026: src/llama-graph.cpp (build_attn, build_attn_mha,
build_attn_inp_kv), src/llama-kv-cache.cpp (build_input_k_rot), src/models/deepseek2.cpp,
ggml/src/ggml-cuda/fattn.cu (ggml_cuda_flash_attn_ext_get_alloc_size).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrambudget.serving.ggml_builder import F32, Weight
from vrambudget.serving.ggml_graph import CACHE, HOST, GgmlNode
from vrambudget.serving.gguf_architectures import UNCACHED
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.gguf_types import row_bytes
from vrambudget.serving.llama_cpp_place import in_a_buffer
from vrambudget.serving.llama_cpp_recurrent import Recurrent
from vrambudget.serving.options import LlamaCppOptions

if TYPE_CHECKING:
    from vrambudget.serving.llama_cpp_place import TensorPlacement

UNQUANTISED = frozenset({"f32", "f16", "bf16"})
_PARTLY = frozenset({"bert", "cohere2", "cohere2moe", "jina-bert-v2", "llama4"})  # in windows
_UNROTATED = frozenset({"bloom", "jamba", "mpt", "nemotron_h", "nemotron_h_moe"})
_LAYERS_OF_13B = 40  # of Baichuan, whose heads have slopes
_FOLDED = frozenset({"qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe"})  # 4 positions


class AttentionGraph(Recurrent):
    """A graph's attention. `cells`: of a cache of all tokens, and of one of a window."""

    def __init__(
        self,
        model: GgufModel,
        options: LlamaCppOptions,
        placed: "TensorPlacement",
        *,
        cells: tuple[int, int | None],
        outputs: int,
        flash: bool,
        rows: int = 0,
    ) -> None:
        self.model, self.options, self.placed, self.flash = model, options, placed, flash
        self.is_spread = not flash  # the cache's values; decided before attention is tried
        self.is_old = options.is_old
        self.is_whole = HOST not in placed.devices
        self.copies_caches = flash and placed.has_gpus and not options.has_all_logits  # to float16
        self.is_encoder = model.architecture in UNCACHED
        is_large = model.architecture == "baichuan" and model.layers == _LAYERS_OF_13B
        self.is_rotated = model.architecture not in _UNROTATED and not is_large
        super().__init__(
            rows=rows or min(options.ubatch_size, options.batch_size, max(cells[0], 1)),
            gpu=0 if placed.has_gpus else HOST,
            keeps_norms=self.is_whole,
            is_fused=options.engine_version == "2026-10",
        )
        self.cells = (self.rows, self.rows) if self.is_encoder else cells  # encoders have no cache
        self.outputs = min(outputs, self.rows)
        self.slots, _ = options.slots_and_streams
        self.masks: dict[bool, GgmlNode] = {}  # of layers with a window, and of the others
        self.idxs: dict[
            bool, tuple[tuple[GgmlNode], tuple[GgmlNode]]
        ] = {}  # where keys and values go
        self.rotations: dict[bool, tuple[GgmlNode | None, GgmlNode | None]] = {}
        self.pos = self.out_ids = self.scales = self.top = GgmlNode(0, HOST)
        self.sequences = self.of_batch = self.of_others = GgmlNode(0, HOST)
        self.attended: list[tuple[int, GgmlNode]] = []  # by the kernel, in which layer
        self.fresh: list[GgmlNode] = []  # keys and values that no cache keeps
        self.factors: dict[int, GgmlNode] = {}  # of rotary tables, on each device that has layers

    def inputs(self) -> None:
        """Add what attention reads."""
        if any(self.model.states):
            self.sequences = self.leaf(self.slots)
            parts = (self.slots, self.slots - 1)
            self.of_batch, self.of_others = (self.view(self.sequences, n * F32) for n in parts)
        if not any(self.model.keys) and not self.is_encoder:
            return
        if self.is_rotated or "position_embd" in self.placed.others:
            self.pos = self.leaf(self.rows * (4 if self.model.architecture in _FOLDED else 1))
        if self.model.architecture == "llama4":
            self.scales = self.leaf(self.rows)
        windows = {window is not None for window in self.model.windows}
        is_latent = not any(self.model.values)
        for is_window in sorted(windows):
            cells = (self.cells[1] if is_window else None) or self.cells[0]
            size = 2 if self.flash and not self.options.has_all_logits else F32
            spread = max(self.model.values) if self.is_spread else 1  # transposed: of each element
            if self.options.engine_version != "2025-05" and not self.is_encoder:
                of_keys = self.leaf(2 * self.rows)
                of_values = of_keys if is_latent else self.leaf(2 * self.rows * spread)
                self.idxs[is_window] = (of_keys,), (of_values,)
            self.masks[is_window] = self.leaf(cells * self.rows * size // F32)
            if self.model.chosen:
                self.index_turn = self.leaf(max(self.model.indexed) ** 2)
                self.index_idxs = self.leaf(2 * self.rows)
                self.index_mask = self.leaf(cells * self.rows * size // F32)
                nbytes = self.rows * min(cells, self.model.chosen) * F32
                self.zeros = [GgmlNode(nbytes, device) for device in self.placed.devices[:-1]]
                self.leaves += self.zeros
            self.rotations[is_window] = (None, None) if self.is_old else self._rotations(is_window)

    def _rotations(self, is_window: bool) -> tuple[GgmlNode | None, GgmlNode | None]:  # noqa: FBT001
        """Return the matrices that turn queries and keys, and values, of a quantised cache."""
        model, options = self.model, self.options
        head = model.window_head if is_window else (model.head_keys, model.head_values)
        head = head if any(model.values) else (0, 0)
        sizes = (head[0] & -head[0], 64)  # of keys the largest power of 2, of values the smallest
        found = [
            self.leaf(size * size)
            if kind not in UNQUANTISED and width and width % 64 == 0
            else None
            for kind, width, size in zip(
                (options.cache_type_k, options.cache_type_v), head, sizes, strict=True
            )
        ]
        return found[0], found[1]

    def attention(
        self, layer: int, of: Mapping[str, Weight], cur: GgmlNode, *, project: bool = True
    ) -> GgmlNode:
        """Return what a layer adds to the residual stream; without `project` what it projects."""
        if "attn_output" not in of:
            return self.recurrent(layer, of, cur)
        if "attn_kv_a_mqa" in of:
            return self._latent(layer, of, cur)
        gate = None
        if "attn_qkv" in of:
            joint = self.matrix(of, "attn_qkv", cur)
            keys, values = self.model.keys[layer], self.model.values[layer]
            width = joint.nbytes // F32 // self.rows - keys - values
            if self.is_encoder:  # which keeps none
                keys = values = (width - of["attn_output"].shape[0]) // 2
                width -= keys + values
            is_copied = self.options.engine_version == "2025-05"
            parts = (self.node(n, joint) if is_copied else joint for n in (width, keys, values))
            queries = self.node(width, next(parts), *self._turning(layer))
            queries = self._turned(layer, width, queries)
            turned = self._turned(layer, values, joint, of_values=True)
            rotated = self.node(keys, next(parts), *self._turning(layer))
            rotated = self._turned(layer, keys, rotated)
            self._store(layer, rotated, next(parts) if turned is joint else turned)
        else:
            queries, gate = self._queries(layer, of, cur)
            queries = self._turned(layer, queries.nbytes // F32 // self.rows, queries)
            if self.model.keys[layer] or self.is_encoder:  # else an earlier layer's are read
                made = self.matrix(of, "attn_v", cur) if "attn_v" in of else cur
                made = self._turned(layer, self.model.values[layer], made, of_values=True)
                rotated = self._rotated(layer, of, "attn_k", cur)
                self._store(layer, self._turned(layer, self.model.keys[layer], rotated), made)
        made = self._kernel(layer, queries, of["attn_output"].shape[0])
        self.expand()
        if gate:
            made = self._turned_back(layer, of, made)
            made.shape = "of heads"  # the gate is what its product takes the place of
            made = self.same(made, self.same(self.node(of["attn_output"].shape[0], gate)))
        return self.projected(layer, of, made) if project else made

    def projected(self, layer: int, of: Mapping[str, Weight], made: GgmlNode) -> GgmlNode:
        """Return the projection of what attention made."""
        if not any(self.model.states):  # these are turned back before their gate
            made = self._turned_back(layer, of, made)
        return self.matrix(of, "attn_output", made)

    def _turned(self, layer: int, width: int, x: GgmlNode, *, of_values: bool = False) -> GgmlNode:
        """Return queries, keys or values by the matrix of a quantised cache, if there is one."""
        turn = self.rotations[self.model.windows[layer] is not None][of_values]
        return self.node(width, turn, x) if turn else x

    def _turned_back(self, layer: int, of: Mapping[str, Weight], made: GgmlNode) -> GgmlNode:
        """Return what attention made of values that were turned."""
        if turn_values := self.rotations[self.model.windows[layer] is not None][1]:
            return self.node(of["attn_output"].shape[0], turn_values, made)
        return made

    def _queries(
        self, layer: int, of: Mapping[str, Weight], cur: GgmlNode
    ) -> tuple[GgmlNode, GgmlNode | None]:
        """Return queries, and what holds a gate for each of them."""
        width = of["attn_output"].shape[0]
        if of["attn_q"].shape[1] != 2 * width or not any(self.model.states):
            return self._rotated(layer, of, "attn_q", cur), None
        both = self.matrix(of, "attn_q", cur)
        return self.same(self.scaled(of["attn_q_norm"], self.node(width, both)), self.pos), both

    def _rotated(self, layer: int, of: Mapping[str, Weight], name: str, cur: GgmlNode) -> GgmlNode:
        """Return queries or keys: what reads a view of them makes a tensor of its own."""
        found = self.matrix(of, name, cur)
        width = found.nbytes // F32 // self.rows
        norm = of.get(f"{name}_norm")
        if norm is None:
            if not self.is_rotated:
                return found
            if self.model.architecture in _PARTLY and self.model.windows[layer] is None:
                is_scaled = name == "attn_q" and self.model.architecture == "llama4"
                return self.same(found, self.scales) if is_scaled else found
            return self.node(width, found, *self._turning(layer))
        of_heads = norm.shape[0] < width
        found = self.norm(of, f"{name}_norm", found, in_place=not of_heads)
        by = self._turning(layer)
        return self.same(found, *by) if of_heads else self.node(width, found, *by)

    def _turning(self, layer: int) -> list[GgmlNode]:
        """Return positions, and a file's factors for them: copies begin splits where they go."""
        device = self.placed.devices[layer]
        found = next((w for n, w in self.placed.others.items() if n.startswith("rope_")), None)
        if not found or (self.model.windows[layer] and self.model.architecture == "gemma4"):
            return [self.pos]
        return [
            self.pos,
            self.factors.setdefault(device, GgmlNode(found.nbytes, device, lies=True)),
        ]

    def _kernel(
        self, layer: int, queries: GgmlNode, width: int, own: GgmlNode | None = None
    ) -> GgmlNode:
        """Return attention's output: by one kernel, or by way of scores."""
        model, options = self.model, self.options
        is_window, reader = model.windows[layer] is not None, layer
        cells = (self.cells[1] if is_window else None) or self.cells[0]
        mask = own or self.masks[is_window]
        if self.flash and self.options.has_all_logits and not mask.sources:  # it is cast once
            mask = self.masks[is_window] = self.node(mask.nbytes // 2 // self.rows // F32, mask)
        if not (model.keys[layer] or self.is_encoder):  # it reads that of the last of its kind
            kept = zip(model.keys[:layer], model.windows[:layer], strict=True)
            layer = max(n for n, (k, w) in enumerate(kept) if k and w == model.windows[layer])
        caches, extra = list(self.fresh), 0
        head = model.window_head if is_window else (model.head_keys, model.head_values)
        for kind, each, width_of_head in (
            (options.cache_type_k, model.keys[layer], head[0]),
            (options.cache_type_v, model.values[layer], head[1]),
        ):
            if each:  # a copy's rows are those of a head
                size = row_bytes(kind.upper(), each) * cells
                size = in_a_buffer(size, kind.upper(), width_of_head)
                caches.append(GgmlNode(size, self.cache_device(layer), shape=CACHE, lies=True))
                if self.copies_caches and kind != "f16":
                    extra += each * cells * 2
        if self.flash:
            if model.keys[layer] and not model.values[layer]:  # values are a part of latent rows
                latent = caches[0].nbytes * width // model.heads // model.keys[layer]
                caches.append(GgmlNode(latent, caches[0].device, shape=CACHE, lies=True))
            found = self.node(width, queries, *caches, mask, more=extra)
            self.attended.append((reader, found))
            return found
        number, copied = cells * model.heads, 0
        if self.is_encoder:
            copied = width * self.rows * F32
        elif not self.is_spread:
            copied = caches[1].nbytes
        return self.by_scores(number, width, queries, caches, mask, copied=copied)

    def _store(self, layer: int, *made: GgmlNode) -> None:
        """Write keys, and values, to the cache."""
        self.fresh = [] if any(self.model.keys) else list(made)
        idxs = self.idxs.get(self.model.windows[layer] is not None, ((), ()))
        for each, places in zip(made, idxs, strict=False):
            if self.model.keys[layer]:
                self._write(layer, each, *places)

    def _write(self, layer: int, *sources: GgmlNode) -> None:
        """Write what a layer keeps of each token."""
        self.nodes.append(GgmlNode(0, self.cache_device(layer), sources, lies=True))
        self.expand()

    def _chosen(
        self, layer: int, of: Mapping[str, Weight], cur: GgmlNode, first: GgmlNode
    ) -> GgmlNode:
        """Return a mask of the tokens that this layer's indexer chose, or the last one before."""
        top, mask = min(self.cells[0], self.model.chosen), self.masks[False]
        zeros = self.node(top, self.zeros[layer])
        if "indexer.attn_q_b" in of:
            queries = self.same(self.matrix(of, "indexer.attn_q_b", first), self.pos)
            queries = self.node(of["indexer.attn_q_b"].shape[1], self.index_turn, queries)
            weights = self.same(self.matrix(of, "indexer.proj", cur))
            score = self.node(self.cells[0], queries, weights, self.index_mask)
            self.top = self.node(top, self.node(top, score))
        filled = self.same(mask)
        found = GgmlNode(mask.nbytes, None, [filled, mask])
        self.nodes += [GgmlNode(0, None, [zeros, self.top, filled], lies=True), found]
        return found

    def _latent(self, layer: int, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        if "indexer.attn_k" in of:
            keys = self.norm(of, "indexer.k_norm", self.matrix(of, "indexer.attn_k", cur))
            keys = self.node(self.model.indexed[layer], self.index_turn, self.same(keys, self.pos))
            self._write(layer, keys, self.index_idxs)
        if "attn_q_a" in of:
            first = self.norm(of, "attn_q_a_norm", self.matrix(of, "attn_q_a", cur), in_place=True)
            queries = self.matrix(of, "attn_q_b", first)
        else:
            queries = self.matrix(of, "attn_q", first := cur)
        heads, low = self.model.heads, of["attn_kv_a_norm"].shape[0]
        rope = of["attn_kv_a_mqa"].shape[1] - low
        if "attn_v_b" not in of:
            return self._spread(layer, of, cur, queries)
        absorbed = self.heads(of, "attn_k_b", queries, heads * low)
        rotated = self.node(heads * rope, queries, self.pos)
        queries = self.node(heads * (low + rope), absorbed, rotated)
        both = self.matrix(of, "attn_kv_a_mqa", cur)
        values = self.node(low, both)
        keys = self.node(rope, both, self.pos)
        self._store(layer, self.node(low + rope, values, keys))
        mask = self._chosen(layer, of, cur, first) if self.model.chosen else None
        cur = self._kernel(layer, queries, heads * low, mask)
        width = heads * of["attn_v_b"].shape[1]
        cur = self.node(width, self.heads(of, "attn_v_b", cur, width))
        return self.matrix(of, "attn_output", cur)

    def _spread(
        self, layer: int, of: Mapping[str, Weight], cur: GgmlNode, queries: GgmlNode
    ) -> GgmlNode:
        """Return latent attention of files whose heads' keys and values are made before it."""
        low = of["attn_kv_a_norm"].shape[0]
        rope = of["attn_kv_a_mqa"].shape[1] - low
        queries = self.node(queries.nbytes // F32 // self.rows, queries, self.pos)
        both = self.matrix(of, "attn_kv_a_mqa", cur)
        made = self.matrix(of, "attn_kv_b", self.node(low, both))
        rotated = self.node(rope, both, self.pos)
        self._store(layer, self.node(self.model.keys[layer], made, rotated), made)
        width = of["attn_output"].shape[0]
        return self.matrix(of, "attn_output", self._kernel(layer, queries, width))
