"""GLM-4 of 2025 as transformers writes it (models/glm4/modeling_glm4.py): GLM-4-0414, GLM-Z1.

GLM with norms after attention and MLP, too.
"""

from typing import Any, Literal

from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.glm import GlmAttention, GlmLike
from vrambudget.models.families.phi3 import MLP
from vrambudget.models.parts.decoder_layers import DecoderLayer, attended
from vrambudget.ops.elementwise import add


class Glm4Layer(DecoderLayer):
    """Glm4DecoderLayer."""

    def __init__(self, config: "Glm4Config") -> None:
        super().__init__(config, GlmAttention(config), MLP(config))
        self.post_self_attn_layernorm = config.norm(config.hidden_size)
        self.post_mlp_layernorm = config.norm(config.hidden_size)

    def forward(self, hidden_states: Tensor, **given: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **attended(given))
        hidden_states = self.post_self_attn_layernorm(hidden_states)
        hidden_states = add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.post_mlp_layernorm(hidden_states)
        return add(residual, hidden_states)


class Glm4Config(GlmLike):
    """transformers' Glm4Config, with its defaults."""

    model_type: Literal["glm4"] = "glm4"

    followed_in = ("5.17",)

    def layer(self) -> DecoderLayer:
        """Glm4DecoderLayer."""
        return Glm4Layer(self)
