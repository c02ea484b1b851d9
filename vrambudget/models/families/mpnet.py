"""MPNet as transformers writes it (models/mpnet/modeling_mpnet.py), of many sentence embeddings.

RoBERTa's embeddings without token types, BERT's layers with T5's bias by distance: the encoder
copies it for every row [B, H, T, T], and all layers add it to their scores in place. There is one
way to attend, by single operations, and no checkpointing.

Not modelled: what `encoder.py` does not; regression (`num_labels` 1) runs as a classification.
"""

from typing import ClassVar, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.settings import Size
from vrambudget.dtypes import int64
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.roberta import (
    ClassificationHead,
    LMHead,
    WithWords,
    count_positions,
)
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.encoder import AddNorm, Intermediate, heads
from vrambudget.models.parts.encoder_model import Pooler, PositionBuffers, tie_decoder
from vrambudget.models.parts.layers import Dropout, Embedding, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.masks import additive_bidirectional_mask
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.ops.fill import add_
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import contiguous, expand, permute, transpose, unsqueeze, view
from vrambudget.ops.softmax import softmax


class Embeddings(Module):
    """MPNetEmbeddings."""

    def __init__(self, config: "MPNetConfig") -> None:
        width = config.hidden_size
        self.word_embeddings = Embedding(config.vocab_size, width)
        self.position_embeddings = Embedding(config.max_position_embeddings, width)
        self.LayerNorm = LayerNorm(width)
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.buffers = PositionBuffers(config.max_position_embeddings, token_types=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        position_ids = count_positions(*input_ids.shape, adds_past=False)
        inputs_embeds = self.word_embeddings(input_ids)
        position_embeddings = self.position_embeddings(position_ids)
        embeddings = add(inputs_embeds, position_embeddings)
        embeddings = self.LayerNorm(embeddings)
        dropped: Tensor = self.dropout(embeddings)
        del inputs_embeds, position_embeddings  # held until here
        return dropped


class SelfAttention(Module):
    """MPNetSelfAttention."""

    def __init__(self, config: "MPNetConfig") -> None:
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.q = Linear(width, width)
        self.k = Linear(width, width)
        self.v = Linear(width, width)
        self.o = Linear(width, width)
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, position_bias: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        q = heads(self.q(hidden_states), self.head_dim)
        k = heads(self.k(hidden_states), self.head_dim)
        v = heads(self.v(hidden_states), self.head_dim)
        scores = matmul(q, transpose(k, 2, 3))
        scores = mul_scalar(scores)
        scores = add_(scores, position_bias)
        if mask is not None:
            scores = add(scores, mask)
        probs = softmax(scores)
        probs = self.dropout(probs)
        c = matmul(probs, v)
        c = contiguous(permute(c, 0, 2, 1, 3))
        c = view(c, *c.shape[:2], -1)
        o: Tensor = self.o(c)
        del scores, probs, q, k, v  # held until here
        return o


class Attention(Module):
    """MPNetAttention."""

    def __init__(self, config: "MPNetConfig") -> None:
        self.attn = SelfAttention(config)
        self.LayerNorm = LayerNorm(config.hidden_size)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, position_bias: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        self_outputs = self.attn(hidden_states, mask, position_bias)
        normed: Tensor = self.LayerNorm(add(self.dropout(self_outputs), hidden_states))
        return normed


class Layer(Module):
    """MPNetLayer."""

    def __init__(self, config: "MPNetConfig") -> None:
        self.attention = Attention(config)
        self.intermediate = Intermediate(config)
        self.output = AddNorm(config, config.intermediate_size)

    def forward(self, hidden_states: Tensor, mask: Tensor | None, position_bias: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        attention_output = self.attention(hidden_states, mask, position_bias)
        intermediate_output = self.intermediate(attention_output)
        layer_output: Tensor = self.output(intermediate_output, attention_output)
        return layer_output


class Encoder(Module):
    """MPNetEncoder; buckets of distances are counted in main memory."""

    def __init__(self, config: "MPNetConfig") -> None:
        self.layer = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.relative_attention_bias = Embedding(
            config.relative_attention_num_buckets, config.num_attention_heads
        )

    def forward(self, hidden_states: Tensor, mask: Tensor | None) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        position_bias = self._position_bias(*hidden_states.shape[:2])
        for layer in self.layer:
            hidden_states = layer(hidden_states, mask, position_bias)
        return hidden_states

    def _position_bias(self, B: int, T: int) -> Tensor:
        """compute_position_bias: [B, H, T, T]."""
        buckets = made("to_device", (T, T), int64)
        values = self.relative_attention_bias(buckets)
        values = unsqueeze(permute(values, 2, 0, 1), 0)
        values = contiguous(expand(values, B, *values.shape[1:]))
        del buckets  # held until here
        return values


class Model(Module):
    """MPNetModel: hidden states [B, T, C] and, with a pooler, its output [B, C]."""

    def __init__(self, config: "MPNetConfig", *, pooler: bool) -> None:
        self.embeddings = Embeddings(config)
        self.encoder = Encoder(config)
        self.pooler = Pooler(config.hidden_size) if pooler else None
        self.embeddings.buffers.initialise()

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """[B, T] -> [B, T, C], [B, C]."""
        embedding_output = self.embeddings(input_ids)  # held until this returns
        mask = additive_bidirectional_mask(embedding_output, attention_mask)
        sequence_output = self.encoder(embedding_output, mask)
        pooled_output = None if self.pooler is None else self.pooler(sequence_output)
        return sequence_output, pooled_output


class MPNetForMaskedLM(Module):
    """MPNet with a masked language modelling head."""

    def __init__(self, config: "MPNetConfig") -> None:
        self.mpnet = Model(config, pooler=False)
        self.lm_head = LMHead(config)
        if config.tie_word_embeddings:
            words = self.mpnet.embeddings.word_embeddings
            tie_decoder(self.lm_head.decoder, words, self.lm_head.bias)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        sequence_output, _ = self.mpnet(input_ids, attention_mask)
        prediction_scores = self.lm_head(sequence_output)
        loss = class_loss(prediction_scores, labels)
        return Outputs(loss, prediction_scores)


class MPNetForSequenceClassification(Module):
    """MPNet with a classifier of the first token."""

    def __init__(self, config: "MPNetConfig") -> None:
        self.mpnet = Model(config, pooler=False)
        self.classifier = ClassificationHead(config)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        sequence_output, _ = self.mpnet(input_ids, attention_mask)
        logits = self.classifier(sequence_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class MPNetConfig(WithWords):
    """transformers' MPNetConfig, with its defaults; two of its positions are padding's."""

    model_type: Literal["mpnet"] = "mpnet"
    pad_token_id: int | None = 1
    vocab_size: Size = 30527
    relative_attention_num_buckets: Size = 32

    checkpointing: ClassVar[tuple[str, ...]] = ("none",)
    followed_in = ("5.17",)

    @property
    def learned_positions(self) -> int:
        """Rows of the table of positions but those up to padding's."""
        return self.max_position_embeddings - 2

    @property
    def default_block(self) -> int:
        """Tokens per sequence where a job names none."""
        return self.learned_positions

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self, pooler=True))

    def build(self, task: Task) -> MPNetForMaskedLM | MPNetForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return MPNetForMaskedLM(self)
        return MPNetForSequenceClassification(self)
