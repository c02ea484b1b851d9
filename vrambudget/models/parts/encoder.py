"""The layers of BERT and of the encoders copied from it (bert, roberta; eager: distilbert, vit).

    Attention      x -> norm(x + dropout(dense(attend(q, k, v))))
    Layer          attention, then norm(x + dropout(dense(gelu(dense(x)))))

Every position sees every other: without padding there is no mask. The layer's frame holds eager
attention's weights until it returns. What stands around the layers is in `encoder_model.py`.

Source: models/bert/modeling_bert.py, models/roberta/modeling_roberta.py of transformers 5.17.
Not modelled: decoders with cross-attention (`is_decoder`), feed-forward in chunks.
"""

from collections.abc import Iterator

from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, LayerNorm, Linear
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, mul_scalar
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import (
    contiguous,
    reshape,
    transpose,
    view,
)
from vrambudget.ops.softmax import softmax


class EncoderConfig(ModelConfig):
    """What BERT's and RoBERTa's configurations share, with their defaults."""

    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.1
    attention_probs_dropout_prob: Probability = 0.1
    classifier_dropout: Probability | None = None
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    tie_word_embeddings: bool = True

    tasks = ("masked-lm", "seq-cls")
    loads_in_4bit = False
    ignored_keys = frozenset({"position_embedding_type"})

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions."""
        return self.max_position_embeddings

    @property
    def head_dropout(self) -> float:
        """Dropout before a classifier."""
        own = self.classifier_dropout
        return self.hidden_dropout_prob if own is None else own

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout_p: float
) -> Attended:
    """BERT's eager_attention_forward: the softmax in the scores' dtype (float32 under autocast).

    Before 5.0 there are two names, for scores and for weights.
    """
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    if mask is not None:
        weights = add(weights, mask)
    scores = None if transformers_since(5, 0) else weights
    weights = softmax(weights)
    weights = dropout(weights, dropout_p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    del scores  # held until here
    return output, weights


def attend_both_ways(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, dropout_p: float
) -> Attended:
    """Attend to all tokens, or to all that the mask leaves: [B, H, T, D] -> [B, T, H, D]."""
    return attend(
        query, key, value, mask, dropout_p=dropout_p, is_causal=False, eager=eager_attention
    )


def heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, C] -> [B, H, T, D]."""
    return transpose(view(x, *x.shape[:-1], -1, head_dim), 1, 2)


class SelfAttention(Module):
    """BertSelfAttention."""

    def __init__(self, config: EncoderConfig) -> None:
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.query = Linear(width, width)
        self.key = Linear(width, width)
        self.value = Linear(width, width)
        self.dropout_p = config.attention_probs_dropout_prob

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query = heads(self.query(hidden_states), self.head_dim)
        key = heads(self.key(hidden_states), self.head_dim)
        value = heads(self.value(hidden_states), self.head_dim)
        dropout_p = self.dropout_p if self.training else 0.0
        output, weights = attend_both_ways(query, key, value, mask, dropout_p=dropout_p)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        return output, weights


class AddNorm(Module):
    """BertSelfOutput and BertOutput: norm(residual + dropout(dense(x)))."""

    def __init__(self, config: EncoderConfig, features: int) -> None:
        self.dense = Linear(features, config.hidden_size)
        self.LayerNorm = LayerNorm(config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """[B, T, I], [B, T, C] -> [B, T, C]."""
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        normed: Tensor = self.LayerNorm(add(hidden_states, residual))
        return normed


class Attention(Module):
    """BertAttention."""

    def __init__(self, config: EncoderConfig) -> None:
        self.self = SelfAttention(config)
        self.output = AddNorm(config, config.hidden_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        attention_output, weights = self.self(hidden_states, mask)
        attention_output = self.output(attention_output, hidden_states)
        return attention_output, weights


class Intermediate(Module):
    """BertIntermediate."""

    def __init__(self, config: EncoderConfig) -> None:
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, I]."""
        hidden_states = self.dense(hidden_states)
        return self.act(hidden_states)


class Layer(CheckpointedLayer):
    """BertLayer."""

    def __init__(self, config: EncoderConfig) -> None:
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = AddNorm(config, config.intermediate_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Attended:
        """[B, T, C] -> [B, T, C]; before 5.0 the weights go on to the loop over layers."""
        attention_output, weights = self.attention(hidden_states, mask)
        intermediate_output = self.intermediate(attention_output)
        layer_output: Tensor = self.output(intermediate_output, attention_output)
        return layer_output, None if transformers_since(5, 0) else weights


class Encoder(Module):
    """BertEncoder."""

    def __init__(self, config: EncoderConfig) -> None:
        self.layer = [Layer(config) for _ in range(config.num_hidden_layers)]

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        for layer in self.layer:
            layer_outputs = layer(hidden_states, mask)  # held until the next are there
            hidden_states = layer_outputs[0]
        return hidden_states
