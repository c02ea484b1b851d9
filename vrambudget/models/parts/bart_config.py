"""What the configurations of BART, mBART and Whisper share.

Source: models/{bart,mbart,whisper}/configuration_*.py of transformers 5.17.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar

from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.models.parts.bart_layers import Sizes
from vrambudget.ops.elementwise import Activation


class EncoderDecoderConfig(ModelConfig):
    """Sizes of an encoder and a decoder of one width, with BART's defaults."""

    hidden_size: Size = 1024
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 16
    encoder_ffn_dim: Size = 4096
    decoder_layers: Size = 12
    decoder_attention_heads: Size = 16
    decoder_ffn_dim: Size = 4096
    activation_function: Activation = "gelu"
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0
    tie_word_embeddings: bool = True

    tasks = ("seq2seq-lm",)
    loads_in_4bit = False
    aliases: ClassVar[Mapping[str, str]] = {
        "d_model": "hidden_size",
        "encoder_layers": "num_hidden_layers",
        "encoder_attention_heads": "num_attention_heads",
    }
    ignored_keys = frozenset(
        {"encoder_layerdrop", "decoder_layerdrop", "init_std", "scale_embedding"}
    )

    @property
    def encoder(self) -> Sizes:
        """What decides the encoder's tensors."""
        layers, heads = self.num_hidden_layers, self.num_attention_heads
        return self._sizes(layers, heads, self.encoder_ffn_dim)

    @property
    def decoder(self) -> Sizes:
        """What decides the decoder's tensors."""
        return self._sizes(self.decoder_layers, self.decoder_attention_heads, self.decoder_ffn_dim)

    def _sizes(self, layers: int, heads: int, inner: int) -> Sizes:
        return Sizes(
            width=self.hidden_size,
            heads=heads,
            inner=inner,
            layers=layers,
            activation=self.activation_function,
            dropout=self.dropout,
            attention_dropout=self.attention_dropout,
            activation_dropout=self.activation_dropout,
        )

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")
        yield from divides(self, "decoder_attention_heads", into="hidden_size")
