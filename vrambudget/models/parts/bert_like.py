"""BERT's embeddings and heads, which other encoders have, too (models/bert/modeling_bert.py)."""

from vrambudget.config.settings import Size
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.encoder import EncoderConfig
from vrambudget.models.parts.encoder_model import (
    EncoderEmbeddings,
    PositionBuffers,
)
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.ops.elementwise import ACTIVATIONS
from vrambudget.tape.events import Purpose


class Embeddings(EncoderEmbeddings):
    """BertEmbeddings."""

    def __init__(self, config: "BertLike", width: int | None = None) -> None:
        width = width or config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.LayerNorm = LayerNorm(width)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.buffers = PositionBuffers(config.max_position_embeddings)

    def position_ids(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [1, T]: the first T."""
        return self.buffers.positions(input_ids.shape[1])


class Transform(Module):
    """BertPredictionHeadTransform."""

    def __init__(self, config: "BertLike") -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.act = ACTIVATIONS[config.hidden_act]
        self.LayerNorm = LayerNorm(config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.dense(hidden_states)
        hidden_states = self.act(hidden_states)
        normed: Tensor = self.LayerNorm(hidden_states)
        return normed


class Predictions(Module):
    """BertLMPredictionHead: its bias is the decoder's, once they are tied."""

    def __init__(self, config: "BertLike") -> None:
        self.transform = Transform(config)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = Parameter((config.vocab_size,), context.options.dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        hidden_states = self.transform(hidden_states)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.decoder(hidden_states)
        return logits


class MaskedLMHead(Module):
    """BertOnlyMLMHead."""

    def __init__(self, config: "BertLike") -> None:
        self.predictions = Predictions(config)

    def forward(self, sequence_output: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        logits: Tensor = self.predictions(sequence_output)
        return logits


class BertLike(EncoderConfig):
    """The keys of BERT and of the models that have its embeddings."""

    pad_token_id: int | None = 0
    vocab_size: Size = 30522
