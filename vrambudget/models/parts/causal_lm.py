"""What transformers' causal language models have in common: a forward pass, a head, its loss.

A family says what its body is called (`base_model_prefix`, as transformers names it), and
overrides `logits` or `kept` where its own code does otherwise.

Source: models/llama/modeling_llama.py (LlamaForCausalLM.forward) and its namesakes, 5.17.
"""

from typing import ClassVar

from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import Cache, CachesKeysAndValues
from vrambudget.models.parts.losses import causal_lm_loss, last_tokens
from vrambudget.models.parts.outputs import Outputs
from vrambudget.tape.events import Purpose


class LanguageModel(CachesKeysAndValues):
    """A body [B, T] -> [B, T, C], and `lm_head`, to [B, T, V]."""

    base_model_prefix: ClassVar[str] = "model"

    lm_head: Module

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

    def kept(self, hidden_states: Tensor, logits_to_keep: int) -> Tensor:
        """Return the tokens [B, K, C] that get logits; all for 0."""
        return last_tokens(hidden_states, logits_to_keep)

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, K, C] -> [B, K, V]."""
        y: Tensor = self.lm_head(hidden_states)
        return y
