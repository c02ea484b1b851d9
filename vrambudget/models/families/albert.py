"""ALBERT as transformers writes it (models/albert/modeling_albert.py): one layer, run many times.

BERT's embeddings, narrower than the layers, which share their weights in groups: gradients add up
over all runs. transformers has no checkpointing for it.

Not modelled: what `encoder.py` does not; sentence order prediction; regression (`num_labels` 1)
runs as a classification.
"""

from collections.abc import Iterator
from typing import ClassVar, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.bert_like import BertLike, Embeddings, PooledClassifier
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.encoder import attend_both_ways, heads
from vrambudget.models.parts.encoder_model import tie_decoder
from vrambudget.models.parts.layers import Dropout, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, tanh
from vrambudget.ops.shape import contiguous, open_slices, reshape, select
from vrambudget.tape.events import Purpose


class Attention(Module):
    """AlbertAttention."""

    def __init__(self, config: "AlbertConfig") -> None:
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.dropout_p = config.attention_probs_dropout_prob
        self.output_dropout = Dropout(config.hidden_dropout_prob)
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.dense = Linear(width, width)
        self.LayerNorm = LayerNorm(width)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query = heads(self.query(hidden_states), self.head_dim)
        key = heads(self.key(hidden_states), self.head_dim)
        value = heads(self.value(hidden_states), self.head_dim)
        dropout_p = self.dropout_p if self.training else 0.0
        output, weights = attend_both_ways(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.dense(output)
        output = self.output_dropout(output)
        output = self.LayerNorm(add(hidden_states, output))
        return output, weights


class Layer(Module):
    """AlbertLayer."""

    def __init__(self, config: "AlbertConfig") -> None:
        width = config.hidden_size
        self.full_layer_layer_norm = LayerNorm(width)
        self.attention = Attention(config)
        self.ffn = Linear(width, config.intermediate_size)
        self.ffn_output = Linear(config.intermediate_size, width)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        attention_output, _ = self.attention(hidden_states, mask)
        ffn_output = self.ffn(attention_output)
        ffn_output = self.activation(ffn_output)
        ffn_output = self.ffn_output(ffn_output)
        y: Tensor = self.full_layer_layer_norm(add(ffn_output, attention_output))
        return y


class Group(Module):
    """AlbertLayerGroup."""

    def __init__(self, config: "AlbertConfig") -> None:
        self.albert_layers = [Layer(config) for _ in range(config.inner_group_num)]

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        for layer in self.albert_layers:
            hidden_states = layer(hidden_states, mask)
        return hidden_states


class Transformer(Module):
    """AlbertTransformer: each group runs as often as its share of the layers."""

    def __init__(self, config: "AlbertConfig") -> None:
        self.layers, self.groups = config.num_hidden_layers, config.num_hidden_groups
        self.embedding_hidden_mapping_in = Linear(config.embedding_size, config.hidden_size)
        self.albert_layer_groups = [Group(config) for _ in range(self.groups)]

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, E] -> [B, T, C]."""
        hidden_states = self.embedding_hidden_mapping_in(hidden_states)
        for i in range(self.layers):
            group = self.albert_layer_groups[int(i / (self.layers / self.groups))]
            hidden_states = group(hidden_states, mask)
        return hidden_states


class Model(Module):
    """AlbertModel."""

    def __init__(self, config: "AlbertConfig", *, pooler: bool) -> None:
        width = config.hidden_size
        self.embeddings = Embeddings(config, config.embedding_size)
        self.encoder = Transformer(config)
        self.pooler = Linear(width, width) if pooler else None
        self.embeddings.buffers.initialise()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T] -> [B, T, C], [B, C]."""
        embedding_output = self.embeddings(input_ids)  # held until this returns
        mask = bidirectional_mask(embedding_output, attention_mask)
        sequence_output = self.encoder(embedding_output, mask)
        if self.pooler is None:
            return sequence_output, None
        first_token = select(open_slices(sequence_output, 1), 1)  # [:, 0]
        return sequence_output, tanh(self.pooler(first_token))


class MLMHead(Module):
    """AlbertMLMHead."""

    def __init__(self, config: "AlbertConfig") -> None:
        narrow, vocab = config.embedding_size, config.vocab_size
        self.LayerNorm = LayerNorm(narrow)
        self.bias = Parameter((vocab,), context.options.dtype)
        self.dense = Linear(config.hidden_size, narrow)
        self.decoder = Linear(narrow, vocab)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        hidden_states = self.dense(hidden_states)
        hidden_states = self.activation(hidden_states)
        hidden_states = self.LayerNorm(hidden_states)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.decoder(hidden_states)
        return logits


class AlbertForMaskedLM(Module):
    """ALBERT with a masked language modelling head."""

    def __init__(self, config: "AlbertConfig") -> None:
        self.albert = Model(config, pooler=False)
        self.predictions = MLMHead(config)
        if config.tie_word_embeddings:
            words = self.albert.embeddings.word_embeddings
            tie_decoder(self.predictions.decoder, words, self.predictions.bias)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        sequence_output, _ = self.albert(input_ids, attention_mask)
        prediction_scores = self.predictions(sequence_output)
        loss = class_loss(prediction_scores, labels)
        return Outputs(loss, prediction_scores)


class AlbertForSequenceClassification(PooledClassifier):
    """ALBERT with a classifier of what the first token is pooled to."""

    encoder = "albert"

    def __init__(self, config: "AlbertConfig") -> None:
        self.albert = Model(config, pooler=True)
        self.dropout = Dropout(config.classifier_dropout_prob)
        self.classifier = Linear(config.hidden_size, config.num_labels)


class AlbertConfig(BertLike):
    """transformers' AlbertConfig, with its defaults."""

    model_type: Literal["albert"] = "albert"
    vocab_size: Size = 30000
    embedding_size: Size = 128
    hidden_size: Size = 4096
    num_hidden_groups: Size = 1
    num_attention_heads: Size = 64
    intermediate_size: Size = 16384
    inner_group_num: Size = 1
    hidden_act: Activation = "gelu_new"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    classifier_dropout_prob: Probability = 0.1

    checkpointing: ClassVar[tuple[str, ...]] = ("none",)
    followed_in = ("5.17",)
    ignored_keys = BertLike.ignored_keys | {
        *("down_scale_factor", "gap_size", "net_structure_type", "num_memory_blocks"),
    }

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.num_hidden_groups > self.num_hidden_layers:
            yield (
                f"num_hidden_groups is {self.num_hidden_groups}, which are more than the"
                f" {self.num_hidden_layers} layers (num_hidden_layers)"
            )

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self, pooler=True))

    def build(self, task: Task) -> AlbertForMaskedLM | AlbertForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return AlbertForMaskedLM(self)
        return AlbertForSequenceClassification(self)
