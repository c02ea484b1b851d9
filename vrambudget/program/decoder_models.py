"""Recorded decoders as models: what their own code does to embeddings and logits."""

from typing import TYPE_CHECKING

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import Model
from vrambudget.models.parts.layers import Dropout
from vrambudget.ops.dropout import dropout
from vrambudget.program.values import operation

if TYPE_CHECKING:
    from vrambudget.program.decoders import PlayedDecoderConfig


class PlayedModel(Model):
    """A model whose embeddings may be multiplied, as the program says."""

    config: "PlayedDecoderConfig"

    def finish(self) -> None:
        """Make what comes after the layers."""
        super().finish()
        drops = self.config.program.source.get("drops")
        if drops is not None:
            self.holds_embeddings = drops["holds"]
            if drops["module"]:
                setattr(self, drops["module"], Dropout(self.config.said[drops["key"]]))

    def embedded(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        y = super().embedded(input_ids)
        for name in self.config.program.source["entered"]:
            y = operation(name)(y)
        return y

    def entered(self, inputs_embeds: Tensor) -> Tensor:
        """Drop embeddings out [B, T, C]."""
        drops = self.config.program.source.get("drops")
        if drops is None:
            return inputs_embeds
        if drops["module"]:
            y: Tensor = getattr(self, drops["module"])(inputs_embeds)
            return y
        return dropout(inputs_embeds, self.config.said[drops["key"]], training=self.training)


class PlayedCausalLM(CausalLM):
    """A language model whose logits may be multiplied, as the program says."""

    config: "PlayedDecoderConfig"

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, V]."""
        y = super().logits(hidden_states)
        if self.config.said.get("final_logit_softcapping", 1.0) is None:
            return y
        for name in self.config.program.source["logits"]:
            y = operation(name)(y)
        return y
