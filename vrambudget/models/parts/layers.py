"""The modules that all architectures are made of, as torch.nn and transformers have them.

Each registers its parameters in the order in which the real class does: it decides where they lie
in memory, and in which order an optimizer makes its states.
"""

from typing import Any

from vrambudget.engine.autocast import to
from vrambudget.engine.checkpoint import checkpoint
from vrambudget.engine.context import context, made_for
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.ops.creation import made
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add, mul
from vrambudget.ops.embedding import embedding
from vrambudget.ops.linear import addmm, linear, rows_by_matrix
from vrambudget.ops.norm import layer_norm
from vrambudget.ops.shape import flatten_rows, transpose, view
from vrambudget.tape.events import Purpose


class Linear(Module):
    """torch.nn.Linear: weight [O, I], bias [O]."""

    def __init__(self, features: int, out_features: int, *, bias: bool = True) -> None:
        self.weight = Parameter((out_features, features), context.options.dtype)
        self.bias = Parameter((out_features,), context.options.dtype) if bias else None

    @classmethod
    def sharing(cls, weight: Parameter) -> "Linear":
        """Return a layer without bias whose weight is another module's: no new memory."""
        layer = cls.__new__(cls)
        layer.weight, layer.bias = weight, None
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        return linear(x, self.weight, self.bias)


class FalconLinear(Linear):
    """transformers' FalconLinear: the bias is added to the product, not within it."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        hidden_states = rows_by_matrix(x, transpose(self.weight, 0, 1))
        return hidden_states if self.bias is None else add(hidden_states, self.bias)


class Conv1D(Module):
    """transformers' Conv1D, a linear layer with a transposed weight [I, O]."""

    weight: Parameter  # a program's, as its bias
    bias: Parameter

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] -> [..., O]."""
        y = addmm(self.bias, flatten_rows(x), self.weight)
        return view(y, *x.shape[:-1], self.weight.shape[1])


class Embedding(Module):
    """torch.nn.Embedding: weight [V, C]."""

    model_scales = False  # whether a decoder scales its output once its masks are made

    def __init__(self, rows: int, width: int) -> None:
        self.weight = Parameter((rows, width), context.options.dtype)

    def forward(self, indices: Tensor) -> Tensor:
        """[...] -> [..., C]."""
        return embedding(indices, self.weight)


class LayerNorm(Module):
    """torch.nn.LayerNorm over the last dimension."""

    def __init__(self, width: int, *, bias: bool = True, affine: bool = True) -> None:
        self.weight = Parameter((width,), context.options.dtype) if affine else None
        self.bias = Parameter((width,), context.options.dtype) if affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        return layer_norm(x, self.weight, self.bias)


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


class Dropout(Module):
    """torch.nn.Dropout."""

    def __init__(self, p: float) -> None:
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """[...] -> [...]."""
        return dropout(x, self.p, training=self.training)


class CheckpointedLayer(Layer):
    """A layer that recomputes itself in backward (transformers' GradientCheckpointingLayer).

    Positional arguments are the checkpoint's inputs; keyword arguments ride along in the closure.
    """

    attention_type = "full_attention"  # of a decoder's layer, which knows its own in transformers
    ranks = 1  # that share its heads and its inner width

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, checkpointed if the job says so."""
        if context.options.checkpointing and self.training:
            call = super().trace
            return checkpoint(lambda *inputs: call(*inputs, **kwargs), *args)
        return super().trace(*args, **kwargs)
