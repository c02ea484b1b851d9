"""What stands around the layers of encoders: BERT's embeddings, and how a head is tied to them.

    embeddings   dropout(norm(words + token types + positions))

Tying the head's decoder to the embeddings pads its bias by nothing, which moves it in memory.

Source: models/bert/modeling_bert.py of transformers 5.17.
"""

from vrambudget.dtypes import int64
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import add
from vrambudget.ops.shape import (
    expand,
    narrowed,
    view,
)
from vrambudget.tape.events import Purpose


class PositionBuffers(Module):
    """position_ids and token_type_ids [1, positions]: buffers of the embeddings."""

    def __init__(self, length: int, *, token_types: bool = True) -> None:
        with made_for(Purpose.WEIGHTS):
            self.position_ids = view(arange(length), 1, length)
            self.token_type_ids = made("zeros", (1, length), int64) if token_types else None

    def initialise(self) -> None:
        """_init_weights counts once more and copies the result in."""
        again = arange(self.position_ids.shape[1])
        del again

    def positions(self, length: int) -> Tensor:
        """Return the first `length` positions [1, T]: a view."""
        return narrowed(self.position_ids, 1, length)


def token_types(position_ids: Tensor, batch: int) -> Tensor:
    """Return the buffer's types at `position_ids`, for every row [B, T]."""
    return expand(made("gather", position_ids.shape, int64), batch, position_ids.shape[1])


class EncoderEmbeddings(Module):
    """Words, token types and positions added up; a family counts positions in its own way."""

    word_embeddings: Embedding
    token_type_embeddings: Embedding
    position_embeddings: Embedding
    LayerNorm: LayerNorm
    dropout: Dropout
    buffers: PositionBuffers

    def position_ids(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [1, T] or [B, T]."""
        raise NotImplementedError

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        position_ids = self.position_ids(input_ids)
        token_type_ids = token_types(position_ids, input_ids.shape[0])
        inputs_embeds = self.word_embeddings(input_ids)
        token_type_embeddings = self.token_type_embeddings(token_type_ids)
        embeddings = add(inputs_embeds, token_type_embeddings)
        position_embeddings = self.position_embeddings(position_ids)
        embeddings = add(embeddings, position_embeddings)
        embeddings = self.LayerNorm(embeddings)
        dropped: Tensor = self.dropout(embeddings)
        return dropped


def tie_decoder(
    decoder: Linear, embeddings: Embedding, bias: Parameter | None, *, bias_first: bool = False
) -> None:
    """tie_weights: share the embeddings' weight, and a bias, if it is not shared yet.

    Each time the bias is padded by nothing. A pad makes a new tensor: it moves to another place.
    The order is that of the class's `_tied_weights_keys`.
    """
    if bias_first:
        decoder.bias = bias
        _pad(decoder)
    decoder.weight = embeddings.weight
    _pad(decoder)
    if bias is not None and decoder.bias is not bias:
        decoder.bias = bias
        _pad(decoder)


def _pad(decoder: Linear) -> None:
    bias = decoder.bias
    if bias is None:
        return
    with made_for(Purpose.WEIGHTS):
        bias.storage = made("pad", bias.shape, bias.dtype).storage
