"""What transformers' decoder-only families have in common, most of them copies of Llama's code.

    RMSNorm        weight [C]; all but the last product in float32
    Attention      projections for q, k, v with fewer key-value heads, rotary positions
    MLP            down(act(gate(x)) * up(x))
    DecoderLayer   x + attention(norm(x)), then x + mlp(norm(x))
    Model          embedding, masks, rotary tables, layers, norm
    CausalLM       the head and its loss

A family says which parts it is made of (`DecoderConfig.layer`, `norm`, `embedding`,
`rotary_embedding`) and overrides what its own code does otherwise (`Attention.project`, `rotate`,
`attend`; `CausalLM.logits`).

Source: models/llama/modeling_llama.py and its namesakes in transformers 5.17.
Not modelled: tensor parallelism.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.cache import Cache, CachesKeysAndValues, dynamic_cache
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.layers import CheckpointedLayer, Embedding, Linear
from vrambudget.models.parts.losses import causal_lm_loss, last_tokens
from vrambudget.models.parts.masks import causal_mask, positions, sliding_window_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding, rotate
from vrambudget.models.parts.rotary_config import RotaryConfig
from vrambudget.ops.elementwise import (
    ACTIVATIONS,
    Activation,
    add,
    add_scalar,
    mul,
    mul_scalar,
    pow_scalar,
    rsqrt,
)
from vrambudget.ops.reduce import mean_last
from vrambudget.ops.shape import contiguous, reshape, transpose, view
from vrambudget.tape.events import Purpose

LayerType = Literal["full_attention", "sliding_attention"]


class Norm(Module):
    """A norm of the last dimension: weight [C]."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)


class RMSNorm(Norm):
    """LlamaRMSNorm: all but the last product in float32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        input_dtype = hidden_states.dtype
        hidden_states = to(hidden_states, float32)
        variance = mean_last(pow_scalar(hidden_states))
        hidden_states = mul(hidden_states, rsqrt(add_scalar(variance)))
        return mul(self.weight, to(hidden_states, input_dtype))


class Attention(Module):
    """LlamaAttention."""

    layer_idx = 0

    def __init__(self, config: "DecoderConfig", *, qkv_bias: bool, out_bias: bool) -> None:
        self.head_dim = config.head_width
        self.attention_dropout = config.attention_dropout
        width, heads = config.hidden_size, config.num_attention_heads
        self.q_proj = Linear(width, heads * self.head_dim, bias=qkv_bias)
        self.k_proj = Linear(width, config.kv_heads * self.head_dim, bias=qkv_bias)
        self.v_proj = Linear(width, config.kv_heads * self.head_dim, bias=qkv_bias)
        self.o_proj = Linear(heads * self.head_dim, width, bias=out_bias)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary,
        mask: Tensor | None,
        past_key_values: Cache | None = None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query, key, value = self.project(hidden_states)
        query, key = self.rotate(query, key, rotary)
        if past_key_values is not None:
            key, value = past_key_values.update(key, value, self.layer_idx)
        output, weights = self.attend(query, key, value, mask)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.o_proj(output)
        return output, weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice; each is viewed once it is there.

        Backward undoes views in their order, and a transposed gradient's takes a copy: a family
        that projects all three first overrides this.
        """
        query = self.heads(self.q_proj(hidden_states))
        key = self.heads(self.k_proj(hidden_states))
        return query, key, self.heads(self.v_proj(hidden_states))

    def rotate(self, query: Tensor, key: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Rotate [B, H, T, D] and [B, Hkv, T, D]."""
        return rotate(query, key, *rotary)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, H * D] -> [B, H, T, D]."""
        return transpose(view(x, *x.shape[:2], -1, self.head_dim), 1, 2)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
        """[B, H, T, D], [B, Hkv, T, D] twice -> [B, T, H, D] and the weights."""
        dropout_p = self.attention_dropout if self.training else 0.0
        return attend(query, key, value, mask, dropout_p=dropout_p)


class MLP(Module):
    """LlamaMLP: down(act(gate(x)) * up(x))."""

    def __init__(self, config: "DecoderConfig", *, bias: bool = False) -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=bias)
        self.up_proj = Linear(width, inner, bias=bias)
        self.down_proj = Linear(inner, width, bias=bias)
        self.act_fn = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        y: Tensor = self.down_proj(mul(self.act_fn(self.gate_proj(x)), self.up_proj(x)))
        return y


class DecoderLayer(CheckpointedLayer):
    """LlamaDecoderLayer, of the parts that it is given."""

    def __init__(self, config: "DecoderConfig", self_attn: Module, mlp: Module) -> None:
        self.self_attn = self_attn
        self.mlp = mlp
        self.input_layernorm = config.norm(config.hidden_size)
        self.post_attention_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        return add(residual, hidden_states)


def attended(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what attention reads of what a layer is given: not the positions.

    Those a checkpoint keeps.
    """
    return {name: given[name] for name in ("rotary", "mask", "past_key_values")}


class Model(Module):
    """LlamaModel; Qwen2Model where layers of two kinds alternate."""

    def __init__(self, config: "DecoderConfig") -> None:
        self.config = config
        self.embed_tokens = config.embedding(config.vocab_size, config.hidden_size)
        self.scales_embeddings = self.embed_tokens.model_scales
        self.layers = config.make_layers()
        for index, kind in enumerate(config.layer_kinds):
            self.layers[index].attention_type = kind
            for attention in self.layers[index].children():
                if isinstance(attention, Attention):
                    attention.layer_idx = index
        self.norm = config.norm(config.hidden_size)
        self.rotary_emb = config.rotary_embedding(config.rotary_width, config.rope_type)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.embed_tokens(input_ids)
        if position_ids is None:
            position_ids = positions(input_ids.shape[1])
        mask_of = partial(self._mask, inputs_embeds, position_ids, attention_mask, past_key_values)
        masks: dict[str, Tensor | None] = {kind: mask_of(kind) for kind in self.config.mask_kinds}
        hidden_states = inputs_embeds
        rotary = self.rotary_emb(position_ids, inputs_embeds.dtype)
        if self.scales_embeddings:
            hidden_states = mul_scalar(hidden_states)
        for layer in self.layers:
            mask = masks[layer.attention_type]
            hidden_states = layer(
                hidden_states,
                rotary=rotary,
                mask=mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
            )
        y: Tensor = self.norm(hidden_states)
        return y

    def _mask(
        self,
        embeddings: Tensor,
        position_ids: Tensor,
        padding: Tensor | None,
        past: Cache | None,
        kind: LayerType,
    ) -> Tensor | None:
        if kind == "full_attention":
            return causal_mask(embeddings, position_ids, padding, past)
        return sliding_window_mask(embeddings, position_ids, self.config.window, padding, past)


class CausalLM(CachesKeysAndValues):
    """LlamaForCausalLM: the model with a language modelling head."""

    config: "DecoderConfig"

    def __init__(self, config: "DecoderConfig") -> None:
        self.config = config
        self.model = Model(config)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        *,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V], or those of the last `logits_to_keep`."""
        past_key_values = self.past(past_key_values, use_cache)
        hidden_states = self.model(input_ids, attention_mask, position_ids, past_key_values)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.logits(last_tokens(hidden_states, logits_to_keep))
        loss = causal_lm_loss(logits, labels, self.config.vocab_size)
        return Outputs(loss, logits, past_key_values=past_key_values)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        y: Tensor = self.lm_head(hidden_states)
        return y


class DecoderConfig(RotaryConfig):
    """The keys that these families share; each gives them its own defaults."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = False

    tasks = ("causal-lm", "seq-cls")

    norm: ClassVar[type[Norm]] = RMSNorm
    embedding: ClassVar[type[Embedding]] = Embedding
    rotary_embedding: ClassVar[type[RotaryEmbedding]] = RotaryEmbedding

    @property
    def kv_heads(self) -> int:
        """Heads of key and value."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return self.head_width

    @property
    def window(self) -> int:
        """How many tokens a sliding layer looks back."""
        raise NotImplementedError

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        return ["full_attention"] * self.num_hidden_layers

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The masks that a forward pass makes, in order."""
        return ["full_attention"]

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        kinds = self.layer_kinds
        return dynamic_cache([self.window if k == "sliding_attention" else None for k in kinds])

    heads_share_width: ClassVar[bool] = False
    """Whether heads divide the hidden size even if they have a width of their own."""

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.head_dim is None or self.heads_share_width:
            yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.num_attention_heads % self.kv_heads:
            yield from divides(self, "num_key_value_heads", into="num_attention_heads")

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        return [self.layer() for _ in range(self.num_hidden_layers)]

    def layer(self) -> CheckpointedLayer:
        """Return one layer, its weights allocated; families say of which parts."""
        raise NotImplementedError

    def build(self, task: Task) -> CausalLM | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            return SequenceClassifier(self, Model(self), self.hidden_size)
        return self.causal_lm()

    def causal_lm(self) -> CausalLM:
        """Return the model with a language modelling head, its weights allocated."""
        return CausalLM(self)
