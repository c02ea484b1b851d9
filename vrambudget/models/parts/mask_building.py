"""A mask made of functions of positions: bool for sdpa, additive for eager attention.

    Span         how many queries and keys there are, and where each begin
    sdpa_mask    bool [B, 1, T, S]
    built        the same, or zeros and the lowest number, as the job's attention takes it

Source: masking_utils.py (_preprocess_mask_arguments, sdpa_mask, eager_mask) of transformers 5.17.
"""

from typing import NamedTuple, Self

from vrambudget.dtypes import DType, int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.mask_functions import MaskFunction
from vrambudget.ops.creation import arange, made
from vrambudget.ops.shape import expand, view


class Span(NamedTuple):
    """Queries, the keys that they see, and the positions of the first of each."""

    queries: int
    keys: int
    first_query: int = 0
    first_key: int = 0
    is_static: bool = False  # the keys are those that a static cache has room for
    skips: bool = True  # what the model says: sdpa's own flag may stand for the mask

    @classmethod
    def of(
        cls,
        embeddings: Tensor,
        padding: Tensor | None,
        past: Cache | None,
        *,
        is_sliding: bool,
        skips: bool = True,
    ) -> Self:
        """_preprocess_mask_arguments for embeddings [B, T, C]."""
        queries = embeddings.shape[1]
        if past is None:
            keys = queries if padding is None else padding.shape[-1]
            return cls(queries, keys, skips=skips)
        layer = past.layer_for_mask(is_sliding=is_sliding)
        keys, first_key = layer.mask_sizes(queries)
        return cls(queries, keys, layer.seen, first_key, past.is_static, skips)

    @property
    def may_skip(self) -> bool:
        """allow_is_causal_skip: a step that could be compiled always has a mask."""
        compiles = self.is_static and self.queries == 1
        return self.skips and context.options.attention == "sdpa" and not compiles


def built(embeddings: Tensor, function: MaskFunction, span: Span) -> Tensor:
    """Return the mask of all rows [B, 1, T, S] in the embeddings' dtype."""
    mask = sdpa_mask(embeddings.shape[0], span, function)
    return for_attention(mask, embeddings)


def for_attention(mask: Tensor, embeddings: Tensor) -> Tensor:
    """Return a bool mask as the job's attention takes it."""
    return _additive(mask, embeddings.dtype) if context.options.attention == "eager" else mask


def sdpa_mask(batch: int, span: Span, function: MaskFunction) -> Tensor:
    """Return the bool mask [B, 1, T, S] that sdpa gets; True marks what is attended to."""
    length, keys = span.queries, span.keys
    if transformers_since(5, 4):
        batch_arange, head_arange = arange(batch), arange(1)
        q_arange, kv_arange = offset_arange(length), offset_arange(keys)
    else:  # 4.57's, where the queries' positions are the model's own; 5.0 to 5.3 had a third order
        kv_arange, batch_arange, head_arange = arange(keys), arange(batch), arange(1)
        q_arange = kv_arange
    mask = function(
        view(batch_arange, batch, 1, 1, 1),
        view(q_arange, 1, 1, length, 1),
        view(kv_arange, 1, 1, 1, keys),
    )
    mask = expand(mask, batch, 1, length, keys)
    del batch_arange, head_arange, q_arange, kv_arange  # in the order of its variables
    return mask


def offset_arange(length: int) -> Tensor:
    """torch.arange(length) + offset: the sum is a new tensor even where the offset is 0."""
    plain = arange(length)
    result = made("add", (length,), int64)
    del plain
    return result


def _additive(mask: Tensor, dtype: DType) -> Tensor:
    """Return the mask of eager attention: zeros and the lowest number."""
    zero = made("tensor", (), dtype)
    minimum = made("where", (), dtype)
    additive = made("where", mask.shape, dtype)
    del minimum, zero
    return additive
