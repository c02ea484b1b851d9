"""ELECTRA as transformers writes it (models/electra/modeling_electra.py): BERT's layers.

Embeddings may be narrower than the layers: a projection lies between. The discriminator is what
people fine-tune, as a classifier; the masked language model is its generator.

Not modelled: what `encoder.py` does not; the discriminator's own pretraining (which tokens were
replaced); regression (`num_labels` 1) runs as a classification.
"""

from typing import Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.settings import Size
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.families.bert import BertLike, Embeddings
from vrambudget.models.families.roberta import ClassificationHead
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.encoder_model import Model, tie_decoder
from vrambudget.models.parts.layers import LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.elementwise import gelu
from vrambudget.tape.events import Purpose


class GeneratorPredictions(Module):
    """ElectraGeneratorPredictions."""

    def __init__(self, config: "ElectraConfig") -> None:
        self.LayerNorm = LayerNorm(config.embedding_size)
        self.dense = Linear(config.hidden_size, config.embedding_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, E]."""
        hidden_states = self.dense(hidden_states)
        hidden_states = gelu(hidden_states)
        normed: Tensor = self.LayerNorm(hidden_states)
        return normed


class ElectraForMaskedLM(Module):
    """ELECTRA with a masked language modelling head: the generator."""

    def __init__(self, config: "ElectraConfig") -> None:
        self.electra = config.model()
        self.generator_predictions = GeneratorPredictions(config)
        self.generator_lm_head = Linear(config.embedding_size, config.vocab_size)
        if config.tie_word_embeddings:
            words = self.electra.embeddings.word_embeddings
            tie_decoder(self.generator_lm_head, words, None)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        sequence_output, _ = self.electra(input_ids, attention_mask)
        prediction_scores = self.generator_predictions(sequence_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            prediction_scores = self.generator_lm_head(prediction_scores)
        loss = class_loss(prediction_scores, labels)
        return Outputs(loss, prediction_scores)


class ElectraForSequenceClassification(Module):
    """ELECTRA with a classifier of the first token."""

    def __init__(self, config: "ElectraConfig") -> None:
        self.electra = config.model()
        self.classifier = ClassificationHead(config, gelu)  # ElectraClassificationHead

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        sequence_output, _ = self.electra(input_ids, attention_mask)
        logits = self.classifier(sequence_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class ElectraConfig(BertLike):
    """transformers' ElectraConfig, with its defaults."""

    model_type: Literal["electra"] = "electra"
    embedding_size: Size = 128
    hidden_size: Size = 256
    num_attention_heads: Size = 4
    intermediate_size: Size = 1024

    followed_in = ("5.17",)
    ignored_keys = BertLike.ignored_keys | {
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout"),
    }

    def model(self) -> Model:
        """ElectraModel."""
        narrow, width = self.embedding_size, self.hidden_size
        embeddings = Embeddings(self, narrow)
        projection = None if narrow == width else Linear(narrow, width)
        return Model(self, embeddings, projection, pooler=False)

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(self.model())

    def build(self, task: Task) -> ElectraForMaskedLM | ElectraForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return ElectraForMaskedLM(self)
        return ElectraForSequenceClassification(self)
