"""What stands around the layers of BERT and RoBERTa: embeddings, pooler, the masked-LM model.

    embeddings   dropout(norm(words + token types + positions))
    Pooler       tanh(dense(first token))

Tying the head's decoder to the embeddings pads its bias by nothing, which moves it in memory.

Source: models/bert/modeling_bert.py, models/roberta/modeling_roberta.py of transformers 5.17.
"""

from vrambudget.dtypes import int64
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.encoder import Encoder, EncoderConfig
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import bidirectional_mask, look_for_padding
from vrambudget.models.parts.masks_v4 import bidirectional_mask_of_4, tokens_of
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import add, tanh
from vrambudget.ops.fill import add_
from vrambudget.ops.shape import (
    expand,
    narrowed,
    open_slices,
    select,
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
        token_type_ids = token_types(self.buffers, position_ids, input_ids.shape[0])
        inputs_embeds = self.word_embeddings(input_ids)
        token_type_embeddings = self.token_type_embeddings(token_type_ids)
        embeddings = add(inputs_embeds, token_type_embeddings)
        position_embeddings = self.position_embeddings(position_ids)
        plus = add if transformers_since(5, 0) else add_
        embeddings = plus(embeddings, position_embeddings)
        embeddings = self.LayerNorm(embeddings)
        dropped: Tensor = self.dropout(embeddings)
        return dropped


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

    def __init__(
        self,
        config: EncoderConfig,
        embeddings: EncoderEmbeddings,
        *,
        pooler: bool,
    ) -> None:
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
        embedding_output = self.embeddings(input_ids)
        # what the encoder reads is held until this returns
        if before_5:
            attention_mask = tokens_of(embedding_output, attention_mask)
            mask = bidirectional_mask_of_4(embedding_output, attention_mask)
        else:
            mask = bidirectional_mask(embedding_output, attention_mask)
        sequence_output = self.encoder(embedding_output, mask)
        pooled_output = None if self.pooler is None else self.pooler(sequence_output)
        return sequence_output, pooled_output


class MaskedLM(Module):
    """A model with a masked language modelling head; `names` are theirs in the family's class."""

    names: tuple[str, str]

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        model, head = (getattr(self, name) for name in self.names)
        sequence_output, _ = model(input_ids, attention_mask)
        prediction_scores = head(sequence_output)
        loss = class_loss(prediction_scores, labels)
        return Outputs(loss, prediction_scores)


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
