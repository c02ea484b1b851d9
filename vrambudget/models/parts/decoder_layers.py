"""A decoder's norms, whose forward is a program's, and embeddings that are multiplied."""

from vrambudget.engine.autocast import to
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.layers import Embedding
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import mul
from vrambudget.tape.events import Purpose


class Norm(Module):
    """A norm of the last dimension: weight [C]."""

    def __init__(self, width: int) -> None:
        self.weight = Parameter((width,), context.options.dtype)


class ScaledEmbedding(Embedding):
    """GemmaTextScaledWordEmbedding: the scale is a buffer of the weights' type.

    Before 5.4 the model itself scales, by a number, when masks and positions are made.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__(rows, width)
        self.model_scales = not transformers_since(5, 4)
        if self.model_scales:
            return
        with made_for(Purpose.WEIGHTS):
            self.embed_scale = made("tensor", (), context.options.dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., C]."""
        inputs_embeds = super().forward(indices)
        if self.model_scales:
            return inputs_embeds
        return mul(inputs_embeds, to(self.embed_scale, self.weight.dtype))
