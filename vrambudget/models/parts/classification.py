"""A classifier of sequences on a decoder (transformers' GenericForSequenceClassification).

    logits  [B, T, labels]   of every token; each row keeps those of its last that is not padding

Without a padding token a batch may hold one row, whose last token it is. GPT-2, GPT-NeoX and OPT
have their own classes, which do the same.

Source: modeling_layers.py of transformers 5.17.
Not modelled: regression (`num_labels` 1) runs as a classification.
"""

from vrambudget.config.model_config import ModelConfig
from vrambudget.dtypes import bool_, int32, int64
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import CachesKeysAndValues
from vrambudget.models.parts.layers import Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.creation import arange, made
from vrambudget.ops.indexing import index_pairs, index_rows
from vrambudget.ops.shape import select
from vrambudget.tape.events import Purpose


class SequenceClassifier(CachesKeysAndValues):
    """A model [B, T] -> [B, T, C] and a linear layer on top; `name` is the model's in its class."""

    def __init__(
        self, config: ModelConfig, model: Module, width: int, *, name: str = "model"
    ) -> None:
        self.config = config
        self.pads = config.pad_token_id is not None
        self.name = name
        setattr(self, name, model)
        self.score = Linear(width, config.num_labels, bias=False)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, labels]."""
        B, T = input_ids.shape
        cache = self.past(None, use_cache=None)
        model = getattr(self, self.name)
        hidden_states = model(input_ids, attention_mask, past_key_values=cache)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.score(hidden_states)
            if self.pads or B > 1:  # more than one row: the user named a padding token
                is_token = made("ne", (B, T), bool_)
                non_pad_mask = made("to_copy", (B, T), int32)
                del is_token
                token_indices = made("arange", (T,), int32)
                last = _argmax(made("mul", (B, T), int32))
                pooled_logits = index_pairs(logits, arange(B), last)
                held = [non_pad_mask, token_indices, last]
            else:
                pooled_logits = index_rows(select(logits, 1), arange(B))
                held = []
        loss = class_loss(pooled_logits, labels)
        del held
        return Outputs(loss, pooled_logits, past_key_values=cache)


def _argmax(x: Tensor) -> Tensor:
    return made("argmax", x.shape[:1], int64)
