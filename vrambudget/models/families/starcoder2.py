"""StarCoder2 as transformers writes it (models/starcoder2/modeling_starcoder2.py): 3B, 7B, 15B.

Grouped heads and rotary positions with GPT-2's LayerNorm, biases everywhere, an MLP without a gate,
and dropout of the embeddings and after both parts; one window for all layers, or none.
"""

from typing import Literal

from vrambudget.config.settings import Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.decoder import Model
from vrambudget.models.parts.decoder_layers import Attention, DecoderLayer
from vrambudget.models.parts.layers import LayerNorm, Linear
from vrambudget.models.parts.windows import SlidingConfig
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation


class Starcoder2MLP(Module):
    """Starcoder2MLP."""

    def __init__(self, config: "Starcoder2Config") -> None:
        width, inner = config.hidden_size, config.intermediate_size
        self.c_fc = Linear(width, inner, bias=config.use_bias)
        self.c_proj = Linear(inner, width, bias=config.use_bias)
        self.act = ACTIVATIONS[config.hidden_act]
        self.residual_dropout = config.residual_dropout

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.c_fc(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.c_proj(hidden_states)
        return dropout(hidden_states, self.residual_dropout, training=self.training)


class Starcoder2Model(Model):
    """Starcoder2Model: it drops embeddings out, and holds them beside what is left."""

    config: "Starcoder2Config"
    inputs_embeds: Tensor | None = None

    def entered(self, inputs_embeds: Tensor) -> Tensor:
        """Drop embeddings out [B, T, C]."""
        self.inputs_embeds = inputs_embeds
        return dropout(inputs_embeds, self.config.embedding_dropout, training=self.training)

    def forward(self, *args: object, **kwargs: object) -> Tensor:
        """[B, T] -> [B, T, C]."""
        y = super().forward(*args, **kwargs)  # type: ignore[arg-type]
        self.inputs_embeds = None
        return y


class Starcoder2Config(SlidingConfig):
    """transformers' Starcoder2Config, with its defaults."""

    model_type: Literal["starcoder2"] = "starcoder2"
    vocab_size: Size = 49152
    hidden_size: Size = 3072
    intermediate_size: Size = 12288
    num_hidden_layers: Size = 30
    num_attention_heads: Size = 24
    num_key_value_heads: Size | None = 2
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 4096
    tie_word_embeddings: bool = True
    residual_dropout: Probability = 0.0
    embedding_dropout: Probability = 0.0
    use_bias: bool = True

    followed_in = ("5.17", "5.23", "5.24")
    norm = LayerNorm
    ignored_keys = SlidingConfig.ignored_keys | {"norm_epsilon", "norm_type", "mlp_type"}

    def layer(self) -> DecoderLayer:
        """Starcoder2DecoderLayer."""
        bias = self.use_bias
        attention = Attention(self, qkv_bias=bias, out_bias=bias)
        attention.residual_dropout = self.residual_dropout
        return DecoderLayer(self, attention, Starcoder2MLP(self))

    def decoder(self) -> Starcoder2Model:
        """Starcoder2Model."""
        return Starcoder2Model(self)
