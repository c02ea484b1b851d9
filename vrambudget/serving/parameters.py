"""A rank's tensors as a server makes them of the model's own parameters: merged, and shared.

    vocabulary   embed_tokens, lm_head [V / tp, C], V up to a multiple of 64
    merged       q, k and v; gate and up; q_a and kv_a of latent attention: one tensor each
    by outputs   [N / tp, K]: q, k, v (each rank has a key-value head), gate, up, q_b, kv_b
    by inputs    [N, K / tp]: o, down, and what closes a block of a vision tower; biases are whole
    experts      [E, 2 I / tp, C], [E, C, I / tp]
    recurrent    [N / tp, K]: in_proj_*, of several projections; a convolution's channels
    whole        all others: norms, routers, what projects pictures
    rotary       [positions, rotary width], one for each kind of layer

Names and shapes are those of the model as `models` builds it: nothing of an architecture is written
here a second time.

Source: vllm/model_executor/models/llama.py and its namesakes, siglip.py, layers/linear.py
(QKVParallelLinear, MergedColumnParallelLinear), layers/vocab_parallel_embedding.py
(pad_vocab_size), layers/rotary_embedding/__init__.py (get_rope). vLLM 0.19.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

from vrambudget.engine.context import ModelOptions, Platform, on_meta, recording
from vrambudget.engine.tensor import Shape
from vrambudget.models.parts.decoder import DecoderConfig, LayerType
from vrambudget.models.parts.windows import RotaryByKindConfig
from vrambudget.serving.linear import Rotary, ServedLinear
from vrambudget.serving.tabled import TabledDecoder
from vrambudget.units import round_up

_VOCABULARY_MULTIPLE = 64
_VOCABULARY = frozenset({"embed_tokens", "lm_head"})
_MERGED = (  # of phi3 they are one parameter already
    ("qkv_proj", ("qkv_proj", "q_proj", "k_proj", "v_proj")),
    ("gate_up_proj", ("gate_up_proj", "gate_proj", "up_proj")),
    ("fused_qkv_a_proj", ("q_a_proj", "kv_a_proj_with_mqa")),
)
_KEYS = frozenset({"k_proj", "v_proj"})
_WHOLE = frozenset({"q_a_proj", "kv_a_proj_with_mqa"})
_BY_INPUTS = frozenset({"o_proj", "down_proj", "out_proj", "fc2"})
_RECURRENT = frozenset({"in_proj_qkv", "in_proj_z", "in_proj_ba", "in_proj_a", "in_proj_b"})
_BY_OUTPUTS = frozenset({"q_b_proj", "kv_b_proj", "fc1"}) | _RECURRENT
_LAYER = re.compile(r"(?!.*vision_tower).*\blayers\.(\d+)\.")
_known: dict[str, Mapping[str, Shape]] = {}


def parameters_of(config: DecoderConfig) -> Mapping[str, Shape]:
    """Return the shapes of the model's parameters by their names, in order."""
    if isinstance(config, TabledDecoder):
        return config.shapes
    key = repr(config)
    if key not in _known:
        with recording(Platform(), ModelOptions()), on_meta():
            model = config.build("causal-lm")
            shapes = {name: p.shape for name, p in model.named_parameters().items()}
        _known.clear()  # a server is asked about one model at a time
        _known[key] = shapes
    return _known[key]


def tensors_of(
    config: DecoderConfig, layers: range, tp: int
) -> Iterator[int | ServedLinear | Rotary]:
    """Yield a rank's tensors in the model's order: their elements, linear layers, rotary tables."""
    rank = _Rank(config, parameters_of(config), tp)
    kinds: set[str] = set()
    for name in rank.shapes:
        if not _stage_has(config, name, layers):
            continue
        yield from rank.made(name)
        if name.endswith("self_attn.o_proj.weight") and (match := _LAYER.match(name)):
            kind = config.layer_kinds[int(match[1])]
            own: LayerType | Literal[""] = kind if _rotates_by_kind(config) else ""
            if own not in kinds:
                kinds.add(own)
                yield _rotary(config, own)


def layer_tensors(config: DecoderConfig, layer: int, tp: int) -> Iterator[int | ServedLinear]:
    """Yield those of one layer."""
    rank = _Rank(config, parameters_of(config), tp)
    for name in rank.shapes:
        if (match := _LAYER.match(name)) and int(match[1]) == layer:
            yield from rank.made(name)


def _rotary(config: DecoderConfig, kind: LayerType | Literal[""]) -> Rotary:
    """Return the table of layers of a kind, "" where all share one; of a window the usual one.

    With linear scaling a table has all stretched positions, with yarn the original ones stretched.
    """
    positions = config.max_position_embeddings
    if kind and isinstance(config, TabledDecoder):
        return Rotary(positions, config.head(kind)[0])
    factor, original = (config.rope.get(k) for k in ("factor", "original_max_position_embeddings"))
    if kind == "sliding_attention":
        return Rotary(positions, config.rotary_width)
    if config.rope_type == "linear" and factor:
        positions = int(positions * factor)
    if config.rope_type == "yarn" and factor and isinstance(original, int):
        positions = int(original * factor)
    if config.rope_type == "longrope" and isinstance(original, int):
        positions += original  # of short and of long factors
    return Rotary(positions, config.rotary_width, config.rope_type == "linear")


def _rotates_by_kind(config: DecoderConfig) -> bool:
    """Whether layers with a window have rotary tables of their own."""
    if isinstance(config, TabledDecoder):
        return config.head("sliding_attention") != config.head("full_attention")
    return isinstance(config, RotaryByKindConfig)


def _stage_has(config: DecoderConfig, name: str, layers: range) -> bool:
    """Whether a pipeline stage with these layers has a parameter."""
    if match := _LAYER.match(name):
        return int(match[1]) in layers
    is_last = layers.stop == config.num_hidden_layers
    if name.endswith("embed_tokens.weight"):
        return layers.start == 0 or (is_last and config.tie_word_embeddings)
    if name.startswith("lm_head.") or name.endswith(".norm.weight"):
        return is_last
    return layers.start == 0


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank of `tp` that share each layer."""

    config: DecoderConfig
    shapes: Mapping[str, Shape]
    tp: int

    def made(self, name: str) -> Iterator[int | ServedLinear]:
        """Yield what a parameter becomes: nothing where it is merged into one before it."""
        module, _, leaf = name.rpartition(".")
        _, _, last = module.rpartition(".")
        shape, tp = self.shapes[name], self.tp
        if last in _VOCABULARY:
            rows = round_up(shape[0], _VOCABULARY_MULTIPLE) // tp
            yield rows * prod(shape[1:])
        elif last == "experts":
            yield from self._experts(name, leaf)
        elif leaf == "sinks" or last == "conv1d":
            yield prod(shape) // tp
        elif last in _BY_INPUTS:
            K = shape[-1]
            row = ServedLinear(module, (module,), K // tp, shape[:1], K)
            yield row if leaf == "weight" else K
        elif last in _BY_OUTPUTS or any(last in those for _, those in _MERGED):
            yield from self._by_outputs(module, leaf)
        else:
            yield prod(shape)

    def _by_outputs(self, module: str, leaf: str) -> Iterator[int | ServedLinear]:
        """Yield a layer whose outputs ranks share, at the first of those that are merged."""
        parent, _, last = module.rpartition(".")
        shape = self.shapes[f"{module}.{leaf}"]
        merged, those = next(((m, t) for m, t in _MERGED if last in t), (last, (last,)))
        parts = tuple(part for part in those if f"{parent}.{part}.{leaf}" in self.shapes)
        if parts[0] != last:
            return
        if last == merged:
            outputs = self._in_one(last, shape[0])
        else:
            outputs = tuple(
                self.shapes[f"{parent}.{part}.{leaf}"][0] // self._ranks(parent, part)
                for part in parts
            )
        own = f"{parent}.{merged if len(parts) > 1 else last}"
        names = tuple(f"{parent}.{part}" for part in parts)
        K = shape[-1]
        yield ServedLinear(own, names, K, outputs, K) if leaf == "weight" else sum(outputs)

    def _in_one(self, last: str, rows: int) -> tuple[int, ...]:
        """Return outputs of projections that are one tensor in the model, too."""
        if last == "qkv_proj":
            keys = self.config.kv_heads * self.config.head_width
            shared = keys // min(self.tp, self.config.kv_heads)
            return (rows - 2 * keys) // self.tp, shared, shared
        return (rows // 2 // self.tp,) * 2 if last == "gate_up_proj" else (rows // self.tp,)

    def _ranks(self, parent: str, part: str) -> int:
        """Return how many ranks share the outputs of a projection."""
        if part in _WHOLE:
            return 1
        if part in _KEYS and "vision_tower" not in parent:
            return min(self.tp, self.config.kv_heads)
        return self.tp

    def _experts(self, name: str, leaf: str) -> Iterator[int | ServedLinear]:
        """Yield what one parameter of all experts of a layer becomes."""
        experts, *rest = self.shapes[name]
        C, has_biases = self.config.hidden_size, f"{name}_bias" in self.shapes
        if leaf == "gate_up_proj":
            inner = prod(rest) // C // 2 // self.tp
            yield ServedLinear(name, (name,), C, (inner, inner), C, experts, has_biases)
        elif leaf == "down_proj":
            whole = prod(rest) // C
            yield ServedLinear(name, (name,), whole // self.tp, (C,), whole, experts, has_biases)
