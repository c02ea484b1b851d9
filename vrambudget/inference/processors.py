"""Logits processors: a last token that a configuration forces, and what sampling has.

Sampling's are those of its defaults and options, in the order of `generate`.

Source: generation/logits_process.py of transformers 5.17 (ForcedEOSTokenLogitsProcessor,
TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper), generation/utils.py
(_get_logits_processor).
"""

from collections.abc import Callable
from functools import partial

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.inference.settings import GenerateSettings
from vrambudget.ops.creation import made
from vrambudget.ops.fill import masked_fill
from vrambudget.ops.sampling import sort_rows, topk_of_rows
from vrambudget.ops.scan import cumsum
from vrambudget.ops.softmax import softmax

Processor = Callable[[Tensor], Tensor]
"""From scores [B, V] to scores, a new tensor."""


def processors_of(settings: GenerateSettings) -> list[Processor]:
    """Return what changes the scores before a token is sampled."""
    if not settings.sample:
        return []
    found: list[Processor] = []
    if settings.temperature != 1:
        found.append(_divided)
    if settings.top_k:
        found.append(partial(_largest, count=settings.top_k))
    if settings.top_p < 1:
        found.append(_most_probable)
    return found


def forced_token() -> Tensor:
    """ForcedEOSTokenLogitsProcessor: the token [1], which is looked at to be positive."""
    token = made("to_device", (1,), int64)
    is_negative = made("lt", (1,), bool_)
    found = made("any", (), bool_)
    del is_negative, found
    return token


def scores_of_forced_token(scores: Tensor) -> Tensor:
    """Return scores [B, V] of the last step: minus infinity but for the token."""
    forced = made("full_like", scores.shape, float32)
    made("index_put_", (), float32)  # its zero; freed at once
    return forced


def _divided(scores: Tensor) -> Tensor:
    return made("div", scores.shape, float32)


def _largest(scores: Tensor, count: int) -> Tensor:
    values, indices = topk_of_rows(scores, min(count, scores.shape[1]))
    del indices
    indices_to_remove = made("lt", scores.shape, bool_)
    del values
    return masked_fill(scores, indices_to_remove)


def _most_probable(scores: Tensor) -> Tensor:
    sorted_logits, sorted_indices = sort_rows(scores)
    cumulative_probs = cumsum(softmax(sorted_logits), float32)
    sorted_indices_to_remove = made("le", scores.shape, bool_)
    indices_to_remove = made("scatter", scores.shape, bool_)
    processed = masked_fill(scores, indices_to_remove)
    # held until here, as the function's variables are
    del sorted_logits, sorted_indices, cumulative_probs
    del sorted_indices_to_remove, indices_to_remove
    return processed
