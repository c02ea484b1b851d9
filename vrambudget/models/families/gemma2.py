"""Gemma 2 as transformers writes it (models/gemma2/modeling_gemma2.py).

Gemma with norms after each part too, layers that alternate between a window and all, and tanh
(soft-capping) over the logits and, with eager attention, over the scores.

Not modelled: `use_bidirectional_attention`.
"""

from functools import partial
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended, attend, eager_attention, soft_capped
from vrambudget.models.parts.decoder import CausalLM
from vrambudget.models.parts.decoder_layers import (
    MLP,
    Attention,
    DecoderLayer,
    Norm,
    ScaledEmbedding,
    attended,
)
from vrambudget.models.parts.windows import MostLayersSlide
from vrambudget.ops.elementwise import Activation, add, add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last

Cap = Annotated[float, Field(gt=0)]


class ZeroCenteredRMSNorm(Norm):
    """GemmaRMSNorm: the weight is around 0; all in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        output = self._norm(to(x, float32))
        output = mul(output, add_scalar(to(self.weight, float32)))
        return to(output, x.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))


class CappedAttention(Attention):
    """Gemma2Attention with `attn_logit_softcapping`."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Attended:
        """[B, H, T, D], [B, Hkv, T, D] twice -> [B, T, H, D] and the weights."""
        dropout_p = self.attention_dropout if self.training else 0.0
        return attend(
            query,
            key,
            value,
            mask,
            dropout_p=dropout_p,
            eager=partial(eager_attention, soft_caps=True),
        )


class Gemma2Layer(DecoderLayer):
    """Gemma2DecoderLayer."""

    def __init__(self, config: MostLayersSlide, self_attn: Attention, mlp: MLP) -> None:
        super().__init__(config, self_attn, mlp)
        self.pre_feedforward_layernorm = config.norm(config.hidden_size)
        self.post_feedforward_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        return add(residual, hidden_states)


class CappedCausalLM(CausalLM):
    """Gemma2ForCausalLM with `final_logit_softcapping`."""

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        return soft_capped(super().logits(hidden_states))


class Gemma2Config(MostLayersSlide):
    """transformers' Gemma2Config, with its defaults."""

    model_type: Literal["gemma2"] = "gemma2"
    pad_token_id: int | None = 0
    vocab_size: Size = 256000
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    head_dim: Size | None = 256
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    sliding_window: Size | None = 4096
    attn_logit_softcapping: Cap | None = 50.0
    final_logit_softcapping: Cap | None = 30.0
    use_bidirectional_attention: Literal[False] | None = None

    followed_in = ("4.57", "5.17")
    full_every = 2
    makes_both_masks = True
    norm = ZeroCenteredRMSNorm
    embedding = ScaledEmbedding
    heads_share_width = True  # validate_architecture of configuration_gemma2.py
    aliases = {"hidden_activation": "hidden_act"}  # noqa: RUF012 - ClassVar in the base class
    ignored_keys = MostLayersSlide.ignored_keys | {"query_pre_attn_scalar", "cache_implementation"}

    def layer(self) -> Gemma2Layer:
        """Gemma2DecoderLayer."""
        kind = Attention if self.attn_logit_softcapping is None else CappedAttention
        bias = self.attention_bias
        attention = kind(self, qkv_bias=bias, out_bias=bias)
        return Gemma2Layer(self, attention, MLP(self))

    def causal_lm(self) -> CausalLM:
        """Gemma2ForCausalLM."""
        return CausalLM(self) if self.final_logit_softcapping is None else CappedCausalLM(self)
