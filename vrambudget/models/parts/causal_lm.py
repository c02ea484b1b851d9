"""What transformers' causal language models have in common: a forward pass, a head, its loss.

Source: models/llama/modeling_llama.py (LlamaForCausalLM.forward) and its namesakes, 5.17.
"""

from typing import TYPE_CHECKING, ClassVar

from vrambudget.config.model_config import ModelConfig
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import Cache, CachesKeysAndValues
from vrambudget.models.parts.layers import Linear
from vrambudget.models.parts.losses import causal_lm_loss, last_tokens
from vrambudget.models.parts.outputs import Outputs
from vrambudget.tape.events import Purpose

if TYPE_CHECKING:
    from vrambudget.models.parts.decoder import DecoderConfig


class DecoderBody(CachesKeysAndValues):
    """A decoder's model [B, T] -> [B, T, C], which makes a cache of its own."""

    def __init__(self, config: ModelConfig, model: Module) -> None:
        self.config = config
        self.model = model

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        use_cache: bool | None = None,
    ) -> Outputs:
        """[B, T] -> [B, T, C], and the cache that holds its keys and values."""
        cache = self.past(None, use_cache)
        hidden_states = self.model(input_ids, attention_mask, past_key_values=cache)
        return Outputs(None, hidden_states, past_key_values=cache)


class CausalLM(CachesKeysAndValues):
    """A body [B, T] -> [B, T, C], and `lm_head`, to [B, T, V]."""

    base_model_prefix: ClassVar[str] = "model"  # what transformers calls the body

    config: "DecoderConfig"
    lm_head: Module

    def __init__(self, config: "DecoderConfig") -> None:
        self.config = config
        body = config.decoder()
        setattr(self, self.base_model_prefix, body)
        self.lm_head = Linear(config.embedding_width, config.vocab_size, bias=config.head_bias)
        if config.tie_word_embeddings:  # tie_weights: the head's own weight is freed
            self.lm_head.weight = body.module("embed_tokens").weight

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        *,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        num_items_in_batch: Tensor | None = None,
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V], or those of the last `logits_to_keep`."""
        past_key_values = self.past(past_key_values, use_cache)
        body = getattr(self, self.base_model_prefix)
        hidden_states = body(input_ids, attention_mask, position_ids, past_key_values)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.logits(self.kept(hidden_states, logits_to_keep))
        loss = causal_lm_loss(logits, labels, logits.shape[-1], num_items_in_batch)
        return Outputs(loss, logits, past_key_values=past_key_values)

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]: run the body alone."""
        body = getattr(self, self.base_model_prefix)
        states: Tensor = body(input_ids, attention_mask, position_ids)
        return states

    def kept(self, hidden_states: Tensor, logits_to_keep: int) -> Tensor:
        """Return the tokens [B, K, C] that get logits; all for 0."""
        all_of_them = self.config.keeps_all_logits
        return hidden_states if all_of_them else last_tokens(hidden_states, logits_to_keep)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, K, C] -> [B, K, V]."""
        y: Tensor = self.lm_head(hidden_states)
        if getattr(self.config, "final_logit_softcapping", 1.0) is None:
            return y
        for operation in self.config.logits_by:
            y = operation(y)
        return y
