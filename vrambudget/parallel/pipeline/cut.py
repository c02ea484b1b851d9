"""Which layers are whose: stages cut by number of layers as evenly as possible.

The first stage has the embedding, the last one the norm and the head. A rank's stages are `ranks`
apart (interleaved).

Source: torchtitan/models/llama3/model/model.py (Transformer.forward reads what a stage has).
"""

from vrambudget.config.device_mesh import REHEARSE
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.families.titan import Block, Trained, Transformer
from vrambudget.tape.events import Purpose


class Piece(Module):
    """What a stage has of a model."""

    def __init__(
        self, model: Transformer, layers: list[Block], *, is_first: bool, is_last: bool
    ) -> None:
        self.tok_embeddings = model.tok_embeddings if is_first else None
        self.freqs_cis = model.freqs_cis.detach()  # each stage makes its own
        self.layers = layers
        self.norm = model.norm if is_last else None
        self.output = model.output if is_last else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, T] in the first stage, else [B, T, C] -> logits in the last one, else [B, T, C]."""
        h = x if self.tok_embeddings is None else self.tok_embeddings(x)
        for layer in self.layers:
            h = layer(h, self.freqs_cis)
        if self.norm is None or self.output is None:
            return h
        h = self.norm(h)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits: Tensor = self.output(h)
        return logits


def pieces_of(model: Module, *, stages: int, own: range) -> list[Piece]:
    """Return the pieces of a model, cut into `stages`, that a rank has. Raises NotModelledError."""
    if not isinstance(model, Trained):
        raise NotModelledError(
            f"a pipeline of {type(model).__name__} is not modelled: torchtitan's Llama is",
            hint=f"model_type titan is the architecture of Llama 3; {REHEARSE}",
        )
    count = len(model.model.layers)
    if stages > count:
        raise NotModelledError(
            f"{count} layers cannot be cut into {stages} stages", hint="use fewer ranks or stages"
        )
    cuts = [count * i // stages for i in range(stages + 1)]
    return [
        Piece(
            model.model,
            model.model.layers[cuts[i] : cuts[i + 1]],
            is_first=i == 0,
            is_last=i == stages - 1,
        )
        for i in own
    ]
