"""Decoders of which a table beside the model cards says the tensors, as a server reads them.

The tables are those of GGUF files (`gguf_cards`): names and shapes of all weights of a model type,
each loaded by llama.cpp. Here they have the names that transformers and vLLM give them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Shape
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.decoder import DecoderConfig, LayerType
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.serving.gguf_cards import header_of, table_of
from vrambudget.serving.gguf_model import GgufModel, of_header

TABLED = frozenset(
    (  # noqa: SIM905 - one line each would be a page
        "arcee cohere2 dots1 ernie4_5_moe gemma4_text glm4_moe granitemoe hunyuan_v1_moe minimax_m2"
        " olmoe qwen3_5_moe_text qwen3_5_text qwen3_next"
    ).split()
)
"""Model types whose starts were rehearsed (`tests/records/serving/vllm-rehearsed-starts.jsonl`)."""
_KIND = "BF16"
_STATES = {"float32": 4, "bfloat16": 2}
_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_gate": "linear_attn.in_proj_z",
    "ssm_ba": "linear_attn.in_proj_ba",
    "ssm_alpha": "linear_attn.in_proj_a",
    "ssm_beta": "linear_attn.in_proj_b",
    "ssm_conv1d": "linear_attn.conv1d",
    "ssm_out": "linear_attn.out_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj",
    "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.?(\w*)")


class TabledDecoder(DecoderConfig):
    """A decoder by its table."""

    table: GgufModel
    convolved: int = 0  # elements of a recurrent layer's state that its convolution keeps
    state_itemsize: int | None = None  # of the others, where the configuration names their dtype
    partial_rotary_factor: float = 1.0
    shapes: Mapping[str, Shape]  # of the model's parameters [outputs, inputs], by their names

    @property
    def window(self) -> int:
        """How many tokens a sliding layer looks back."""
        return max(window or 0 for window in self.table.windows)

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return int(self.head_width * self.partial_rotary_factor_of(self.partial_rotary_factor))

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        return [
            "linear_attention" if state else "sliding_attention" if window else "full_attention"
            for state, window in zip(self.table.states, self.table.windows, strict=True)
        ]

    def head(self, kind: LayerType) -> tuple[int, int]:
        """Return the elements of a head's keys and values in layers of a kind."""
        if kind == "sliding_attention":
            return self.table.window_head
        return self.table.head_keys, self.table.head_values

    def token_width(self, layer: int, tp: int) -> int:
        """Return the elements of a token's keys and values in a layer, on one of `tp` ranks.

        0 where the layer reads an earlier one's, or keeps a state.
        """
        head, keys = self.head(self.layer_kinds[layer]), self.table.keys[layer]
        return max(1, keys // head[0] // tp) * sum(head) if keys else 0

    def state_bytes(self, itemsize: int, tp: int) -> int:
        """Return the bytes of a recurrent layer's state on one of `tp` ranks, of one request.

        what its convolution saw last [k - 1, channels]; the delta rule's [H, D, D]
        """
        rest = max(self.table.states) - self.convolved
        return (self.convolved * itemsize + rest * (self.state_itemsize or itemsize)) // tp


class TabledMixture(TabledDecoder, MoeConfig):
    """A decoder with experts."""

    moe_intermediate_size: Size

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        return self.table.experts


def tabled(values: Mapping[str, Any], where: str) -> TabledDecoder:
    """Return the configuration of a model type that has a table. Raises VramBudgetError."""
    model = of_header(header_of(table_of(values, where), where, _KIND), where)
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    if any("ffn_gate_up_exps" in name for name in shapes):
        raise NotModelledError("serving Gemma 4's mixture of experts is not modelled")
    inner = [shape[1] for name, shape in shapes.items() if name.endswith("ffn_up.weight")]
    of_experts = [shape[1] for name, shape in shapes.items() if name.endswith("ffn_up_exps.weight")]
    rope = {key: values[key] for key in ("rope_scaling", "rope_parameters") if values.get(key)}
    channels = [shape for name, shape in shapes.items() if name.endswith("ssm_conv1d.weight")]
    keys = rope | {
        "model_type": values["model_type"],
        "vocab_size": model.vocabulary,
        "hidden_size": model.hidden,
        "intermediate_size": max(inner or of_experts),
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": max(model.keys) // model.head_keys,
        "head_dim": model.head_keys,
        "max_position_embeddings": model.positions,
        "tie_word_embeddings": "output.weight" not in shapes,
        "table": model,
        "shapes": dict(_named(model)),
        "convolved": (channels[0][0] - 1) * channels[0][1] if channels else 0,
        "partial_rotary_factor": values.get("partial_rotary_factor", 1.0),
        "state_itemsize": _STATES.get(str(values.get("mamba_ssm_dtype"))),
    }
    if not of_experts:
        return TabledDecoder.model_construct(**keys)
    experts = {"num_experts_per_tok": model.experts_used, "moe_intermediate_size": of_experts[0]}
    return TabledMixture.model_construct(**keys, **experts)


def _named(model: GgufModel) -> Iterator[tuple[str, Shape]]:
    """Yield parameters as vLLM makes them, in a layer's order; those of all experts are one.

    A layer that reads an earlier one's keys and values has no projections for them; one whose
    values are its keys has both (vllm/model_executor/models/gemma4.py, Gemma4Attention).
    """
    names = {tensor.name for tensor in model.tensors}
    for tensor in model.tensors:
        match = _TENSOR.fullmatch(tensor.name)
        assert match is not None  # noqa: S101 - tables have such names alone
        layer, name, leaf = match.groups()
        prefix = f"model.layers.{layer}." if layer else ""
        shape = tensor.shape[::-1]
        is_shared = bool(layer) and not model.keys[int(layer)] and not model.states[int(layer)]
        if is_shared and name in {"attn_k", "attn_v"}:
            continue
        if name == "attn_k" and tensor.name.replace("attn_k", "attn_v") not in names:
            yield f"{prefix}self_attn.v_proj.{leaf}", shape
        if name == "ffn_gate_exps":
            E, I, C = shape
            yield f"{prefix}mlp.experts.gate_up_proj", (E, 2 * I, C)
        elif name == "ffn_down_exps":
            yield f"{prefix}mlp.experts.down_proj", shape
        elif name == "attn_qkv" and model.states[int(layer)]:
            yield f"{prefix}linear_attn.in_proj_qkv.{leaf}", shape
        elif name != "ffn_up_exps":
            yield f"{prefix}{_NAMES.get(name, name)}.{leaf}", shape
