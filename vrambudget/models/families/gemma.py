"""Gemma as transformers writes it (models/gemma/modeling_gemma.py).

Llama with embeddings times a scalar that lies on the device, an RMSNorm whose product with
(1 + weight) is in float32 too, and heads of a width of their own.

Not modelled: `use_bidirectional_attention`.
"""

from typing import Literal

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.decoder_layers import MLP, Attention, DecoderLayer, Norm
from vrambudget.models.parts.layers import Embedding
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import Activation, add_scalar, mul, pow_scalar, rsqrt
from vrambudget.ops.reduce import mean_last
from vrambudget.tape.events import Purpose


class ScaledEmbedding(Embedding):
    """GemmaTextScaledWordEmbedding: the scale is a buffer of the weights' type.

    Before 5.4 the model itself scales, by a number, when masks and positions are made.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        self.model_scales = not transformers_since(5, 4)
        if self.model_scales:
            return
        with made_for(Purpose.WEIGHTS):
            self.embed_scale = made("tensor", (), context.options.dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., C]."""
        inputs_embeds = super().forward(indices)
        if self.model_scales:
            return inputs_embeds
        return mul(inputs_embeds, to(self.embed_scale, self.weight.dtype))


class ZeroCenteredRMSNorm(Norm):
    """GemmaRMSNorm: the weight is around 0; all in float32."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        output = self._norm(to(x, float32))
        output = mul(output, add_scalar(to(self.weight, float32)))
        return to(output, x.dtype)

    def _norm(self, x: Tensor) -> Tensor:
        return mul(x, rsqrt(add_scalar(mean_last(pow_scalar(x)))))


class GemmaConfig(DecoderConfig):
    """transformers' GemmaConfig, with its defaults."""

    model_type: Literal["gemma"] = "gemma"
    pad_token_id: int | None = 0
    vocab_size: Size = 256000
    hidden_size: Size = 3072
    intermediate_size: Size = 24576
    num_hidden_layers: Size = 28
    num_attention_heads: Size = 16
    num_key_value_heads: Size | None = 16
    head_dim: Size | None = 256
    hidden_act: Activation = "gelu_pytorch_tanh"
    max_position_embeddings: Size = 8192
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    use_bidirectional_attention: Literal[False] | None = None

    followed_in = ("4.57", "5.17", "5.23", "5.24")
    norm = ZeroCenteredRMSNorm
    embedding = ScaledEmbedding
    ignored_keys = DecoderConfig.ignored_keys | {"hidden_activation"}

    def layer(self) -> DecoderLayer:
        """GemmaDecoderLayer."""
        bias = self.attention_bias
        attention = Attention(self, qkv_bias=bias, out_bias=bias)
        return DecoderLayer(self, attention, MLP(self))
