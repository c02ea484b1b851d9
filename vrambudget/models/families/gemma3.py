"""Gemma 3, text, as transformers writes it (models/gemma3/modeling_gemma3.py): 270M, 1B.

Gemma 2 with an RMSNorm over each head of q and k, five layers with a window for one without, and
rotary frequencies of their own for both kinds.

Not modelled: `use_bidirectional_attention`; the larger ones' images (model_type gemma3).
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from vrambudget.config.settings import Size
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.gemma2 import Cap, CappedCausalLM, Gemma2Layer, ZeroCenteredRMSNorm
from vrambudget.models.parts.decoder import CausalLM
from vrambudget.models.parts.decoder_layers import MLP, Attention, ScaledEmbedding
from vrambudget.models.parts.windows import RotaryByKindConfig
from vrambudget.ops.elementwise import Activation


class Gemma3Attention(Attention):
    """Gemma3Attention: q and k are normed by head once all three are viewed."""

    def __init__(self, config: "Gemma3TextConfig") -> None:
        bias = config.attention_bias
        super().__init__(config, qkv_bias=bias, out_bias=bias)
        self.q_norm = ZeroCenteredRMSNorm(self.head_dim)
        self.k_norm = ZeroCenteredRMSNorm(self.head_dim)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, T, C] -> [B, H, T, D], [B, Hkv, T, D] twice."""
        query, key, value = super().project(hidden_states)
        query = self.q_norm(query)
        return query, self.k_norm(key), value


class Gemma3TextConfig(RotaryByKindConfig):
    """transformers' Gemma3TextConfig, with its defaults."""

    model_type: Literal["gemma3_text"] = "gemma3_text"
    pad_token_id: int | None = 0
    vocab_size: Size = 262_208
    hidden_size: Size = 2304
    intermediate_size: Size = 9216
    num_hidden_layers: Size = 26
    num_attention_heads: Size = 8
    num_key_value_heads: Size | None = 4
    head_dim: Size | None = 256
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 131_072
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    sliding_window: Size | None = 4096
    sliding_window_pattern: Size = 6
    final_logit_softcapping: Cap | None = None
    use_bidirectional_attention: Literal[False] | None = None

    full_every = 6
    makes_both_masks = True
    followed_in: ClassVar[tuple[str, ...]] = ("5.17", "5.23", "5.24")
    norm = ZeroCenteredRMSNorm
    embedding = ScaledEmbedding
    heads_share_width = True  # validate_architecture of configuration_gemma3.py
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_activation": "hidden_act",
        "_sliding_window_pattern": "sliding_window_pattern",
    }
    ignored_keys = RotaryByKindConfig.ignored_keys | {
        *("query_pre_attn_scalar", "cache_implementation", "rope_local_base_freq"),
        "attn_logit_softcapping",  # read, and handed to no kernel
    }

    def layer(self) -> Gemma2Layer:
        """Gemma3DecoderLayer."""
        return Gemma2Layer(self, Gemma3Attention(self), MLP(self))

    def causal_lm(self) -> CausalLM:
        """Gemma3ForCausalLM."""
        return CausalLM(self) if self.final_logit_softcapping is None else CappedCausalLM(self)
