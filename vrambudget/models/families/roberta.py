"""RoBERTa as transformers writes it (models/roberta/modeling_roberta.py): BERT's layers.

Positions are counted from the tokens that are no padding, so token types are gathered for every
row, and the first positions of the table are padding's; the classifier has its own layer.

Not modelled: what `encoder.py` does not; regression (`num_labels` 1) runs as a classification.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.settings import Field, Size
from vrambudget.dtypes import bool_, int32, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.encoder import EncoderConfig
from vrambudget.models.parts.encoder_model import (
    EncoderEmbeddings,
    MaskedLM,
    Model,
    PositionBuffers,
    tie_decoder,
)
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import gelu, tanh
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import open_slices, select
from vrambudget.tape.events import Purpose


class Embeddings(EncoderEmbeddings):
    """RobertaEmbeddings."""

    def __init__(self, config: "RobertaConfig") -> None:
        width = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        if not transformers_since(5, 0):  # made twice; the first goes when the second is there
            self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = Embedding(config.type_vocab_size, width)
        self.LayerNorm = LayerNorm(width)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.buffers = PositionBuffers(config.max_position_embeddings)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)

    def position_ids(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T]: counted from the tokens that are no padding."""
        return count_positions(*input_ids.shape)


def count_positions(B: int, T: int, *, adds_past: bool = True) -> Tensor:
    """create_position_ids_from_input_ids: cumsum(is token) * (is token) + padding_idx, [B, T].

    `adds_past`: the number of tokens before these, if only 0.
    """
    is_token = made("ne", (B, T), bool_)
    mask = made("to_copy", (B, T), int32)
    del is_token
    counted = cumsum(mask, int64)
    counted = made("to_copy", (B, T), int32)
    if adds_past:
        counted = made("add", (B, T), int32)
    counted = made("mul", (B, T), int32)
    indices = made("to_copy", (B, T), int64)
    position_ids = made("add", (B, T), int64)
    del mask, counted, indices
    return position_ids


class WithWords(EncoderConfig):
    """An encoder's keys, and how many words it has."""

    vocab_size: Size


class LMHead(Module):
    """RobertaLMHead: its bias is the decoder's, once they are tied."""

    def __init__(self, config: WithWords) -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = LayerNorm(config.hidden_size)
        self.decoder = Linear(config.hidden_size, config.vocab_size)
        self.bias = Parameter((config.vocab_size,), context.options.dtype)
        if not transformers_since(5, 0):
            self.decoder.bias = self.bias

    def forward(self, features: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        x = self.dense(features)
        x = gelu(x)
        x = self.layer_norm(x)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.decoder(x)
        return logits


class ClassificationHead(Module):
    """RobertaClassificationHead."""

    def __init__(self, config: EncoderConfig) -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size)
        self.dropout = Dropout(config.head_dropout)
        self.out_proj = Linear(config.hidden_size, config.num_labels)

    def forward(self, features: Tensor) -> Tensor:
        """[B, T, C] -> [B, num_labels]."""
        x = select(open_slices(features, 1), 1)
        x = open_slices(x, 1)  # [:, 0, :], <s>, the first token
        x = self.dropout(x)
        x = self.dense(x)
        x = tanh(x)
        x = self.dropout(x)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.out_proj(x)
        return logits


class RobertaForMaskedLM(MaskedLM):
    """RoBERTa with a masked language modelling head."""

    names = ("roberta", "lm_head")

    def __init__(self, config: "RobertaConfig") -> None:
        self.roberta = Model(config, Embeddings(config), pooler=False)
        self.lm_head = LMHead(config)
        if config.tie_word_embeddings:
            words = self.roberta.embeddings.word_embeddings
            tie_decoder(self.lm_head.decoder, words, self.lm_head.bias)


class RobertaForSequenceClassification(Module):
    """RoBERTa with a classifier of the first token."""

    def __init__(self, config: "RobertaConfig") -> None:
        self.roberta = Model(config, Embeddings(config), pooler=False)
        self.classifier = ClassificationHead(config)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        sequence_output, _ = self.roberta(input_ids, attention_mask)
        logits = self.classifier(sequence_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class RobertaConfig(WithWords):
    """transformers' RobertaConfig, with its defaults."""

    model_type: Literal["roberta"] = "roberta"
    vocab_size: Size = 50265
    pad_token_id: Annotated[int, Field(ge=0)] = 1

    followed_in = ("4.57", "5.17", "5.23", "5.24")

    @property
    def default_block(self) -> int:
        """Tokens per sequence where a job names none."""
        return self.learned_positions

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions but those up to padding's."""
        return self.max_position_embeddings - self.pad_token_id - 1

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.learned_positions < 1:
            yield (
                f"max_position_embeddings is {self.max_position_embeddings}; the first"
                f" {self.pad_token_id + 1} are padding's (pad_token_id + 1), and none is left"
            )

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self, Embeddings(self), pooler=True))

    def build(self, task: Task) -> RobertaForMaskedLM | RobertaForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return RobertaForMaskedLM(self)
        return RobertaForSequenceClassification(self)
