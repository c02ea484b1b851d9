"""llama.cpp's compute buffers: the graph of a physical batch, as its builders write it.

    rows    embeddings [T, C] in main memory; layers; of the last one, and of the output, only the
            rows whose logits are asked for
    layer   norm, queries, keys, values, attention, projection, residual; norm, MLP or experts,
            residual
    where   a layer's weights are; of weights in main memory batches of 32 rows and more are
            computed on the first GPU, with a copy of each weight (and of the layer's cache)

Identical layers need what a few of them need: the others are left out.

Source: llama.cpp 0c1e570 of October 2026: src/llama-graph.cpp (build_attn, build_ffn,
build_moe_ffn), src/models/*.cpp, src/llama-context.cpp (sched_reserve, graph_get_cb; of May 2026
attention away from its layer's device is computed by scores there; with all layers on GPUs a
norm is where its layer is),
ggml/src/ggml-cuda/ggml-cuda.cu (offload_op, get_alloc_size).
Not modelled: Gemma 3n's predictions of a layer by the one before, and --no-op-offload.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vrambudget.errors import VramBudgetError
from vrambudget.serving.ggml_builder import F32, Weight
from vrambudget.serving.ggml_graph import CACHE, HOST, GgmlNode, needed, place_open
from vrambudget.serving.gguf_architectures import UNCACHED
from vrambudget.serving.gguf_model import GgufModel
from vrambudget.serving.llama_cpp_attention import UNQUANTISED, AttentionGraph
from vrambudget.serving.llama_cpp_kernels import has_kernel
from vrambudget.serving.options import LlamaCppOptions

if TYPE_CHECKING:
    from vrambudget.serving.llama_cpp_place import TensorPlacement

_DEEP = frozenset({"qwen3vl", "qwen3vlmoe"})  # whose first layers' sums have an image's features
_SCALED = frozenset({"gemma3", "gemma3n", "gemma4", "gemma-embedding"})  # embeddings of tokens
_LAYERS_OF_FEATURES = 3  # n_deepstack_layers
_REDUCED = 15  # experts of a token whose sum one kernel makes, at most
_CHOSEN_AT_ONCE = frozenset({288, 576, *(1 << n for n in range(10))})  # of so many experts
_WEIGHED_LATER = frozenset({"gpt-oss", "llama4"})
_UNNORMED = frozenset({"deepseek", "jamba", "olmoe", "qwen2moe"}) | _WEIGHED_LATER
_SHORT = frozenset({"lfm2", "lfm2moe"})
_RESIDUAL_FIRST = frozenset({"phi3", "phimoe"}) | _SHORT  # whose sum takes the residual's place


def compute_bytes(
    model: GgufModel,
    options: LlamaCppOptions,
    placed: "TensorPlacement",
    *,
    cells: tuple[int, int | None],
    outputs: int,
    flash: bool,
) -> dict[int, int]:
    """Return the compute buffer of each device.

    `cells`: of a cache of all tokens, and of one of a window; `outputs`: rows of logits.
    """
    graph = _Graph(model, options, placed, cells=cells, outputs=outputs, flash=flash)
    try:
        if options.flash_attn == "auto" and options.cache_type_v in UNQUANTISED and placed.has_gpus:
            graph.flash = graph.flash and _stays(graph, cells)
        graph.build()
    except KeyError as missing:
        what = f"a layer of {model.architecture} has no tensor {missing.args[0]!r}"
        if not isinstance(missing.args[0], str):  # nothing is cached that a layer could attend to
            what = f"{model.architecture}.attention.head_count_kv is 0, but layers have attention"
        raise VramBudgetError(what, where=model.path or model.name) from None
    except IndexError:  # a product with a vector
        what = f"a tensor of {model.architecture}'s layers has too few dimensions"
        raise VramBudgetError(what, where=model.path or model.name) from None
    is_pipelined = (
        len(set(placed.devices)) > 1
        and graph.is_whole
        and not options.no_kv_offload
        and not placed.is_overridden
    )
    return needed(graph.leaves, graph.nodes, pipelined=is_pipelined)


def _stays(graph: "_Graph", cells: tuple[int, int | None]) -> bool:
    """Return whether attention's kernel is on each layer's device, or llama.cpp drops it.

    It tries a graph of one token a sequence. Only layers beside recurrent ones, layers that read
    others' keys and layers with sinks may be elsewhere than their weights.
    """
    model, placed = graph.model, graph.placed
    devices = placed.devices[: model.layers]
    if not all(where == HOST or has_kernel(model, layer) for layer, where in enumerate(devices)):
        return False
    has_sinks = any("attn_sinks" in of for of in placed.layers)
    if not (any(model.states) or not all(model.keys) or has_sinks):
        return True
    probe = _Graph(
        model,
        graph.options,
        placed,
        cells=cells,
        outputs=graph.slots,
        flash=graph.flash,
        rows=graph.slots,
    )
    probe.build()
    place_open(probe.nodes)
    return all(node.device == devices[layer] for layer, node in probe.attended)


class _Graph(AttentionGraph):
    per_layer = embedded = GgmlNode(0, HOST)  # embeddings of each layer, and a token's

    def build(self) -> None:
        """Write all of it."""
        model, rows, others = self.model, self.rows, self.placed.others
        tokens = self.leaf(rows)
        features = _LAYERS_OF_FEATURES if model.architecture in _DEEP else 0
        among = self._given(features)
        table = others.get("per_layer_token_embd")
        if table:  # of which each layer reads a part
            self.per_layer = self.node(table.shape[0], self.leaf(rows), device=HOST)
        self.inputs()
        self.out_ids = self.leaf(self.outputs)
        x = self.node(model.hidden, tokens, device=HOST)
        if among:
            x = self._among_tokens(x, features, among)
        if "position_embd" in others and any(model.keys):
            x = self.add(x, self.node(model.hidden, self.pos, device=HOST))
        elif features and not x.more:
            x = self._padded(x, features)
        if "token_embd_norm" in others:
            has_table = "position_embd" in others
            of_positions = self.node(model.hidden, self.pos, device=HOST) if has_table else None
            if types := others.get("token_types"):  # all tokens are of the first
                x = self.scaled(Weight(types.shape[:1], types.shape[0] * F32, types.device), x)
            x = self.add(of_positions, x) if of_positions else x
            x = self.norm(others, "token_embd_norm", x)
        padded = self.embedded = x
        for layer in self.placed.telling:
            x = self._layer(layer, x, is_last=layer == model.layers - 1)
            x = self.add(x, padded) if layer < features else x
        # without an output the table of tokens makes the logits
        output = others.get("output") or others.get("token_embd")
        if output and model.architecture not in UNCACHED:
            self.rows = self.outputs
            norm = self.node(model.hidden, x, in_place=True)
            logits = self.matrix({"output": output}, "output", norm)
            logits.readers += 1  # it is asked for

    def _given(self, features: int) -> list[GgmlNode]:
        """Add embeddings as an input, which what is not chosen reads; return those among tokens."""
        if self.is_old:
            return []
        is_mixed = self.options.engine_version == "2026-10"
        size = self.model.hidden * self.rows * (1 + features)
        among = [self.leaf(self.rows)] if is_mixed else []
        self.leaf(size).readers = not self.options.has_all_logits
        return [*among, self.leaf(2 * self.rows), self.leaf(size)] if is_mixed else []

    def _among_tokens(self, x: GgmlNode, features: int, among: list[GgmlNode]) -> GgmlNode:
        """Return embeddings of tokens, where a batch may have others among them."""
        ids, slots, given = among
        own = self.node(self.model.hidden, ids, device=HOST)
        if features:
            x, own = (self._padded(each, features) for each in (x, own))
        made = self.node(self.model.hidden * (1 + features), given)
        self.nodes.append(GgmlNode(0, None, [own, slots, made], lies=True))
        self.expand()
        made.readers += 1  # nothing is made of what is not chosen
        return self.same(x, self.leaf(self.rows)) if self.model.architecture in _SCALED else x

    def _padded(self, x: GgmlNode, features: int) -> GgmlNode:
        """Return embeddings with room for an image's features, which is not read."""
        found = self.node(self.model.hidden * (1 + features), x)
        found.more = found.nbytes - x.nbytes
        return found

    def _layer(self, layer: int, x: GgmlNode, *, is_last: bool) -> GgmlNode:
        of = self.placed.layers[layer]
        if self.model.architecture == "dbrx":  # its experts' norm has another's name
            of = {**of, "ffn_norm": of["attn_output_norm"]}
        normed = self.norm(of, "attn_norm", x) if "attn_norm" in of else x
        if not {"ffn_norm", "post_attention_norm"} & of.keys() and "attn_norm" in of:
            if {"attn_output", "ffn_down"} <= of.keys():
                return self._parallel(layer, of, x, normed, is_last=is_last)
            cur = self._alone(layer, of, normed)
            if is_last:
                cur, x = self._asked_for(cur, x)
            return self.add(cur, x)
        cur = self.attention(layer, of, normed)
        if is_last:
            cur, x = self._asked_for(cur, x)
        if "layer_output_norm" in of:  # BERT's: what is added is normed
            x = self.norm(of, "attn_output_norm", self.add(cur, x))
            return self.norm(of, "layer_output_norm", self.add(self._mlp(of, x), x))
        is_norm_before = "ffn_norm" not in of and "attn_norm" in of
        if "post_attention_norm" in of and not is_norm_before:
            cur = self.norm(of, "post_attention_norm", cur, in_place=True)
        before = "ffn_norm" if "ffn_norm" in of else "post_attention_norm"
        x = self.add(x, cur) if self.model.architecture in _SHORT else self.add(cur, x)
        cur = self.norm(of, before, x) if "ffn_norm" in of or is_norm_before else x
        cur = self._mixture(of, cur) if "ffn_down_exps" in of else self._mlp(of, cur)
        if "post_ffw_norm" in of:
            cur = self.norm(of, "post_ffw_norm", cur, in_place=True)
        if self.model.architecture in _RESIDUAL_FIRST:
            return self.add(x, cur)
        x = self.add(cur, x)
        x = self._with_embeddings(layer, of, x, is_last=is_last) if "inp_gate" in of else x
        return self.scaled(of["layer_output_scale"], x) if "layer_output_scale" in of else x

    def _asked_for(self, *made: GgmlNode) -> list[GgmlNode]:
        """Return the rows whose logits are asked for; those after them are of these alone."""
        self.rows = self.outputs
        return [self.node(self.model.hidden, each, self.out_ids) for each in made]

    def _with_embeddings(
        self, layer: int, of: Mapping[str, Weight], x: GgmlNode, *, is_last: bool
    ) -> GgmlNode:
        """Return the sum with what a token's embedding of the layer makes; first all are made."""
        gated, width = self.same(self.matrix(of, "inp_gate", x)), of["inp_gate"].shape[1]
        if not layer:
            made = self.matrix(self.placed.others, "per_layer_model_proj", self.embedded)
            made = self.same(self.same(made))
            made = self.same(self.add(self.same(self.per_layer), made))
            device = self.runs_on(self.placed.others["per_layer_model_proj"])
            self.per_layer = self.node(width * self.model.layers, made, device=device)
        own = self.per_layer
        if self.runs_on(of["inp_gate"]) != own.device:  # a view is copied, of the layer alone
            own = GgmlNode(own.nbytes // self.model.layers, own.device, shape=CACHE, lies=True)
        own = self.node(width, own, self.out_ids) if is_last else own
        cur = self.norm(of, "post_norm", self.matrix(of, "proj", self.same(gated, own)))
        return self.add(x, cur)

    def _parallel(
        self, layer: int, of: Mapping[str, Weight], x: GgmlNode, normed: GgmlNode, *, is_last: bool
    ) -> GgmlNode:
        """Return a layer whose attention and MLP read the same, the projection last but in Phi."""
        is_first = self.model.architecture == "phi2"
        made = self.attention(layer, of, normed, project=is_first or is_last)
        if is_last:
            made, x, normed = self._asked_for(made, x, normed)
        if is_first:
            return self.add(self.add(made, self._mlp(of, normed)), x)
        cur = self.add(self._mlp(of, normed), x)
        return self.add(cur, made if is_last else self.projected(layer, of, made))

    def _alone(self, layer: int, of: Mapping[str, Weight], normed: GgmlNode) -> GgmlNode:
        """Return what a layer adds that is attention, a state or an MLP alone."""
        if "ffn_down_exps" in of:
            return self._mixture(of, normed)
        return self._mlp(of, normed) if "ffn_down" in of else self.attention(layer, of, normed)

    def _mlp(self, of: Mapping[str, Weight], cur: GgmlNode, end: str = "") -> GgmlNode:
        if f"ffn_down{end}" not in of:
            return cur
        return self.matrix(of, f"ffn_down{end}", self._activated(of, cur, end))

    def _activated(self, of: Mapping[str, Weight], cur: GgmlNode, end: str) -> GgmlNode:
        """Return what an MLP's last product reads."""
        inner = of[f"ffn_down{end}"].shape[0]
        if f"ffn_gate{end}" in of:
            halves = (self.matrix(of, f"ffn_{half}{end}", cur) for half in ("gate", "up"))
            return self.node(inner, *halves)
        up = self.matrix(of, f"ffn_up{end}", cur)
        if up.nbytes == inner * self.rows * F32:
            return self.same(up)
        if self.options.engine_version == "2025-05":  # the halves were copied out
            gate = self.same(self.node(inner, up))
            return self.same(gate, self.node(inner, up))
        return self.node(inner, up)

    def _mixture(self, of: Mapping[str, Weight], cur: GgmlNode) -> GgmlNode:
        used, hidden = self.model.experts_used, self.model.hidden
        is_weighted_first = self.model.architecture == "llama4"
        chosen, weights = self._routed(of, cur)
        taken = self.same(self.node(used * hidden, cur), weights) if is_weighted_first else cur
        names = [n for n in ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps") if n in of]
        made = [self.matrix(of, name, taken, chosen, times=used) for name in names]
        width = used * of["ffn_down_exps"].shape[0]
        act = self.same(*made) if names == ["ffn_up_exps"] else self.node(width, *made)
        is_beside = not is_weighted_first and self._is_shared_beside(of)
        shared = self._activated(of, cur, "_shexp") if is_beside else None
        if is_beside:
            self.stays(cur, chosen)
        raw = self.matrix(of, "ffn_down_exps", act, chosen, times=used)
        down = raw if is_weighted_first else self.same(raw, weights)
        total = self.node(hidden, down, down) if used > 1 else self.node(hidden, down)
        for _ in range(used - 2):
            total = self.add(total, down)
        if self.fuses(of["ffn_down_exps"]) and 1 < used <= _REDUCED and not is_weighted_first:
            self.stays(raw, weights)
        self.expand()
        if "ffn_down_shexp" not in of:
            return total
        shared = self.matrix(of, "ffn_down_shexp", shared or self._activated(of, cur, "_shexp"))
        if gate := of.get("ffn_gate_inp_shexp"):
            weighed = self.node(1, self.weight(gate), cur, device=self.runs_on(gate))
            shared = self.same(shared, self.same(weighed))
        return self.add(total, shared)

    def _routed(self, of: Mapping[str, Weight], cur: GgmlNode) -> tuple[GgmlNode, GgmlNode]:
        """Return which experts a token takes, and how it weighs them."""
        used, many, name = self.model.experts_used, self.model.experts, self.model.architecture
        logits = self.matrix(of, "ffn_gate_inp", cur)
        likely = self.same(logits)
        biased = self.same(likely) if "exp_probs_b.bias" in of else likely
        chosen = self.node(many, logits if name == "llama4" else biased)
        weights = self.node(used, likely, chosen)
        made = [logits, likely, biased, chosen, weights]
        if name not in _UNNORMED:
            total = self.same(self.node(1, weights))
            weights = self.same(weights, total)
            made += [*total.sources, total, weights]
        is_at_once = many in _CHOSEN_AT_ONCE and name not in _WEIGHED_LATER
        if is_at_once and self.fuses(of["ffn_gate_inp"]):
            self.stays(*made)
        self.expand()
        return chosen, weights

    def _is_shared_beside(self, of: Mapping[str, Weight]) -> bool:
        """Return whether the shared expert is computed with the others, as one of them."""
        for half in ("gate", "up"):
            own, shared = of.get(f"ffn_{half}_exps"), of.get(f"ffn_{half}_shexp")
            if not (own and shared and self.is_fused and own.device == shared.device != HOST):
                return False
            if own.shape[:2] != shared.shape[:2] or own.nbytes != shared.nbytes * own.shape[2]:
                return False  # of other rows, or in another type
        return True
