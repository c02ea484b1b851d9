"""What CUDA kernels allocate besides their results, by aten operation, in a trace.

    pointwise, views, copies    nothing
    sorts, searches, moments    as `traced.orders` says
    matrix products             as `traced.products` says
    any other that is known     as `ops.temporaries` says

An operation that stands nowhere here is counted by its result alone, and `unchecked` names it.

Source: aten's own tags say which operations are pointwise.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch

from vrambudget.ops.temporaries import (
    BEFORE_RESULT,
    KERNELS,
    OPERATIONS,
    differences,
)
from vrambudget.traced import orders
from vrambudget.traced.examined import NOTHING_MORE
from vrambudget.traced.products import PRODUCTS, product
from vrambudget.traced.tensor import with_layouts

WITHOUT_RESULT = {
    *("index_put_", "_index_put_impl_", "masked_scatter_", "scatter_reduce_", "index_reduce_"),
}
"""Operations that write into an input and yet allocate."""

_ROWS = 2  # dimensions
_NORMS = {"linalg_vector_norm", "norm"}
_PLACES = {"argmax", "argmin"}
_REDUCTIONS = {*_PLACES, "sum", "mean", "amax", "amin", "any", "all", "prod", *_NORMS}

unchecked: set[str] = set()
"""Operations of the model that was traced last that were traced by their results alone."""


def not_modelled() -> Iterator[str]:
    """Yield what was counted by its result alone, as a report says it."""
    if unchecked:
        yield f"what the kernels of {', '.join(sorted(unchecked))} allocate besides their results"


def result_bytes(name: str, args: Any, result: Any) -> int | None:
    """Return how large a result's storage is where its shape does not say.

    Of a loss it is that of the differences. What unfold and fold return begins as large as their
    input and never shrinks (native/cuda/Im2Col.cu, Col2Im.cu).
    """
    if name in _COLUMNS:
        return int(max(args[0].numel(), result.numel()) * result.element_size())
    shape = differences(args, _LOSSES[name]) if name in _LOSSES else None
    return None if shape is None else int(math.prod(shape) * args[0].element_size())


_COLUMNS = {"im2col", "col2im"}
_LOSSES = {"mse_loss": 2, "smooth_l1_loss": 2, "binary_cross_entropy": 3}
"""By the place of the reduction among the arguments."""


def beforehand(name: str, args: Any) -> Any:
    """Allocate what one operation needs from before its result is made until its kernel ran."""
    return KERNELS[name](with_layouts(args), None) if name in BEFORE_RESULT else None


def temporaries(func: Any, name: str, args: Any, result: Any) -> None:
    """Allocate and free what the kernels of one operation need besides its result."""
    known = rule_of(name, args)
    if name == "native_batch_norm_backward" and not args[7]:
        unchecked.add(name)  # in eval mode
    elif known is not None:
        rule, given = known
        if KERNELS[rule](with_layouts(given), with_layouts(result)) is False:
            unchecked.add(name)
    elif name in orders.RULES:
        if not orders.RULES[name](args, result):
            unchecked.add(name)
    elif name in PRODUCTS:
        product(name, args)
    elif not _allocates_no_more(func, name):
        unchecked.add(name)


def rule_of(name: str, args: Any) -> tuple[str, tuple[Any, ...]] | None:
    """Return which of ops.temporaries' rules an operation has, and what it is given."""
    if name in OPERATIONS:
        return name, tuple(x for x in args if not isinstance(x, torch.dtype))
    if name == "pow" and not isinstance(args[0], torch.Tensor):
        return "pow", ()
    if name == "native_batch_norm" and args[0].dim() == _ROWS:
        return "moments_of_rows", args
    if name not in _REDUCTIONS:
        return None
    given = (args[0], *args[2:]) if name in _NORMS else args  # args[1] is the order
    dims = given[1] if len(given) > 1 and isinstance(given[1], list | tuple | int) else []
    return "reduced", (given[0], [dims] if isinstance(dims, int) else list(dims))


def knows(func: Any, name: str) -> bool:
    """Whether a rule says what an operation's kernels need, or a table that they need nothing."""
    rules = (OPERATIONS, orders.RULES, _REDUCTIONS, PRODUCTS)
    return any(name in table for table in rules) or _allocates_no_more(func, name)


def _allocates_no_more(func: Any, name: str) -> bool:
    """Whether kernels need nothing but their results; those for lists are pointwise, but norms."""
    if torch.Tag.pointwise in func.tags or func.is_view or name.rstrip("_") in NOTHING_MORE:
        return True
    return name.startswith("_foreach_") and name != "_foreach_norm"
