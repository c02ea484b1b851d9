"""The masks of transformers 5 and 4.57 (masking_utils.py), and what building them allocates.

Called with a tokenizer's attention mask [B, T] of a batch that has padding, a model builds a mask
[B, 1, T, T] from it; for sdpa it reads back whether the mask is needed: not if all are ones.

A decoder called without one checks whether its rows are packed (several sequences in one row): it
takes differences of the position ids and *reads the result back*. Rows that are not packed need no
mask for sdpa: the kernel's own causal flag is enough. `options.full_rows` is the result of that
check; it is False on a GPU whose memory reads as zeros.

Transformers 4.57 does not check: without a padding mask, it treats rows as packed. With a cache of
keys and values nothing does.
"""

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.mask_building import (
    Span,
    built,
    for_attention,
    offset_arange,
    sdpa_mask,
)
from vrambudget.models.parts.mask_functions import (
    MaskFunction,
    and_masks,
    is_token,
    not_after,
    same_sequence,
    within_window,
)
from vrambudget.ops.creation import arange, made
from vrambudget.ops.reduce import count_true
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import expand, narrowed, view

Masks = dict[str, Tensor | None]
"""By what a layer attends to: "full_attention", "sliding_attention"."""


PREPARED = 4  # dimensions of a mask that `generate` built


def positions(length: int) -> Tensor:
    """torch.arange(length) + past_seen_tokens: [1, T]; before 5.0 the range begins there."""
    indices = offset_arange(length) if transformers_since(5, 0) else arange(length)
    return view(indices, 1, length)


def look_for_padding(batch: int) -> None:
    """warn_if_padding_and_no_attention_mask: pad_token_id in input_ids[:, [-1, 0]]."""
    ends = made("to_device", (2,), int64)
    tokens = made("index", (batch, 2), int64)
    del ends
    equal = made("eq", (batch, 2), bool_)
    found = made("any", (), bool_)
    del equal, found, tokens


def causal_mask(
    embeddings: Tensor,
    position_ids: Tensor | None,
    padding: Tensor | None = None,
    past: Cache | None = None,
    *,
    skips: bool = True,
) -> Tensor | None:
    """create_causal_mask for embeddings [B, T, C]: [B, 1, T, S], bool for sdpa, else additive.

    A model without position ids does not check for packed rows, nor does one with a padding mask.
    `skips`: allow_is_causal_skip; without it there is always a mask.
    """
    if padding is not None and padding.ndim == PREPARED:
        return padding
    span = Span.of(embeddings, padding, past, is_sliding=False, skips=skips)
    if padding is not None:
        return _padded_mask(embeddings, padding, not_after, span)
    return _unpadded_mask(embeddings, None if past else position_ids, not_after, span)


def sliding_window_mask(
    embeddings: Tensor,
    position_ids: Tensor | None,
    window: int,
    padding: Tensor | None = None,
    past: Cache | None = None,
) -> Tensor | None:
    """create_sliding_window_causal_mask: each token sees itself and the window - 1 before it."""
    if padding is not None and padding.ndim == PREPARED:
        return padding
    function = and_masks(within_window, not_after)
    span = Span.of(embeddings, padding, past, is_sliding=True)
    if padding is not None:
        return _padded_mask(embeddings, padding, function, span, window=window)
    packing = None if past else position_ids
    return _unpadded_mask(embeddings, packing, function, span, window=window)


def _padded_mask(
    embeddings: Tensor,
    padding: Tensor,
    function: MaskFunction,
    span: Span,
    *,
    window: int | None = None,
) -> Tensor | None:
    """Return the mask for padding [B, tokens so far], None where sdpa needs none."""
    padding = made("to_dtype", padding.shape, bool_)
    mask = _mask_of_tokens(embeddings.shape[0], padding, function, span, window=window)
    return None if mask is None else for_attention(mask, embeddings)


def _mask_of_tokens(
    batch: int, padding: Tensor, function: MaskFunction, span: Span, *, window: int | None
) -> Tensor | None:
    """sdpa_mask: a static cache's keys go on behind the padding mask."""
    if span.keys + span.first_key > padding.shape[-1]:  # prepare_padding_mask
        padding = made("pad", (padding.shape[0], span.keys + span.first_key), bool_)
    if span.may_skip and _needs_no_mask(padding, span, window):
        return None
    return sdpa_mask(batch, span, and_masks(function, is_token(padding)))


def _needs_no_mask(padding: Tensor | None, span: Span, window: int | None) -> bool:
    """_ignore_causal_mask_sdpa: whether the kernel's own flag is enough.

    Of a padding mask it is read whether all are ones: for all tokens where queries and keys are as
    many or there is one query, and for the queries' part where nothing came before.
    """
    if padding is not None and padding.shape[-1] > span.keys:
        indices = offset_arange(span.keys)
        padding = made("index", (padding.shape[0], span.keys), bool_)
        del indices
    if window is not None and span.keys >= window:
        return False
    if span.queries in {1, span.keys} and (padding is None or _all_ones(padding)):
        return True
    if span.first_query:
        return False
    if padding is None:
        return True
    prompt = narrowed(padding, 1, span.queries)
    return _all_ones(prompt) and _no_ones_after(padding, span.queries)


def _no_ones_after(padding: Tensor, queries: int) -> bool:
    """Return whether a static cache's room behind the prompt is padding, which is read back."""
    rest = padding.shape[-1] - queries
    if rest:
        inverted = made("bitwise_not", (padding.shape[0], rest), bool_)
        return _all_ones(inverted)
    return True


def _all_ones(mask: Tensor) -> bool:
    """fast_all: mask.sum() == mask.numel(), read back."""
    total = count_true(mask)
    equal = made("eq", (), bool_)
    del total, equal
    return context.options.full_rows


def _unpadded_mask(
    embeddings: Tensor,
    position_ids: Tensor | None,
    function: MaskFunction,
    span: Span,
    *,
    window: int | None = None,
) -> Tensor | None:
    """Return the mask of a model called without a padding mask; sdpa skips what is_causal says."""
    packed = None
    if position_ids is not None:
        packed = _packed_sequence_mask(expand(position_ids, *embeddings.shape[:2]))
    if packed is not None:
        function = and_masks(function, same_sequence(packed))
    elif span.may_skip and _needs_no_mask(None, span, window):
        return None
    return built(embeddings, function, span)


def _packed_sequence_mask(position_ids: Tensor) -> Tensor | None:
    """find_packed_sequence_indices: [B, T] -> which sequence of its row each token belongs to."""
    B, T = position_ids.shape
    first = made("sub", (B, 1), int64)
    padded = made("diff", (B, T + 1), int64)
    difference = made("diff", (B, T), int64)
    del padded
    starts = made("ne", (B, T), bool_)
    indices = cumsum(starts, int64)
    del starts
    if not transformers_since(5, 0):
        return indices
    last = made("eq", (B,), bool_)
    every = made("all", (), bool_)
    del last, every, first, difference
    return None if context.options.full_rows else indices
