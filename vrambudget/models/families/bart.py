"""BART as transformers writes it (models/bart/modeling_bart.py).

An encoder, and a decoder that reads it; norms after each part, learned positions, one embedding for
encoder, decoder and head. With labels nothing is cached. The decoder makes a mask of ones for all
tokens so far, and looks at it.

Not modelled: layers that are skipped at random (`encoder_layerdrop`, `decoder_layerdrop`), which
are counted as never skipped; classifiers.
"""

from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import float32, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.bart_layers import Attention, DecoderLayer, EncoderLayer, Sizes
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.labels import shift_right
from vrambudget.models.parts.layers import Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask, causal_mask_of_ones
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import arange, made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import Activation, add, mul_scalar
from vrambudget.tape.events import Purpose

_OFFSET = 2  # positions that the table has before the first


class ScaledEmbedding(Embedding):
    """BartScaledWordEmbedding: times a number, if only 1."""

    def forward(self, indices: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        return mul_scalar(super().forward(indices))


class PositionEmbedding(Embedding):
    """BartLearnedPositionalEmbedding: the first rows are of no position."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__(positions + _OFFSET, width)

    def forward(self, rows: int, position_ids: Tensor) -> Tensor:  # type: ignore[override]
        """Positions [T] of so many rows -> [rows, T, C]."""
        shifted = made("add", (rows, *position_ids.shape), int64)
        return super().forward(shifted)


class Stack(Module):
    """What BartEncoder and BartDecoder share."""

    def __init__(
        self, config: "BartConfig", sizes: Sizes, layer: type[EncoderLayer | DecoderLayer]
    ) -> None:
        width = config.hidden_size
        self.dropout_p = config.dropout
        self.embed_tokens = ScaledEmbedding(config.vocab_size, width)
        self.embed_positions = PositionEmbedding(config.max_position_embeddings, width)
        self.layers = [layer(sizes) for _ in range(sizes.layers)]
        self.layernorm_embedding = LayerNorm(width)

    def embedded(self, inputs_embeds: Tensor, positions: Tensor) -> Tensor:
        """[B, T, C] and positions [P, T, C] -> [B, T, C]."""
        hidden_states = add(inputs_embeds, positions)
        hidden_states = self.layernorm_embedding(hidden_states)
        return dropout(hidden_states, self.dropout_p, training=self.training)


class Encoder(Stack):
    """BartEncoder."""

    def __init__(self, config: "BartConfig") -> None:
        super().__init__(config, config.encoder, EncoderLayer)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """[B, S] -> [B, S, C]."""
        inputs_embeds = self.embed_tokens(input_ids)
        embed_pos = self.embed_positions(input_ids.shape[0], arange(input_ids.shape[1]))
        hidden_states = self.embedded(inputs_embeds, embed_pos)
        mask = bidirectional_mask(inputs_embeds, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask)
        del embed_pos, inputs_embeds  # held until here
        return hidden_states


class Decoder(Stack):
    """BartDecoder."""

    def __init__(self, config: "BartConfig") -> None:
        super().__init__(config, config.decoder, DecoderLayer)
        for index, layer in enumerate(self.layers):
            for attention in layer.children():
                if isinstance(attention, Attention):
                    attention.layer_idx = index

    def forward(
        self,
        input_ids: Tensor,
        encoder_hidden_states: Tensor,
        encoder_mask: Tensor | None,
        cache: EncoderDecoderCache | None = None,
    ) -> Tensor:
        """[B, T], [B, S, C] -> [B, T, C]."""
        B, T = input_ids.shape
        inputs_embeds = self.embed_tokens(input_ids)
        past = None if cache is None else cache.self_attention
        seen = 0 if past is None else past.seen
        first = arange(T)
        position_ids = made("add", (T,), int64)
        del first
        # of a static cache its length is on the device
        length = made("add", (), int64) if seen and cache is not None and cache.is_static else None
        attention_mask = made("ones", (B, seen + T), float32)
        mask = causal_mask_of_ones(inputs_embeds, attention_mask, past)
        del attention_mask  # the mask's name, from here on
        encoder_mask = bidirectional_mask(inputs_embeds, encoder_mask, encoder_hidden_states)
        positions = self.embed_positions(1, position_ids)
        hidden_states = self.embedded(inputs_embeds, positions)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask, encoder_hidden_states, encoder_mask=encoder_mask, cache=cache
            )
        del positions, position_ids, inputs_embeds, length  # held until here
        return hidden_states


class Model(Module):
    """BartModel."""

    def __init__(self, config: "BartConfig") -> None:
        self.shared = ScaledEmbedding(config.vocab_size, config.hidden_size)
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)
        self.decoder.embed_tokens.weight = self.shared.weight
        self.encoder.embed_tokens.weight = self.shared.weight

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None, decoder_input_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[B, S], [B, T] -> the decoder's states [B, T, C] and the encoder's [B, S, C]."""
        encoded = self.encoder(input_ids, attention_mask)
        return self.decoder(decoder_input_ids, encoded, attention_mask), encoded


class BartForConditionalGeneration(Module):
    """BART with its head."""

    def __init__(self, config: "BartConfig") -> None:
        self.model = Model(config)
        with made_for(Purpose.WEIGHTS):
            self.final_logits_bias = made("zeros", (1, config.vocab_size), context.options.dtype)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.lm_head.weight = self.model.shared.weight

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S] -> [B, S, C]."""
        hidden_states: Tensor = self.model.encoder(input_ids, attention_mask)
        return hidden_states

    def decode(
        self,
        decoder_input_ids: Tensor,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        *,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool = True,
    ) -> Outputs:
        """[B, T] and the encoder's [B, S, C] -> logits [B, T, V]."""
        del use_cache  # `generate` makes the cache
        sequence_output = self.model.decoder(
            decoder_input_ids, hidden_states, attention_mask, cache
        )
        logits = self._logits(sequence_output)
        del sequence_output  # held until here
        return Outputs(None, logits, (hidden_states, cache))

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, S], [B, T] -> loss and logits [B, T, V]."""
        decoder_input_ids = shift_right(labels)
        sequence_output, encoded = self.model(input_ids, attention_mask, decoder_input_ids)
        lm_logits = self._logits(sequence_output)
        loss = class_loss(lm_logits, labels)
        del sequence_output, decoder_input_ids  # held until here
        return Outputs(loss, lm_logits, (encoded,))

    def _logits(self, sequence_output: Tensor) -> Tensor:
        with made_for(Purpose.LOGITS_AND_LOSS):
            lm_logits = self.lm_head(sequence_output)
            return add(lm_logits, self.final_logits_bias)


class BartConfig(ModelConfig):
    """transformers' BartConfig, with its defaults."""

    model_type: Literal["bart"] = "bart"
    pad_token_id: int | None = 1
    vocab_size: Size = 50265
    max_position_embeddings: Size = 1024
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
    special_tokens = 3
    forces_last_token = True
    checked_with = ("5.17",)
    aliases: ClassVar[Mapping[str, str]] = {
        "d_model": "hidden_size",
        "encoder_layers": "num_hidden_layers",
        "encoder_attention_heads": "num_attention_heads",
    }
    ignored_keys = frozenset(
        {
            *("encoder_layerdrop", "decoder_layerdrop", "init_std", "scale_embedding"),
            *("classifier_dropout", "classif_dropout", "add_bias_logits", "add_final_layer_norm"),
            *("normalize_before", "normalize_embedding", "static_position_embeddings"),
            *("extra_pos_embeddings", "force_bos_token_to_be_generated"),
        }
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

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions but the first two."""
        return self.max_position_embeddings

    def new_cache(self) -> EncoderDecoderCache:
        """Return an empty cache of keys and values."""
        return EncoderDecoderCache.of(self.decoder_layers)

    def build(self, task: Task) -> BartForConditionalGeneration:
        """Return the model, its weights allocated."""
        del task  # there is one
        return BartForConditionalGeneration(self)
