"""Attention of encoders by single operations, as BERT's and T5's code has it.

Source: models/bert/modeling_bert.py of transformers 5.17.
"""

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.ops.linear import matmul
from vrambudget.ops.shape import contiguous, transpose
from vrambudget.ops.softmax import softmax


def eager_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
    bias: Tensor | None = None,
) -> Attended:
    """BERT's and T5's eager_attention_forward: the softmax in the scores' dtype."""
    weights = mul_scalar(matmul(query, transpose(key, 2, 3)))
    if bias is not None:
        weights = add(weights, bias)
    if mask is not None:
        weights = add(weights, mask)
    weights = softmax(weights)
    weights = dropout(weights, dropout_p)
    output = matmul(weights, value)
    output = contiguous(transpose(output, 1, 2))
    return output, weights
