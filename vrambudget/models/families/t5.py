"""T5 as transformers writes it (models/t5/modeling_t5.py): an encoder, and a decoder that reads it.

RMSNorm without a bias, scores biased by distance instead of positions, two projections or three
(gated) in the feed-forward layer, one embedding for encoder, decoder and head. Version 1.1 and Flan
(`tie_word_embeddings` false) do not scale the decoder's output.

Not modelled: a head that is not tied (transformers 5 unties it where a checkpoint's own differs),
weights that are kept in float32 when a checkpoint is loaded in 16 bit.
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
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask, causal_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.t5_attention import Attention, AttentionSizes, Cache
from vrambudget.models.parts.t5_layers import FeedForwardSizes, LayerFF, Norm, clamp_bound, clamped
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import ACTIVATIONS, add, mul_scalar
from vrambudget.tape.events import Purpose

Attended = tuple[Tensor, Tensor, Tensor | None]
"""Hidden states, the position bias, and eager attention's weights."""


class LayerSelfAttention(Module):
    """T5LayerSelfAttention."""

    def __init__(self, config: "T5Config", *, is_decoder: bool, has_bias: bool) -> None:
        self.SelfAttention = Attention(
            config.attention, is_decoder=is_decoder, is_causal=is_decoder, has_bias=has_bias
        )
        self.layer_norm = Norm(config.hidden_size)
        self.dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        cache: Cache | None,
    ) -> Attended:
        """[B, T, C] -> [B, T, C]."""
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias, weights = self.SelfAttention(
            normed_hidden_states, mask=mask, position_bias=position_bias, cache=cache
        )
        attention_output = add(hidden_states, self.dropout(attention_output))
        del normed_hidden_states  # held until here
        return attention_output, position_bias, weights


class LayerCrossAttention(Module):
    """T5LayerCrossAttention."""

    def __init__(self, config: "T5Config") -> None:
        self.EncDecAttention = Attention(config.attention, is_decoder=True, is_causal=False)
        self.layer_norm = Norm(config.hidden_size)
        self.dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        hidden_states: Tensor,
        key_value_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        cache: Cache | None,
    ) -> Attended:
        """[B, T, C], [B, S, C] -> [B, T, C]."""
        normed_hidden_states = self.layer_norm(hidden_states)
        attention_output, position_bias, weights = self.EncDecAttention(
            normed_hidden_states,
            mask=mask,
            key_value_states=key_value_states,
            position_bias=position_bias,
            cache=cache,
        )
        layer_output = add(hidden_states, self.dropout(attention_output))
        del normed_hidden_states, attention_output  # held until here
        return layer_output, position_bias, weights


class Block(CheckpointedLayer):
    """T5Block."""

    def __init__(self, config: "T5Config", *, is_decoder: bool, is_first: bool) -> None:
        attention = LayerSelfAttention(config, is_decoder=is_decoder, has_bias=is_first)
        cross = [LayerCrossAttention(config)] if is_decoder else []
        self.layer = [attention, *cross, LayerFF(config.feed_forward)]

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_bias: Tensor | None,
        encoder_hidden_states: Tensor | None,
        encoder_decoder_position_bias: Tensor | None,
        *,
        encoder_mask: Tensor | None,
        cache: Cache | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """[B, T, C] -> [B, T, C] and both position biases."""
        hidden_states, self_bias, _ = self.layer[0](hidden_states, mask, position_bias, cache)
        bound = clamp_bound(hidden_states)  # held until the next or the end
        hidden_states = clamped(hidden_states, bound)
        cross_bias = None
        if encoder_hidden_states is not None:
            hidden_states, cross_bias, _ = self.layer[1](
                hidden_states,
                encoder_hidden_states,
                encoder_mask,
                encoder_decoder_position_bias,
                cache,
            )
            bound = clamp_bound(hidden_states)
            hidden_states = clamped(hidden_states, bound)
        hidden_states = self.layer[-1](hidden_states)
        bound = clamp_bound(hidden_states)
        hidden_states = clamped(hidden_states, bound)
        return hidden_states, self_bias, cross_bias


class Stack(Module):
    """T5Stack."""

    def __init__(self, config: "T5Config", *, is_decoder: bool, layers: int) -> None:
        self.is_decoder = is_decoder
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.block = [Block(config, is_decoder=is_decoder, is_first=i == 0) for i in range(layers)]
        self.final_layer_norm = Norm(config.hidden_size)
        self.dropout = Dropout(config.dropout_rate)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, Cache | None]:
        """[B, T] -> [B, T, C] and what was cached."""
        inputs_embeds = self.embed_tokens(input_ids)  # held until this returns
        caches = not (context.options.checkpointing and self.training)
        cache = Cache() if self.is_decoder and caches else None
        if self.is_decoder:
            mask = causal_mask(inputs_embeds, None, attention_mask)
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
        self.lm_head.weight = self.shared.weight
        self.encoder.embed_tokens.weight = self.shared.weight
        self.decoder.embed_tokens.weight = self.shared.weight

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, S], [B, T] -> loss and logits [B, T, V]."""
        hidden_states, _ = self.encoder(input_ids, attention_mask)
        decoder_input_ids = _shift_right(labels)
        decoder_outputs = self.decoder(decoder_input_ids, None, hidden_states, attention_mask)
        sequence_output, cache = decoder_outputs
        if self.config.tie_word_embeddings:
            sequence_output = mul_scalar(sequence_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.lm_head(sequence_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits, (hidden_states, cache))


def _shift_right(labels: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the start token, then all labels but the last."""
    B, T = labels.shape
    shifted = made("new_zeros", (B, T), int64)
    rest = made("clone", (B, T - 1), int64)
    del rest
    ignored = made("eq", (B, T), bool_)
    del ignored
    return shifted


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

    tasks = ("seq2seq-lm",)
    loads_in_4bit = False
    followed_in = ("5.17",)
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

    def build(self, task: Task) -> T5ForConditionalGeneration:
        """Return the model, its weights allocated."""
        del task  # there is one
        return T5ForConditionalGeneration(self)
