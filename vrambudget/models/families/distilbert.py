"""DistilBERT as transformers writes it (models/distilbert/modeling_distilbert.py).

BERT's layers without token types and pooler, under other names; eager attention is BERT's.

Not modelled: what `encoder.py` does not; regression (`num_labels` 1) runs as a classification; the
temporaries of sinusoidal positions, which only the build makes.
"""

from collections.abc import Iterator
from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.encoder import attend_both_ways, heads
from vrambudget.models.parts.encoder_model import PositionBuffers, tie_decoder
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, relu
from vrambudget.ops.shape import contiguous, open_slices, reshape, select
from vrambudget.tape.events import Purpose


class Embeddings(Module):
    """Embeddings."""

    def __init__(self, config: "DistilBertConfig") -> None:
        width = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.LayerNorm = LayerNorm(width)
        self.dropout = Dropout(config.dropout)
        self.buffers = PositionBuffers(config.max_position_embeddings, token_types=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        inputs_embeds = self.word_embeddings(input_ids)
        position_ids = self.buffers.positions(input_ids.shape[1])
        position_embeddings = self.position_embeddings(position_ids)
        embeddings = add(inputs_embeds, position_embeddings)
        embeddings = self.LayerNorm(embeddings)
        dropped: Tensor = self.dropout(embeddings)
        del inputs_embeds, position_embeddings  # held until here
        return dropped


class SelfAttention(Module):
    """DistilBertSelfAttention."""

    def __init__(self, config: "DistilBertConfig") -> None:
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.q_lin = Linear(width, width)
        self.k_lin = Linear(width, width)
        self.v_lin = Linear(width, width)
        self.out_lin = Linear(width, width)
        self.dropout_p = config.attention_dropout

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query = heads(self.q_lin(hidden_states), self.head_dim)
        key = heads(self.k_lin(hidden_states), self.head_dim)
        value = heads(self.v_lin(hidden_states), self.head_dim)
        dropout_p = self.dropout_p if self.training else 0.0
        output, weights = attend_both_ways(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.out_lin(output)
        return output, weights


class FFN(Module):
    """FFN."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.dropout = Dropout(config.dropout)
        self.lin1 = Linear(config.hidden_size, config.intermediate_size)
        self.lin2 = Linear(config.intermediate_size, config.hidden_size)
        self.activation = ACTIVATIONS[config.hidden_act]

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        x = self.lin1(x)
        x = self.activation(x)
        x = self.lin2(x)
        dropped: Tensor = self.dropout(x)
        return dropped


class Block(CheckpointedLayer):
    """TransformerBlock."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.attention = SelfAttention(config)
        self.sa_layer_norm = LayerNorm(config.hidden_size)
        self.ffn = FFN(config)
        self.output_layer_norm = LayerNorm(config.hidden_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        attention_output, weights = self.attention(hidden_states, mask)
        attention_output = self.sa_layer_norm(add(attention_output, hidden_states))
        ffn_output = self.ffn(attention_output)
        output: Tensor = self.output_layer_norm(add(ffn_output, attention_output))
        del weights  # held until here
        return output


class Transformer(Module):
    """Transformer."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.layer = [Block(config) for _ in range(config.num_hidden_layers)]

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        for layer in self.layer:
            hidden_states = layer(hidden_states, mask)
        return hidden_states


class Model(Module):
    """DistilBertModel."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.embeddings = Embeddings(config)
        self.transformer = Transformer(config)
        self.embeddings.buffers.initialise()

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
        """[B, T] -> [B, T, C]."""
        embeddings = self.embeddings(input_ids)  # held until this returns
        mask = bidirectional_mask(embeddings, attention_mask)
        output: Tensor = self.transformer(embeddings, mask)
        return output


class DistilBertForMaskedLM(Module):
    """DistilBERT with a masked language modelling head."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.distilbert = Model(config)
        self.vocab_transform = Linear(config.hidden_size, config.hidden_size)
        self.vocab_layer_norm = LayerNorm(config.hidden_size)
        self.vocab_projector = Linear(config.hidden_size, config.vocab_size)
        self.activation = ACTIVATIONS[config.hidden_act]
        if config.tie_word_embeddings:
            tie_decoder(self.vocab_projector, self.distilbert.embeddings.word_embeddings, None)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        hidden_states = self.distilbert(input_ids, attention_mask)
        logits = self.vocab_transform(hidden_states)
        logits = self.activation(logits)
        logits = self.vocab_layer_norm(logits)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.vocab_projector(logits)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class DistilBertForSequenceClassification(Module):
    """DistilBERT with a classifier of the first token."""

    def __init__(self, config: "DistilBertConfig") -> None:
        self.distilbert = Model(config)
        self.pre_classifier = Linear(config.hidden_size, config.hidden_size)
        self.classifier = Linear(config.hidden_size, config.num_labels)
        self.dropout = Dropout(config.seq_classif_dropout)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        hidden_state = self.distilbert(input_ids, attention_mask)
        pooled_output = select(open_slices(hidden_state, 1), 1)  # [:, 0]
        pooled_output = self.pre_classifier(pooled_output)
        pooled_output = relu(pooled_output)
        pooled_output = self.dropout(pooled_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.classifier(pooled_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class DistilBertConfig(ModelConfig):
    """transformers' DistilBertConfig, with its defaults."""

    model_type: Literal["distilbert"] = "distilbert"
    vocab_size: Size = 30522
    hidden_size: Size = 768
    num_hidden_layers: Size = 6
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    max_position_embeddings: Size = 512
    dropout: Probability = 0.1
    attention_dropout: Probability = 0.1
    seq_classif_dropout: Probability = 0.2
    tie_word_embeddings: bool = True

    tasks = ("masked-lm", "seq-cls")
    loads_in_4bit = False
    followed_in = ("5.17", "5.23", "5.24")
    aliases = {  # noqa: RUF012 - declared ClassVar in the base class
        "dim": "hidden_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "hidden_dim": "intermediate_size",
        "activation": "hidden_act",
    }
    ignored_keys = frozenset({"qa_dropout", "sinusoidal_pos_embds", "tie_weights_"})

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self))

    def build(self, task: Task) -> DistilBertForMaskedLM | DistilBertForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return DistilBertForMaskedLM(self)
        return DistilBertForSequenceClassification(self)
