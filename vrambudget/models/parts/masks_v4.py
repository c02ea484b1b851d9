"""The mask that OPT of transformers 4.57 makes itself: added to the scores, as floats [B, 1, T, T].

For sdpa it is read back whether all tokens are visible. A model that is given no mask makes one of
ones; `options.full_rows` is the result of that check.

Source: modeling_attn_mask_utils.py (AttentionMaskConverter), models/opt/modeling_opt.py of
transformers 4.57.
"""

from vrambudget.dtypes import bool_, float32, promote
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import arange, made
from vrambudget.ops.reduce import with_partial_sums


def tokens_of(embeddings: Tensor, padding: Tensor | None) -> Tensor:
    """Return a tokenizer's mask [B, T], or one of ones instead, which the model holds."""
    return made("ones", embeddings.shape[:2], float32) if padding is None else padding


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
