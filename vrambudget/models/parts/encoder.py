"""What the layers of encoders share with BERT's, whose code they are copied from.

Every position sees every other: without padding there is no mask.

Source: models/bert/modeling_bert.py of transformers 5.17.
Not modelled: decoders with cross-attention (`is_decoder`), feed-forward in chunks.
"""

from collections.abc import Iterator

from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.models.parts.layers import Dropout, LayerNorm, Linear
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, mul_scalar
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import (
    contiguous,
    transpose,
    view,
)
from vrambudget.ops.softmax import softmax


class EncoderConfig(ModelConfig):
    """What configurations of encoders share with BERT's, with its defaults."""

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

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    bias: Tensor | None = None,
) -> Attended:
    """BERT's and T5's eager_attention_forward: the softmax in the scores' dtype."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    if bias is not None:
        weights = add(weights, bias)
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = dropout(weights, dropout_p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights


def heads(x: Tensor, head_dim: int) -> Tensor:
    """[B, T, C] -> [B, H, T, D]."""
    return transpose(view(x, *x.shape[:-1], -1, head_dim), 1, 2)


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


class Intermediate(Module):
    """BertIntermediate."""

    def __init__(self, config: EncoderConfig) -> None:
        self.dense = Linear(config.hidden_size, config.intermediate_size)
        self.act = ACTIVATIONS[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, I]."""
        hidden_states = self.dense(hidden_states)
        return self.act(hidden_states)
