"""Matrix products and embeddings."""

from typing import Any

from vrambudget.engine.context import context
from vrambudget.errors import NotModelledError
from vrambudget.ops import embedding as embeddings
from vrambudget.ops import linear as products
from vrambudget.ops.grouped import grouped_linear
from vrambudget.ops.shape import transpose
from vrambudget.traced.rules.table import on
from vrambudget.traced.tensor import REHEARSE

_MATRIX = 2


def _clash(a: Any, b: Any) -> bool:
    """Return whether PyTorch would refuse to multiply what has two types."""
    return context.autocast is None and a.dtype is not b.dtype


@on("linear")
def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """X @ weight.T + bias."""
    if weight.ndim != _MATRIX or x.ndim < _MATRIX or _clash(x, weight):
        return NotImplemented
    return products.linear(x, weight, bias)


@on("addmm")
def addmm(bias: Any, x: Any, weight: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Bias + x @ weight."""
    if (beta, alpha) != (1, 1) or bias.ndim != 1 or _clash(x, weight):
        return NotImplemented
    return products.addmm(bias, x, weight)


@on("matmul", "__matmul__")
def matmul(a: Any, b: Any) -> Any:
    """Multiply stacks of matrices."""
    if _clash(a, b):
        return NotImplemented
    batched = a.ndim == b.ndim > _MATRIX and a.shape[:-2] == b.shape[:-2]
    return products.matmul(a, b) if batched and a.ndim > 3 else NotImplemented  # noqa: PLR2004


@on("_grouped_mm", "grouped_mm")
def grouped_mm(x: Any, weight: Any, *, offs: Any = None, bias: Any = None, **_: Any) -> Any:
    """Multiply groups of rows, each by a matrix of its own: weight [E, I, O], seen as [E, O, I]."""
    if offs is None or bias is not None or x.ndim != _MATRIX or weight.ndim != _MATRIX + 1:
        return NotImplemented
    return grouped_linear(x, transpose(weight, 1, 2), offs)


@on(
    "gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell", "gru", "lstm", "rnn_tanh", "rnn_relu"
)
def recurrent(*_: Any, **__: Any) -> Any:
    """Refuse: on the GPU these run fused kernels, or cuDNN's (aten/src/ATen/native/RNN.cpp)."""
    raise NotModelledError("recurrent layers run fused kernels on the GPU", hint=REHEARSE)


@on("embedding")
def embedding(first: Any, second: Any, *args: Any, **options: Any) -> Any:
    """Rows of a weight: torch's takes the weight first, functional's the indices."""
    weight, indices = (first, second) if first.dtype.is_floating_point else (second, first)
    special = options.get("sparse") or options.get("max_norm") or options.get("scale_grad_by_freq")
    if special or any(value is True for value in args):
        return NotImplemented
    return embeddings.embedding(indices, weight)
