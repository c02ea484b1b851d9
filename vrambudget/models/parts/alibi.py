"""ALiBi: a bias of attention's scores by the distance of key and query, as Falcon computes it.

    alibi [B * H, 1, S]   of the tokens so far [B, S], a slope for each head
    mask  [B, H, T, S]    the bias over sqrt(D), the lowest number where a token is not seen

Source: models/falcon/modeling_falcon.py (build_alibi_tensor, FalconModel.forward).
"""

import math

from vrambudget.dtypes import DType, bfloat16, bool_, float32, int32, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.scan import cumsum


def alibi_of(tokens: Tensor, heads: int, dtype: DType) -> Tensor:
    """build_alibi_tensor of a mask of tokens [B, S] int64: [B * H, 1, S]."""
    B, S = tokens.shape
    power = 2 ** math.floor(math.log2(heads))
    base, powers, slopes = _slopes(power)
    extra: list[Tensor] = []
    if power != heads:
        *extra, more = _slopes(heads - power)
        slopes = made("cat", (heads,), float32)
        del more
    counts = cumsum(tokens, int64)
    before = made("sub", (B, S), int64)
    del counts
    places = made("mul", (B, S), int64)
    del before
    cast = made("to_dtype", (heads, 1), bfloat16)
    alibi = made("mul", (B, heads, S), bfloat16)
    del cast
    result = alibi if dtype is bfloat16 else made("to_dtype", (B * heads, 1, S), dtype)
    del extra, base, powers, slopes, places  # held until here
    return result


def _slopes(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the base, `count` powers of it to raise it to, and the slopes."""
    base = made("full", (), float32)
    powers = made("arange", (count,), int32)
    return base, powers, made("pow", (count,), float32)


def numeric_mask(mask: Tensor, dtype: DType) -> Tensor:
    """Return a causal mask [B, 1, T, S] as zeros and the lowest number: eager attention's is."""
    if mask.dtype is not bool_:
        return mask
    zero = made("full", (), dtype)
    lowest = made("scalar_tensor", (), dtype)
    numbers = made("where", mask.shape, dtype)
    del zero, lowest
    return numbers


def biased_mask(mask: Tensor, heads: int, dtype: DType) -> Tensor:
    """Return the bias of each head, the lowest number where a mask [B, 1, T, S] hides a token."""
    B, _, T, S = mask.shape
    scaled = made("div", (B, heads, 1, S), dtype)
    hidden = made("lt", mask.shape, bool_)
    biased = made("masked_fill", (B, heads, T, S), dtype)
    del scaled, hidden
    return biased
