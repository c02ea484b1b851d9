"""Whisper as transformers writes it (models/whisper/modeling_whisper.py).

Two convolutions halve the frames of a mel spectrogram; an encoder reads them, and a decoder the
encoder. Norms before each part, sinusoids that are not trained for the encoder's positions, learned
ones for the decoder's, one embedding for decoder and head.

    input_features [B, mel, 2 x positions]   30 seconds, whatever was said in them
    labels         [B, T]                    `target_len` of a job

Not modelled: layers that are skipped at random (`encoder_layerdrop`, `decoder_layerdrop`), which
are counted as never skipped; SpecAugment; generation; classifiers.
"""

from collections.abc import Iterator
from typing import Literal, Self

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import VramBudgetError
from vrambudget.models.parts.bart_config import EncoderDecoderConfig
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.labels import shift_right
from vrambudget.models.parts.layers import Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.mask_building import offset_arange
from vrambudget.models.parts.masks import causal_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.whisper_layers import Convolution, DecoderLayer, EncoderLayer
from vrambudget.ops.creation import arange, made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, add
from vrambudget.ops.indexing import index_rows
from vrambudget.ops.shape import permute
from vrambudget.tape.events import Purpose

_HALVED = 2  # frames of a spectrogram for each position


class Encoder(Module):
    """WhisperEncoder."""

    input_embeddings = "conv1"

    def __init__(self, config: "WhisperConfig") -> None:
        width = config.hidden_size
        self.dropout_p = config.dropout
        self.conv1 = Convolution(config.num_mel_bins, width)
        self.conv2 = Convolution(width, width, stride=2)
        self.embed_positions = Embedding(config.max_source_positions, width)
        self.embed_positions.weight.requires_grad = False
        self.layers = [EncoderLayer(config.encoder) for _ in range(config.num_hidden_layers)]
        self.layer_norm = LayerNorm(width)
        _sinusoids(config.max_source_positions, width)  # copied into the positions

    def forward(self, input_features: Tensor) -> Tensor:
        """[B, mel, F] -> [B, F / 2, C]."""
        gelu = ACTIVATIONS["gelu"]
        inputs_embeds = gelu(self.conv1(input_features))
        inputs_embeds = gelu(self.conv2(inputs_embeds))
        inputs_embeds = permute(inputs_embeds, 0, 2, 1)
        all_positions = arange(inputs_embeds.shape[1])
        hidden_states = add(inputs_embeds, self.embed_positions(all_positions))
        hidden_states = dropout(hidden_states, self.dropout_p, training=self.training)
        for layer in self.layers:
            hidden_states = layer(hidden_states, None)
        y: Tensor = self.layer_norm(hidden_states)
        del all_positions, inputs_embeds  # held until here
        return y


def _sinusoids(length: int, channels: int) -> None:
    """Make what the table of positions [length, channels] is filled with, and free it."""
    half, dtype = (channels // 2,), context.options.dtype
    indices = made("arange", half, int64)
    scaled = made("mul", half, dtype)
    del indices
    inverse = made("exp", half, dtype)
    del scaled
    times = made("arange", (length,), int64)
    angles = made("mul", (length, *half), dtype)
    del times
    sines, cosines = made("sin", angles.shape, dtype), made("cos", angles.shape, dtype)
    table = made("cat", (length, channels), dtype)
    del table, cosines, sines, angles, inverse


class Decoder(Module):
    """WhisperDecoder."""

    def __init__(self, config: "WhisperConfig") -> None:
        width = config.hidden_size
        self.dropout_p = config.dropout
        self.embed_tokens = Embedding(config.vocab_size, width)
        self.embed_positions = Embedding(config.max_target_positions, width)
        self.layers = [DecoderLayer(config.decoder) for _ in range(config.decoder_layers)]
        for index, layer in enumerate(self.layers):
            layer.self_attn.layer_idx = layer.encoder_attn.layer_idx = index
        self.layer_norm = LayerNorm(width)

    def forward(
        self, input_ids: Tensor, encoder_hidden_states: Tensor, cache: EncoderDecoderCache | None
    ) -> Tensor:
        """[B, T], [B, S, C] -> [B, T, C]."""
        inputs_embeds = self.embed_tokens(input_ids)
        one_row = offset_arange(input_ids.shape[1])
        position_ids = made("repeat", input_ids.shape, int64)
        del one_row
        positions = index_rows(self.embed_positions.weight, position_ids)
        hidden_states = add(inputs_embeds, positions)
        hidden_states = dropout(hidden_states, self.dropout_p, training=self.training)
        past = None if cache is None else cache.self_attention
        mask = causal_mask(inputs_embeds, position_ids, past=past)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, encoder_hidden_states, cache=cache)
        y: Tensor = self.layer_norm(hidden_states)
        del positions, position_ids, inputs_embeds  # held until here
        return y


class Model(Module):
    """WhisperModel."""

    def __init__(self, config: "WhisperConfig") -> None:
        self.encoder = Encoder(config)
        self.decoder = Decoder(config)


class WhisperForConditionalGeneration(Module):
    """Whisper with its head."""

    def __init__(self, config: "WhisperConfig") -> None:
        self.config = config
        self.model = Model(config)
        self.proj_out = Linear(config.hidden_size, config.vocab_size, bias=False)
        if config.tie_word_embeddings:
            self.proj_out.weight = self.model.decoder.embed_tokens.weight

    def forward(self, input_features: Tensor, labels: Tensor) -> Outputs:
        """[B, mel, F], [B, T] -> loss and logits [B, T, V]."""
        decoder_input_ids = shift_right(labels)
        encoded = self.model.encoder(input_features)
        cache = self._new_cache()
        hidden_states = self.model.decoder(decoder_input_ids, encoded, cache)
        with made_for(Purpose.LOGITS_AND_LOSS):
            lm_logits = self.proj_out(hidden_states)
        loss = class_loss(lm_logits, labels)
        del hidden_states, decoder_input_ids  # held until here
        return Outputs(loss, lm_logits, (encoded, cache))

    def _new_cache(self) -> EncoderDecoderCache | None:
        """Return an empty cache if the job wants one and no layer is checkpointed."""
        options = context.options
        if not options.use_cache or (options.checkpointing and self.training):
            return None
        return EncoderDecoderCache.of(self.config.decoder_layers)


class WhisperConfig(EncoderDecoderConfig):
    """transformers' WhisperConfig, with its defaults."""

    model_type: Literal["whisper"] = "whisper"
    pad_token_id: int | None = 50256
    vocab_size: Size = 51865
    num_mel_bins: Size = 80
    hidden_size: Size = 384
    num_hidden_layers: Size = 4
    num_attention_heads: Size = 6
    encoder_ffn_dim: Size = 1536
    decoder_layers: Size = 4
    decoder_attention_heads: Size = 6
    decoder_ffn_dim: Size = 1536
    dropout: Probability = 0.0
    max_source_positions: Size = 1500
    max_target_positions: Size = 448
    apply_spec_augment: bool = False

    reads_attention_mask = False
    checked_with = ("5.17", "5.23", "5.24")
    ignored_keys = EncoderDecoderConfig.ignored_keys | {
        *("mask_time_prob", "mask_time_length", "mask_time_min_masks", "mask_feature_prob"),
        *("mask_feature_length", "mask_feature_min_masks", "median_filter_width"),
        *("use_weighted_layer_sum", "classifier_proj_size", "num_key_value_heads"),
    }

    @property
    def keeps_cache(self) -> bool:
        """Its decoder keeps keys and values in training, too (use_cache)."""
        return True

    @property
    def reads_position_ids(self) -> bool:
        """It takes no positions of the encoder's input."""
        return False

    @property
    def default_block(self) -> int:
        """Tokens of a transcript if a job names none."""
        return self.max_target_positions

    @property
    def learned_positions(self) -> int:
        """Rows of the decoder's table of positions."""
        return self.max_target_positions

    @property
    def sound_shape(self) -> tuple[int, int]:
        """Bins of mel, and frames."""
        return self.num_mel_bins, _HALVED * self.max_source_positions

    def for_job(self, job: Job) -> Self:
        """Return the configuration. Raises VramBudgetError for transcripts that are too long."""
        if (job.target_len or 0) > self.max_target_positions:
            raise VramBudgetError(
                f"target_len is {job.target_len}; the decoder has positions for"
                f" {self.max_target_positions} tokens"
            )
        return super().for_job(job)

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.apply_spec_augment:
            yield "apply_spec_augment masks frames at random, which is not modelled"

    def build(self, task: Task) -> WhisperForConditionalGeneration:
        """Return the model, its weights allocated."""
        del task  # there is one
        return WhisperForConditionalGeneration(self)
