"""What a mask allows, as transformers 5 composes it (masking_utils.py): functions of positions.

Each is called with indices that broadcast, and makes its part of the mask.
"""

from collections.abc import Callable

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.tensor import Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import broadcast
from vrambudget.ops.shape import view

MaskFunction = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From batch [B,1,1,1], query [1,1,Sq,1], key [1,1,1,Sk] to what broadcasts to [B,1,Sq,Sk]."""


def not_after(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return which keys are not after each query."""
    del batch
    return made("le", (1, 1, query.shape[2], key.shape[3]), bool_)


def within_window(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return which keys are among the last of a window."""
    del batch
    oldest = made("sub", query.shape, int64)
    seen = made("gt", (1, 1, query.shape[2], key.shape[3]), bool_)  # key > query - window
    del oldest
    return seen


def same_sequence(packed: Tensor) -> MaskFunction:
    """Return the function of keys that are in the same of the packed sequences."""

    def same(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # packed at (batch, query) against packed at (batch, key)
        of_query = _indexed(packed, batch.shape[0], query.shape[2])
        of_key = _indexed(packed, batch.shape[0], key.shape[3])
        equal = made("eq", (batch.shape[0], 1, query.shape[2], key.shape[3]), bool_)
        del of_query, of_key
        return equal

    return same


def is_token(padding: Tensor) -> MaskFunction:
    """Return the function of keys that are no padding."""

    def token(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del query
        rows = _indexed(padding, batch.shape[0], key.shape[3])
        return view(rows, batch.shape[0], 1, 1, key.shape[3])

    return token


def _indexed(packed: Tensor, batch: int, length: int) -> Tensor:
    """packed[b, t]: an index tensor that must be expanded to the other's shape is copied first."""
    rows = made("index", (batch, length), int64) if length > 1 else None
    columns = made("index", (batch, length), int64) if batch > 1 else None
    result = made("index", (batch, length), packed.dtype)
    del rows, columns
    return result


def and_masks(*functions: MaskFunction) -> MaskFunction:
    """Return the mask of what all functions allow, starting from True; each `&` is a new tensor.

    Before 5.0, under vmap, the True is as many as there are queries.
    """

    def every(batch: Tensor, query: Tensor, key: Tensor) -> Tensor:
        result = made("new_ones", () if transformers_since(5, 0) else query.shape, bool_)
        for function in functions:
            part = function(batch, query, key)
            both = made("bitwise_and", broadcast(result.shape, part.shape), bool_)
            del part
            result = both  # only now the one before goes
        return result

    return every
