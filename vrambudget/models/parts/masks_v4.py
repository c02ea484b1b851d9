"""Masks that families of transformers 4.57 make themselves: added to the scores, as floats.

    encoders   [B, 1, T, T] for sdpa, [B, 1, 1, T] for eager attention
    OPT        [B, 1, T, T]

For sdpa it is read back whether all tokens are visible; encoders then build no mask. Models that
are given no mask make one of ones; `options.full_rows` is the result of that check.

Source: modeling_attn_mask_utils.py (_prepare_4d_attention_mask_for_sdpa, AttentionMaskConverter),
modeling_utils.py (get_extended_attention_mask), models/opt/modeling_opt.py of transformers 4.57.
"""

from vrambudget.dtypes import DType, bool_, float32, promote
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import iterated_strides
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.shape import expand, view


def tokens_of(embeddings: Tensor, padding: Tensor | None) -> Tensor:
    """Return a tokenizer's mask [B, T], or one of ones instead, which the model holds."""
    return made("ones", embeddings.shape[:2], float32) if padding is None else padding


def bidirectional_mask_of_4(embeddings: Tensor, tokens: Tensor) -> Tensor | None:
    """Return an encoder's mask for embeddings [B, T, C] and tokens [B, T]."""
    if context.options.attention == "eager":
        return _extended(tokens, embeddings.dtype)
    _all_ones(tokens)
    return None if context.options.full_rows else _expanded(tokens, embeddings.dtype)


def _extended(tokens: Tensor, dtype: DType) -> Tensor:
    """(1.0 - tokens.to(dtype)) * lowest: [B, 1, 1, T]."""
    B, T = tokens.shape
    cast = made("to_dtype", (B, 1, 1, T), dtype) if tokens.dtype is not dtype else None
    inverted = made("sub", (B, 1, 1, T), dtype)
    mask = made("mul", (B, 1, 1, T), dtype)
    del inverted, cast
    return mask


def _expanded(tokens: Tensor, dtype: DType) -> Tensor:
    """AttentionMaskConverter._expand_mask: [B, 1, T, T]."""
    B, T = tokens.shape
    shape = (B, 1, T, T)
    expanded = expand(view(tokens, B, 1, 1, T), *shape)
    if expanded.dtype is not dtype:
        expanded = made("to_dtype", shape, dtype)
    context.operation = "sub"
    inverted = empty(shape, dtype, iterated_strides(shape, (expanded,)))
    masked = made("to_dtype", shape, bool_)
    context.operation = "masked_fill"
    mask = empty(shape, dtype, inverted.strides)
    del masked, inverted
    return mask


def additive_causal_mask(embeddings: Tensor, tokens: Tensor) -> Tensor | None:
    """OPTDecoder._update_causal_mask for embeddings [B, T, C] and tokens [B, T]."""
    B, T = embeddings.shape[:2]
    dtype, is_sdpa = embeddings.dtype, context.options.attention == "sdpa"
    if is_sdpa:
        _all_ones(tokens)
        if context.options.full_rows:
            return None
    mask = made("full", (T, T), dtype)
    if T > 1:
        mask = made("triu", (T, T), dtype)
    places = arange(T)
    after = made("gt", (T, T), bool_)
    del places, after
    mask = made("clone", (B, 1, T, T), dtype)
    padded = made("add", (B, 1, T, T), promote(dtype, tokens.dtype))
    padding = made("eq", (B, 1, T, T), bool_)
    del padded
    filled = made("masked_fill", (B, 1, T, T), dtype)
    del filled, padding
    return _unmask_unattended(mask) if is_sdpa else mask


def _unmask_unattended(mask: Tensor) -> Tensor:
    """mask.mul(~torch.all(mask == lowest, dim=-1, keepdim=True))."""
    lowest = made("eq", mask.shape, bool_)
    rows = made("all", (*mask.shape[:-1], 1), bool_)
    with_partial_sums(lowest, (-1,), accumulator=1)
    del lowest
    others = made("bitwise_not", rows.shape, bool_)
    del rows
    unmasked = made("mul", mask.shape, mask.dtype)
    del others
    return unmasked


def _all_ones(tokens: Tensor) -> None:
    """torch.all(tokens == 1), read back."""
    are_ones = made("eq", tokens.shape, bool_)
    every = made("all", (), bool_)
    with_partial_sums(are_ones, (0, 1), accumulator=1)
    del are_ones, every
