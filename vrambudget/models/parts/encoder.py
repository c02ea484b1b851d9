"""What BERT and the encoders copied from it have in common (bert, roberta; eager: distilbert, vit).

    Attention      x -> norm(x + dropout(dense(attend(q, k, v))))
    Layer          attention, then norm(x + dropout(dense(gelu(dense(x)))))
    Pooler         tanh(dense(first token))

Every position sees every other: without padding there is no mask. The layer's frame holds eager
attention's weights until it returns.

Source: models/bert/modeling_bert.py, models/roberta/modeling_roberta.py of transformers 5.17.
Not modelled: decoders with cross-attention (`is_decoder`), feed-forward in chunks.
"""

from collections.abc import Iterator

from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.dtypes import int64
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.masks import bidirectional_mask, look_for_padding
from vrambudget.models.parts.masks_v4 import bidirectional_mask_of_4, tokens_of
from vrambudget.ops.creation import arange, made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add, mul_scalar, tanh
from vrambudget.ops.fill import add_
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import (
    contiguous,
    expand,
    narrowed,
    open_slices,
    reshape,
    select,
    transpose,
    view,
)
from vrambudget.ops.softmax import softmax
from vrambudget.tape.events import Purpose


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

    reads_back_since = (4, 0)
    reads_back_until = (5, 0)
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


class PositionBuffers(Module):
    """position_ids and token_type_ids [1, positions]: buffers of the embeddings."""

    def __init__(self, length: int, *, token_types: bool = True) -> None:
        with made_for(Purpose.WEIGHTS):
            self.position_ids = view(arange(length), 1, length)
            self.token_type_ids = made("zeros", (1, length), int64) if token_types else None

    def initialise(self) -> None:
        """_init_weights counts once more and copies the result in, from 5.0 on."""
        if transformers_since(5, 0):
            again = arange(self.position_ids.shape[1])
            del again

    def positions(self, length: int) -> Tensor:
        """Return the first `length` positions [1, T]: a view."""
        return narrowed(self.position_ids, 1, length)


def token_types(buffers: PositionBuffers, position_ids: Tensor, batch: int) -> Tensor:
    """Return the buffer's types at `position_ids`, for every row [B, T].

    Before 5.0 the first T are taken.
    """
    length = position_ids.shape[1]
    if transformers_since(5, 0):
        return expand(made("gather", position_ids.shape, int64), batch, length)
    assert buffers.token_type_ids is not None  # noqa: S101 - these encoders have types
    return expand(narrowed(buffers.token_type_ids, 1, length), batch, length)


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


class Pooler(Module):
    """BertPooler."""

    def __init__(self, width: int) -> None:
        self.dense = Linear(width, width)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, C]."""
        first_token = select(open_slices(hidden_states, 1), 1)  # [:, 0]
        pooled_output = self.dense(first_token)
        return tanh(pooled_output)


class Model(Module):
    """BertModel: hidden states [B, T, C] and, with a pooler, its output [B, C]."""

    def __init__(self, config: EncoderConfig, embeddings: "Embeddings", *, pooler: bool) -> None:
        self.pads = config.pad_token_id is not None
        self.embeddings = embeddings
        self.encoder = Encoder(config)
        self.pooler = Pooler(config.hidden_size) if pooler else None
        self.embeddings.buffers.initialise()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T] -> [B, T, C], [B, C]."""
        before_5 = not transformers_since(5, 0)
        if before_5 and attention_mask is None and self.pads:
            look_for_padding(input_ids.shape[0])
        embedding_output = self.embeddings(input_ids)  # held until this returns
        if before_5:
            attention_mask = tokens_of(embedding_output, attention_mask)
            mask = bidirectional_mask_of_4(embedding_output, attention_mask)
        else:
            mask = bidirectional_mask(embedding_output, attention_mask)
        sequence_output = self.encoder(embedding_output, mask)
        pooled_output = None if self.pooler is None else self.pooler(sequence_output)
        return sequence_output, pooled_output


def plus_positions(embeddings: Tensor, positions: Tensor) -> Tensor:
    """Return the sum, before 5.0 in place."""
    return add(embeddings, positions) if transformers_since(5, 0) else add_(embeddings, positions)


class Embeddings(Module):
    """What a family's embeddings have for others to use."""

    word_embeddings: Embedding
    buffers: PositionBuffers


def tie_decoder(decoder: Linear, embeddings: Embedding, bias: Parameter | None) -> None:
    """tie_weights: share the embeddings' weight, and a bias, if it is not shared yet.

    Each time the bias is padded by nothing. A pad makes a new tensor: it moves to another place.
    """
    decoder.weight = embeddings.weight
    _pad(decoder)
    if bias is not None and decoder.bias is not bias:
        decoder.bias = bias
        _pad(decoder)


def _pad(decoder: Linear) -> None:
    bias = decoder.bias
    assert bias is not None  # noqa: S101 - these decoders have one
    with made_for(Purpose.WEIGHTS):
        bias.storage = made("pad", bias.shape, bias.dtype).storage
