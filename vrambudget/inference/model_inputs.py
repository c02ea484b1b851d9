"""What a pass of `generate` hands the model, and how it becomes longer.

Source: generation/utils.py of transformers 5.17 (_prepare_position_ids_for_generation,
prepare_inputs_for_generation, _update_model_kwargs_for_generation).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import AnyCache
from vrambudget.models.parts.masks import Masks
from vrambudget.ops.creation import arange, made
from vrambudget.ops.scan import cumsum
from vrambudget.ops.shape import cat


@dataclass(slots=True)
class ModelInputs:
    """What prepare_inputs_for_generation hands the model."""

    input_ids: Tensor
    attention_mask: Tensor | Masks | None  # [B, tokens so far], or what is built of it
    position_ids: Tensor | None
    past_key_values: AnyCache | None

    def tensors(self) -> Iterator[Tensor | None]:
        """Yield all of them but the cache's."""
        masks = self.attention_mask
        yield from (self.input_ids, self.position_ids)
        yield from masks.values() if isinstance(masks, dict) else (masks,)


def with_tokens(input_ids: Tensor, tokens: Tensor) -> Tensor:
    """[B, T] and the new tokens [B] -> [B, T + 1]."""
    return cat([input_ids, tokens.viewed((tokens.shape[0], 1), None)], dim=-1)


def with_ones(attention_mask: Tensor) -> Tensor:
    """[B, T] -> [B, T + 1]."""
    ones = made("new_ones", (attention_mask.shape[0], 1), int64)
    return cat([attention_mask, ones], dim=-1)


def next_positions(position_ids: Tensor) -> Tensor:
    """[B, T] -> [B, T + 1]."""
    rows = position_ids.shape[0], 1
    offset = arange(1)
    following = made("add", rows, int64)
    del offset
    following = made("add", rows, int64)
    return cat([position_ids, following], dim=-1)


def positions_of(attention_mask: Tensor) -> Tensor:
    """_prepare_position_ids_for_generation: [B, T]."""
    counts = cumsum(attention_mask, int64)
    position_ids = made("sub", attention_mask.shape, int64)
    del counts
    is_padding = made("eq", attention_mask.shape, bool_)
    filled = made("masked_fill", attention_mask.shape, int64)
    del is_padding, position_ids
    return filled
