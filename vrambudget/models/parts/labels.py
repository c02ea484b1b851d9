"""What an encoder-decoder's decoder reads in training: the labels, one place to the right.

Source: models/t5/modeling_t5.py (_shift_right), models/bart/modeling_bart.py (shift_tokens_right).
"""

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made


def shift_right(labels: Tensor) -> Tensor:
    """[B, T] -> [B, T]: the start token, then all labels but the last."""
    B, T = labels.shape
    shifted = made("new_zeros", (B, T), int64)
    rest = made("clone", (B, T - 1), int64)
    del rest
    ignored = made("eq", (B, T), bool_)
    del ignored
    return shifted
