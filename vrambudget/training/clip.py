"""Gradient clipping: what torch.nn.utils.clip_grad_norm_ allocates. Gradients are scaled in place.

    per type   norms of all gradients at once (ops.foreach_norm)
    then       norms stacked, their norm (returned), and four scalars on the way to the factor

Source: torch/nn/utils/clip_grad.py.
Not modelled: foreach=False, norms other than 2.
"""

from collections.abc import Callable, Sequence
from functools import reduce

from vrambudget.dtypes import DType, promote
from vrambudget.engine.context import context, no_grad
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.engine.versions import torch_since
from vrambudget.ops.foreach_norm import foreach_norm
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.parallel.dtensor import (
    parts_of_norms,
    reduced_gradients,
    whole_norms,
)
from vrambudget.training.optimizer_base import by_type

Clips = Callable[[Sequence[Parameter]], object]
"""Clips gradients by their norm."""


def clip_grad_norm(parameters: Sequence[Parameter]) -> Tensor | None:
    """Clip the gradients and return their norm, None if there is no gradient."""
    with_grad = [p for p in parameters if p.grad is not None]
    if not with_grad:
        return None
    with no_grad():
        total_norm = (_total_norm if torch_since(2, 6) else _total_norm_of_1_10)(with_grad)
        coefficients = _clip_coefficient(total_norm.dtype)
        scaled = reduced_gradients(with_grad)  # _foreach_mul_ reads them as sums
        del scaled, coefficients
    return total_norm


def _total_norm_of_1_10(parameters: list[Parameter]) -> Tensor:
    from vrambudget.training.transformers_4_16 import total_norm  # noqa: PLC0415 - few jobs are

    return total_norm(parameters)


def _total_norm(parameters: list[Parameter]) -> Tensor:
    norms: list[Tensor] = []
    order: list[Parameter] = []
    for group in by_type(parameters):
        norms += _foreach_norm(group)
        order += group
    dtype = reduce(promote, (norm.dtype for norm in norms))
    parts = parts_of_norms(order, norms)
    context.operation = "stack"
    stacked = empty((len(norms),), dtype)
    del parts
    whole = whole_norms(parameters, stacked)
    context.operation = "linalg_vector_norm"
    total_norm = empty((), dtype)
    with_partial_sums(whole, (0,))
    return total_norm


def _foreach_norm(group: list[Parameter]) -> list[Tensor]:
    """Return the norms of gradients of one type, which is their parameters'."""
    sums = reduced_gradients(group)
    norms = foreach_norm([p.grad for p in group if p.grad is not None])
    del sums
    return norms


def _clip_coefficient(dtype: DType) -> tuple[Tensor, Tensor]:
    """Return max_norm / (total_norm + 1e-6), and it at most 1."""
    context.operation = "add"
    total = empty((), dtype)
    context.operation = "reciprocal"
    reciprocal = empty((), dtype)
    context.operation = "mul"
    coefficient = empty((), dtype)
    del reciprocal, total
    context.operation = "clamp"
    return coefficient, empty((), dtype)
