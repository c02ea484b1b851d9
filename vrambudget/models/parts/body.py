"""Decoders without a head, as AutoModel builds them: they return hidden states [B, T, C]."""

from vrambudget.config.model_config import ModelConfig
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import CachesKeysAndValues
from vrambudget.models.parts.outputs import Outputs


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
