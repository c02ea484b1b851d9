"""DeBERTa V2 and V3 as transformers writes it (models/deberta_v2/modeling_deberta_v2.py).

BERT's layers with disentangled attention: a table of relative positions beside the contents. The
mask of padding multiplies the embeddings and becomes [B, 1, T, T] of its own type, of ones where
the caller has none. The encoder holds all layers' states until it returns.

Not modelled: V2's convolution (`conv_kernel_size`), narrower embeddings, the new head of masked
language models (`legacy` false); regression (`num_labels` 1) runs as a classification.
"""

from typing import Any, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.settings import Field, Names, Probability, Size
from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.bert_like import BertLike, MaskedLMHead
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.disentangled import DisentangledSelfAttention, relative_positions
from vrambudget.models.parts.encoder import AddNorm, Intermediate
from vrambudget.models.parts.encoder_model import PositionBuffers, tie_decoder
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import look_for_padding
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, mul
from vrambudget.ops.indexing import gather
from vrambudget.ops.selection import places
from vrambudget.ops.shape import expand, open_slices, select, unsqueeze
from vrambudget.tape.events import Purpose


class Embeddings(Module):
    """DebertaV2Embeddings."""

    def __init__(self, config: "DebertaV2Config") -> None:
        width, positions = config.hidden_size, config.max_position_embeddings
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = (
            Embedding(positions, width) if config.position_biased_input else None
        )
        types = config.type_vocab_size
        self.token_type_embeddings = Embedding(types, width) if types else None
        self.LayerNorm = LayerNorm(width)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.buffers = PositionBuffers(positions, token_types=False)

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, mask: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        position_ids = self.buffers.positions(input_ids.shape[1])
        inputs_embeds = self.word_embeddings(input_ids)
        embeddings = inputs_embeds
        if self.position_embeddings is None:
            position_embeddings = made("zeros_like", inputs_embeds.shape, inputs_embeds.dtype)
        else:
            position_embeddings = self.position_embeddings(position_ids)
            embeddings = add(embeddings, position_embeddings)
        if self.token_type_embeddings is not None:
            token_type_embeddings = self.token_type_embeddings(token_type_ids)
            embeddings = add(embeddings, token_type_embeddings)
        embeddings = self.LayerNorm(embeddings)
        mask = to(unsqueeze(mask, 2), embeddings.dtype)
        embeddings = mul(embeddings, mask)
        dropped: Tensor = self.dropout(embeddings)
        del position_embeddings, inputs_embeds  # held until here
        return dropped


class Attention(Module):
    """DebertaV2Attention."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.self = DisentangledSelfAttention(config)
        self.output = AddNorm(config, config.hidden_size)

    def forward(self, hidden_states: Tensor, mask: Tensor, **relative: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        self_output = self.self(hidden_states, mask, **relative)
        attention_output: Tensor = self.output(self_output, hidden_states)
        return attention_output


class Layer(CheckpointedLayer):
    """DebertaV2Layer."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = AddNorm(config, config.intermediate_size)

    def forward(self, hidden_states: Tensor, mask: Tensor, **relative: Any) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        attention_output = self.attention(hidden_states, mask, **relative)
        intermediate_output = self.intermediate(attention_output)
        layer_output: Tensor = self.output(intermediate_output, attention_output)
        return layer_output


class Encoder(Module):
    """DebertaV2Encoder."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.config, width = config, config.hidden_size
        self.layer = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.rel_embeddings = self.LayerNorm = None
        if config.relative_attention:
            self.rel_embeddings = Embedding(2 * config.position_span, width)
        if "layer_norm" in config.norm_rel_ebd:
            self.LayerNorm = LayerNorm(width)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> Tensor:
        """[B, T, C] and a mask [B, T] -> [B, T, C]."""
        B, T = mask.shape
        mask = made("mul", (B, 1, T, T), mask.dtype)
        relative_pos = rel_embeddings = None
        if self.rel_embeddings is not None:
            relative_pos = relative_positions(T, has_buckets=self.config.has_log_buckets)
            rel_embeddings = self.rel_embeddings.weight
            if self.LayerNorm is not None:
                rel_embeddings = self.LayerNorm(rel_embeddings)
        all_hidden_states = [hidden_states]
        for layer in self.layer:
            output_states = layer(
                hidden_states, mask, relative_pos=relative_pos, rel_embeddings=rel_embeddings
            )
            all_hidden_states.append(output_states)
            hidden_states = output_states
        return hidden_states


class Model(Module):
    """DebertaV2Model."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.pads = config.pad_token_id is not None
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.embeddings.buffers.initialise()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """[B, T] -> [B, T, C]."""
        if attention_mask is None and self.pads:
            look_for_padding(input_ids.shape[0])
        if attention_mask is None:
            attention_mask = made("ones", input_ids.shape, float32)
        token_type_ids = made("zeros", input_ids.shape, int64)
        embedding_output = self.embeddings(input_ids, token_type_ids, attention_mask)
        sequence_output: Tensor = self.encoder(embedding_output, attention_mask)
        return sequence_output


class DebertaV2ForMaskedLM(Module):
    """DeBERTa with a masked language modelling head: BERT's."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.deberta = Model(config)
        self.cls = MaskedLMHead(config)
        if config.tie_word_embeddings:
            head = self.cls.predictions
            words = self.deberta.embeddings.word_embeddings
            tie_decoder(head.decoder, words, head.bias, bias_first=True)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        sequence_output = self.deberta(input_ids, attention_mask)
        prediction_scores = self.cls(sequence_output)
        loss = class_loss(prediction_scores, labels)
        return Outputs(loss, prediction_scores)


class ContextPooler(Module):
    """ContextPooler."""

    def __init__(self, config: "DebertaV2Config") -> None:
        width = config.pooler_hidden_size or config.hidden_size
        self.dense = Linear(width, width)
        self.dropout = Dropout(config.pooler_dropout)
        self.act = ACTIVATIONS[config.pooler_hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, C]."""
        context_token = select(open_slices(hidden_states, 1), 1)  # [:, 0]
        context_token = self.dropout(context_token)
        pooled_output = self.dense(context_token)
        return self.act(pooled_output)


class DebertaV2ForSequenceClassification(Module):
    """DeBERTa with a classifier of the first token."""

    def __init__(self, config: "DebertaV2Config") -> None:
        self.deberta = Model(config)
        self.pooler = ContextPooler(config)
        self.classifier = Linear(config.hidden_size, config.num_labels)
        own = config.cls_dropout
        self.dropout = Dropout(config.hidden_dropout_prob if own is None else own)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        outputs = self.deberta(input_ids, attention_mask)  # held until this returns
        pooled_output = self.pooler(outputs)
        pooled_output = self.dropout(pooled_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.classifier(pooled_output)
        loss = None if labels is None else _loss_of_labelled(logits, labels)
        return Outputs(loss, logits)


def _loss_of_labelled(logits: Tensor, labels: Tensor) -> Tensor | None:
    """CrossEntropyLoss of the rows [B, K] whose labels [B] are not negative, in float32."""
    rows = labels.shape[0]
    with made_for(Purpose.LOGITS_AND_LOSS):
        is_labelled = made("ge", labels.shape, bool_)
        label_index = places(labels.shape, rows).viewed((rows, 1), None)
        del is_labelled
        labeled_logits = gather(logits, expand(label_index, *logits.shape))
        labels = made("gather", labels.shape, int64)
        loss = class_loss(to(labeled_logits, float32), labels)
    del label_index, labeled_logits  # held until here
    return loss


class DebertaV2Config(BertLike):
    """transformers' DebertaV2Config, with its defaults."""

    model_type: Literal["deberta-v2"] = "deberta-v2"
    vocab_size: Size = 128_100
    hidden_size: Size = 1536
    num_hidden_layers: Size = 24
    num_attention_heads: Size = 24
    intermediate_size: Size = 6144
    type_vocab_size: int = Field(0, ge=0)
    relative_attention: bool = False
    max_relative_positions: int = -1
    position_buckets: int = -1
    position_biased_input: bool = True
    pos_att_type: str | Names | None = None
    share_att_key: bool = False
    norm_rel_ebd: str = "none"
    conv_kernel_size: Literal[0] = 0
    legacy: Literal[True] = True
    pooler_dropout: Probability = 0.0
    pooler_hidden_act: Activation = "gelu"
    pooler_hidden_size: Size | None = None
    cls_dropout: Probability | None = None

    checked_with = ("5.17", "5.23", "5.24")
    attentions = ("eager",)
    ignored_keys = BertLike.ignored_keys | {"conv_act", "conv_groups"}

    @property
    def position_ways(self) -> frozenset[str]:
        """Which scores of positions are added: "c2p", "p2c"."""
        given = self.pos_att_type or ()
        ways = given.lower().split("|") if isinstance(given, str) else given
        return frozenset(way.strip() for way in ways)

    @property
    def furthest(self) -> int:
        """The largest distance that is distinguished."""
        own = self.max_relative_positions
        return self.max_position_embeddings if own < 1 else own

    @property
    def has_log_buckets(self) -> bool:
        """Whether far distances share buckets."""
        return self.position_buckets > 0 and self.furthest > 0

    @property
    def position_span(self) -> int:
        """Distances on each side that the table has rows for."""
        return self.position_buckets if self.position_buckets > 0 else self.furthest

    @property
    def learned_positions(self) -> int:
        """The longest sequence: that of the buffer of positions."""
        return self.max_position_embeddings

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self))

    def build(self, task: Task) -> DebertaV2ForMaskedLM | DebertaV2ForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return DebertaV2ForMaskedLM(self)
        return DebertaV2ForSequenceClassification(self)
