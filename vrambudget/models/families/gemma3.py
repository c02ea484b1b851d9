"""Gemma 3, text, as transformers writes it (models/gemma3/modeling_gemma3.py): 270M, 1B.

Gemma 2 with an RMSNorm over each head of q and k, five layers with a window for one without, and
rotary frequencies of their own for both kinds.

Not modelled: `use_bidirectional_attention`; the larger ones' images (model_type gemma3).
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import DType
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.gemma2 import Cap, CappedCausalLM, Gemma2Layer, ZeroCenteredRMSNorm
from vrambudget.models.parts.decoder import CausalLM, LayerType
from vrambudget.models.parts.decoder_layers import MLP, Attention, ScaledEmbedding
from vrambudget.models.parts.rotary import Rotary, RotaryEmbedding
from vrambudget.models.parts.windows import BothMasksConfig
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


class RotaryByKind(Module):
    """Gemma3RotaryEmbedding: frequencies for each kind of layer that there is."""

    def __init__(
        self,
        dim: int,
        rope_types: dict[LayerType, str],
        made_of: type[RotaryEmbedding] = RotaryEmbedding,
    ) -> None:
        self.kinds = {
            kind: made_of(dim, rope_types[kind], last=False) for kind in sorted(rope_types)
        }
        again = None
        for kind, each in self.kinds.items():
            again = each.computed()  # initialised: one's copy is held until the next is there
            setattr(self, f"{kind}_inv_freq", each.inv_freq)  # buffers of this module
            setattr(self, f"{kind}_original_inv_freq", each.original_inv_freq)
        del again

    def forward(self, position_ids: Tensor, dtype: DType) -> dict[LayerType, Rotary]:
        """Return cos and sin [P, T, D] by kind for positions [P, T]."""
        return {kind: each(position_ids, dtype) for kind, each in self.kinds.items()}


class RotaryByKindConfig(BothMasksConfig):
    """Layers with a window and without one, each kind with rotary positions of its own."""

    title: ClassVar[str]

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of the layers without a window: those with one have the default."""
        by_kind = (self.rope_parameters or {}).get("full_attention")
        return self.rope_scaling or by_kind or {}

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.sliding_window is None:
            yield f"sliding_window is null, which {self.title} does not know"

    def rotary(self) -> RotaryByKind:
        """One of each kind."""
        types: dict[LayerType, str] = {
            kind: self.rope_type if kind == "full_attention" else "default"
            for kind in self.layer_kinds
        }
        return RotaryByKind(self.rotary_width, types, self.rotary_embedding)


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

    title = "Gemma 3"
    followed_in: ClassVar[tuple[str, ...]] = ("5.17", "5.23", "5.24")
    norm = ZeroCenteredRMSNorm
    embedding = ScaledEmbedding
    heads_share_width = True  # validate_architecture of configuration_gemma3.py
    aliases: ClassVar[Mapping[str, str]] = {
        "hidden_activation": "hidden_act",
        "_sliding_window_pattern": "sliding_window_pattern",
    }
    ignored_keys = BothMasksConfig.ignored_keys | {
        *("query_pre_attn_scalar", "cache_implementation", "rope_local_base_freq"),
        "attn_logit_softcapping",  # read, and handed to no kernel
    }

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in all layers but every sixth."""
        layers = range(self.num_hidden_layers)
        return [
            "sliding_attention" if (i + 1) % self.sliding_window_pattern else "full_attention"
            for i in layers
        ]

    def layer(self) -> Gemma2Layer:
        """Gemma3DecoderLayer."""
        return Gemma2Layer(self, Gemma3Attention(self), MLP(self))

    def causal_lm(self) -> CausalLM:
        """Gemma3ForCausalLM."""
        return CausalLM(self) if self.final_logit_softcapping is None else CappedCausalLM(self)
