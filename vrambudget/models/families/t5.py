"""T5 as transformers writes it (models/t5/modeling_t5.py): an encoder, and a decoder that reads it.

RMSNorm without a bias, scores biased by distance instead of positions, two projections or three
(gated) in the feed-forward layer, one embedding for encoder, decoder and head. Version 1.1 and Flan
(`tie_word_embeddings` false) do not scale the decoder's output, and their checkpoints have a head
that differs from the embedding (`head_of_its_own`): transformers 5 unties it when it loads them.

Not modelled: weights that are kept in float32 when a checkpoint is loaded in 16 bit.
"""

from collections.abc import Iterator
from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import bool_, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.layers import Dropout, Embedding, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask, causal_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.t5_attention import Attention, AttentionSizes
from vrambudget.models.parts.t5_block import Block
from vrambudget.models.parts.t5_layers import FeedForwardSizes, Norm
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import ACTIVATIONS, mul_scalar
from vrambudget.tape.events import Purpose


class Stack(Module):
    """T5Stack."""

    def __init__(self, config: "T5Config", *, is_decoder: bool, layers: int) -> None:
        self.is_decoder = is_decoder
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.block = [
            Block(config.attention, config.feed_forward, is_decoder=is_decoder, is_first=i == 0)
            for i in range(layers)
        ]
        for index, block in enumerate(self.block):
            for attention in (m for part in block.layer for m in part.children()):
                if isinstance(attention, Attention):
                    attention.layer_idx = index
        self.final_layer_norm = Norm(config.hidden_size)
        self.dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        *,
        use_cache: bool = True,
    ) -> tuple[Tensor, EncoderDecoderCache | None]:
        """[B, T] -> [B, T, C] and what was cached."""
        inputs_embeds = self.embed_tokens(input_ids)  # held until this returns
        caches = not (context.options.checkpointing and self.training)
        past = None if cache is None else cache.self_attention
        if self.is_decoder and caches and use_cache and cache is None:
            cache = EncoderDecoderCache.of(len(self.block))
        if self.is_decoder:
            mask = causal_mask(inputs_embeds, None, attention_mask, past)
        else:
            mask = bidirectional_mask(inputs_embeds, attention_mask)
        encoder_mask = bidirectional_mask(
            inputs_embeds, encoder_attention_mask, encoder_hidden_states
        )
        position_bias = encoder_decoder_position_bias = None
        hidden_states = self.dropout(inputs_embeds)
        for layer in self.block:
            hidden_states, position_bias, encoder_decoder_position_bias = layer(
                hidden_states,
                mask,
                position_bias,
                encoder_hidden_states,
                encoder_decoder_position_bias,
                encoder_mask=encoder_mask,
                cache=cache,
            )
        hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return hidden_states, cache


def _shift_right(labels: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the start token, then all labels but the last."""
    B, T = labels.shape
    shifted = made("new_zeros", (B, T), int64)
    rest = made("clone", (B, T - 1), int64)
    del rest
    ignored = made("eq", (B, T), bool_)
    del ignored
    return shifted


class T5ForConditionalGeneration(Module):
    """T5 with its head."""

    def __init__(self, config: "T5Config") -> None:
        self.config = config
        self.shared = Embedding(config.vocab_size, config.hidden_size)
        layers, decoder_layers = config.num_hidden_layers, config.decoder_layers
        self.encoder = Stack(config, is_decoder=False, layers=layers)
        self.decoder = Stack(config, is_decoder=True, layers=decoder_layers)
        self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False)
        # tie_weights: the others' own weights are freed
        if not config.head_of_its_own:
            self.lm_head.weight = self.shared.weight
        self.encoder.embed_tokens.weight = self.shared.weight
        self.decoder.embed_tokens.weight = self.shared.weight

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S] -> [B, S, C]."""
        hidden_states: Tensor = self.encoder(input_ids, attention_mask)[0]
        return hidden_states

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, S], [B, T] -> loss and logits [B, T, V]."""
        hidden_states, _ = self.encoder(input_ids, attention_mask)
        decoder_input_ids = _shift_right(labels)
        return self.decode(decoder_input_ids, hidden_states, attention_mask, labels)

    def decode(
        self,
        decoder_input_ids: Tensor,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        labels: Tensor | None = None,
        *,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool = True,
    ) -> Outputs:
        """[B, T] and the encoder's [B, S, C] -> loss and logits [B, T, V]."""
        decoder_outputs = self.decoder(
            decoder_input_ids, None, hidden_states, attention_mask, cache, use_cache=use_cache
        )
        sequence_output, cache = decoder_outputs
        if self.config.scales_output:
            sequence_output = mul_scalar(sequence_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.lm_head(sequence_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits, (hidden_states, cache))


class T5Config(ModelConfig):
    """transformers' T5Config, with its defaults."""

    model_type: Literal["t5"] = "t5"
    vocab_size: Size = 32128
    hidden_size: Size = 512
    head_dim: Size = 64
    intermediate_size: Size = 2048
    num_hidden_layers: Size = 6
    num_decoder_layers: Size | None = None
    num_attention_heads: Size = 8
    relative_attention_num_buckets: Size = 32
    max_position_embeddings: Size = 512
    dropout_rate: Probability = 0.1
    feed_forward_proj: str = "relu"
    tie_word_embeddings: bool = True
    head_of_its_own: bool = False

    tasks = ("seq2seq-lm",)
    loads_in_4bit = False
    checked_with = ("5.17",)
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "d_model": "hidden_size",
        "d_kv": "head_dim",
        "d_ff": "intermediate_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "n_positions": "max_position_embeddings",
    }
    ignored_keys = frozenset(
        {
            *("relative_attention_max_distance", "classifier_dropout"),
            # a live configuration's, which follow from others
            *("dense_act_fn", "is_gated_act", "scale_decoder_outputs"),
        }
    )

    @property
    def decoder_layers(self) -> int:
        """Layers of the decoder: as many as the encoder's where none are named."""
        return self.num_decoder_layers or self.num_hidden_layers

    @property
    def scales_output(self) -> bool:
        """Whether the decoder's output is multiplied before the head."""
        return self.tie_word_embeddings

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward layer multiplies two projections."""
        return self.feed_forward_proj.startswith("gated-")

    @property
    def activation(self) -> str:
        """The activation function; "gated-gelu" means the one by tanh."""
        if self.feed_forward_proj == "gated-gelu":
            return "gelu_new"
        return self.feed_forward_proj.removeprefix("gated-")

    @property
    def feed_forward(self) -> FeedForwardSizes:
        """What decides a feed-forward layer's tensors."""
        return FeedForwardSizes(
            self.hidden_size,
            self.intermediate_size,
            self.activation,
            self.is_gated,
            self.dropout_rate,
        )

    @property
    def attention(self) -> AttentionSizes:
        """What decides an attention's tensors."""
        return AttentionSizes(
            self.hidden_size,
            self.num_attention_heads,
            self.head_dim,
            self.relative_attention_num_buckets,
            self.dropout_rate,
        )

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        if self.activation not in ACTIVATIONS:
            known = ", ".join(f"{name}, gated-{name}" for name in sorted(ACTIVATIONS))
            yield f"feed_forward_proj is {self.feed_forward_proj!r}; it should be one of {known}"

    def new_cache(self) -> EncoderDecoderCache:
        """Return an empty cache of keys and values."""
        return EncoderDecoderCache.of(self.decoder_layers)

    def build(self, task: Task) -> T5ForConditionalGeneration:
        """Return the model, its weights allocated."""
        del task  # there is one
        return T5ForConditionalGeneration(self)


class MT5Config(T5Config):
    """transformers' MT5Config: a T5 that is always tied, and whose output is never scaled."""

    checked_with = ("5.17",)

    model_type: Literal["mt5"] = "mt5"  # type: ignore[assignment]
    vocab_size: Size = 250112
    intermediate_size: Size = 1024
    num_hidden_layers: Size = 8
    num_attention_heads: Size = 6
    feed_forward_proj: str = "gated-gelu"

    scales_output = False
