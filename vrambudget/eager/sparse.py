"""Sparse gradients: tensors of indices and values, which lie on the tape.

The fake tensor of a sparse one is empty and keeps both beside it. Where the numbers of the indices
are known, so is how many differ; others are assumed to.

Source: aten/src/ATen/native/EmbeddingBag.cpp (_embedding_bag_sparse_backward,
apply_bag_size_backward); sparse/cuda/SparseCUDATensor.cu (_coalesce_sparse_cuda),
SparseCUDATensorMath.cu (add_out_dense_sparse_cuda, add_out_sparse_cuda); sparse/SparseTensor.cpp
(sparse_mask); sparse/SparseTensorMath.cpp (intersection_binary_op_sparse_dense_out,
mul_out_sparse_zerodim).
Not modelled: what has no function here; indices of more than one dimension, but by `coalesce`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch

from vrambudget.compiled.accumulated import HELD
from vrambudget.compiled.dispatch import GPU
from vrambudget.eager import numbers
from vrambudget.eager.notes import note_of
from vrambudget.engine.tensor import empty_bytes
from vrambudget.errors import NotModelledError
from vrambudget.ops.cub import thrust_sort_bytes, thrust_unique_by_key_bytes
from vrambudget.traced.known import Known
from vrambudget.traced.lines import own_line, stack
from vrambudget.traced.tensor import REHEARSE

if TYPE_CHECKING:
    from vrambudget.eager.mode import EagerMode

_aten = torch.ops.aten
_MEAN = 1  # of embedding bags' ways
_ALL_DIFFER = "indices of sparse gradients that depend on weights are assumed to differ"


@dataclass(slots=True)
class _SparseParts:
    """What a sparse tensor is made of: indices [dimensions, n], values [n, ...]."""

    indices: torch.Tensor
    values: torch.Tensor
    is_coalesced: bool


def is_sparse(x: Any) -> bool:
    """Whether x is a sparse tensor."""
    return isinstance(x, torch.Tensor) and x.layout is torch.sparse_coo


def made_of(
    mode: EagerMode,
    indices: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int],
    *,
    is_coalesced: bool = False,
) -> torch.Tensor:
    """Return the sparse tensor of indices and values."""
    dims = len(indices)
    with mode, mode._quiet():
        x: torch.Tensor = _aten._sparse_coo_tensor_with_dims(
            dims,
            len(size) - dims,
            size,
            dtype=values.dtype,
            layout=torch.sparse_coo,
            device=GPU,
        )
    vars(x)["_parts"] = _SparseParts(indices, values, is_coalesced)
    return x


def bag_gradient(mode: EagerMode, dy: Any, indices: Any, *rest: Any) -> torch.Tensor:
    """Return the gradient of a table whose rows [n] were put in bags: dy of each row's bag."""
    _, bag_of, sizes, _, rows, _, way, _, weights, *_ = rest
    with mode:
        values = dy.index_select(0, bag_of)
        if way == _MEAN:
            numbers_of = sizes.to(values.dtype)
            shares = numbers_of.unsqueeze(1).reciprocal()
            values *= shares.index_select(0, bag_of)
            del numbers_of, shares
        if weights is not None:
            values *= weights.unsqueeze(1)
        places = indices.reshape(1, -1)
    return made_of(mode, places, values, (rows, dy.shape[1]))


def by_parts(mode: EagerMode, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation that takes or makes a sparse tensor."""
    rule = _RULES.get(func.overloadpacket)
    if rule is None:
        raise _no_rule(func.__name__)
    return rule(mode, *args, **kwargs)


def _no_rule(name: str) -> NotModelledError:
    return NotModelledError(f"{name} has no rule for sparse tensors like these", hint=REHEARSE)


def _parts(x: torch.Tensor) -> _SparseParts:
    found: _SparseParts = vars(x)["_parts"]
    return found


def _with_tensors(
    mode: EagerMode, _dims: int, _dense: int, size: Any, indices: Any, values: Any, **options: Any
) -> torch.Tensor:
    return made_of(
        mode, indices, values, size, is_coalesced=bool(options.get("is_coalesced", False))
    )


def _coalesce(mode: EagerMode, x: torch.Tensor) -> torch.Tensor:
    """Sort the indices, count those that differ, and sum the values of each."""
    parts = _parts(x)
    dims, n = parts.indices.shape
    if n < 2:  # noqa: PLR2004 - nothing to compare
        copy: torch.Tensor = _clone(mode, x, is_coalesced=True)
        return copy
    found = _different(mode, parts.indices)
    with mode:
        flat = parts.indices.new_empty(1, n)
        order, offsets = flat.new_empty(n), flat.new_empty(n)
        empty_bytes(thrust_sort_bytes(n))
        empty_bytes(thrust_unique_by_key_bytes(n))
        different = n if found is None else found.shape[1]
        flat.resize_(1, different)
        values = parts.values.new_empty(different, *parts.values.shape[1:])
        compact = parts.values.contiguous()
        indices = flat if dims == 1 else flat.new_empty(dims, different)
        del order, offsets, compact, flat
    if found is not None:
        note_of(indices).known = Known(lambda: found)
    return made_of(mode, indices, values, x.shape, is_coalesced=True)


def _different(mode: EagerMode, indices: torch.Tensor) -> torch.Tensor | None:
    if mode.knows(indices):
        found: torch.Tensor = mode.known(indices).unique(dim=1)
        return found
    numbers.assume(_ALL_DIFFER, own_line(stack()))
    return None


def _clone(mode: EagerMode, x: torch.Tensor, *, is_coalesced: bool | None = None, **_: Any) -> Any:
    """Return a copy; the gradient that only C++ holds itself, in its place.

    There PyTorch's engine copies for want of indices and values that only one tensor holds
    (autograd/functions/accumulate_grad.h, accumulateGrad).
    """
    parts = _parts(x)
    is_taken = mode.running.node.endswith("AccumulateGrad") and cast("Any", x)._use_count() == HELD
    if is_taken and parts.indices.is_contiguous() and parts.values.is_contiguous():
        return _same(mode, x)
    with mode:
        both = parts.indices.clone(), parts.values.clone()
    is_coalesced = parts.is_coalesced if is_coalesced is None else is_coalesced
    return made_of(mode, *both, x.shape, is_coalesced=is_coalesced)


def _add(mode: EagerMode, x: Any, other: Any, *, alpha: float = 1) -> Any:
    if not is_sparse(other):
        raise _no_rule("add")
    if is_sparse(x):
        with mode:
            return made_of(mode, *_joined(_parts(x), _parts(other), alpha), x.shape)
    with mode:
        return _add_in_place(mode, x.clone(), other, alpha=alpha)


def _joined(
    parts: _SparseParts, more: _SparseParts, alpha: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the indices and the values of both."""
    scaled = more.values if alpha == 1 else more.values * alpha
    return torch.cat((parts.indices, more.indices), 1), torch.cat((parts.values, scaled), 0)


def _add_in_place(mode: EagerMode, x: Any, other: Any, *, alpha: float = 1) -> Any:
    """Add what is sparse: by a kernel of its own if no index comes twice, or by `index_add_`."""
    more = _parts(other)
    with mode:
        if is_sparse(x):
            parts = _parts(x)
            parts.indices, parts.values = _joined(parts, more, alpha)
            parts.is_coalesced = False
            return x
        values = more.values.to(torch.result_type(x, more.values)).contiguous()
        if not more.is_coalesced:
            _one_dimension(more)
            rows = x.view(len(x), -1)
            rows.index_add_(0, more.indices[0], values.reshape(len(values), -1), alpha=alpha)
    return x


def _one_dimension(parts: _SparseParts) -> None:
    if len(parts.indices) > 1:
        raise _no_rule("add")


def _scaled(way: Callable[..., Any], mode: EagerMode, x: Any, other: Any) -> Any:
    """Return a sparse tensor times, or divided by, one number."""
    if not is_sparse(x) or is_sparse(other) or (torch.is_tensor(other) and other.dim()):
        raise _no_rule(way.__name__)
    parts = _parts(x)
    with mode:
        if way.__name__.endswith("_"):
            way(parts.values, other)
            return x
        both = parts.indices.clone(), way(parts.values, other)
    return made_of(mode, *both, x.shape, is_coalesced=parts.is_coalesced)


def _sparse_mask(mode: EagerMode, x: Any, mask: Any) -> torch.Tensor:
    """Return the rows of a dense tensor that a sparse one has: the product with its ones."""
    parts = _parts(mask)
    if is_sparse(x) or len(parts.indices) > 1 or not parts.is_coalesced:
        raise _no_rule("sparse_mask")
    with mode:
        ones = parts.values.new_ones(1).expand_as(parts.values)
        rows = x.index_select(0, parts.indices[0])
        both = parts.indices.clone(), rows * ones
        del rows, ones
    return made_of(mode, *both, x.shape, is_coalesced=True)


def _same(mode: EagerMode, x: torch.Tensor) -> torch.Tensor:
    parts = _parts(x)
    return made_of(mode, parts.indices, parts.values, x.shape, is_coalesced=parts.is_coalesced)


def _to_dense(mode: EagerMode, x: torch.Tensor, *_: Any, **__: Any) -> Any:
    with mode:
        return _add_in_place(mode, _parts(x).values.new_zeros(x.shape), x)


_RULES: dict[Any, Callable[..., Any]] = {
    _aten._sparse_coo_tensor_with_dims_and_tensors: _with_tensors,
    _aten._indices: lambda _mode, x: _parts(x).indices,
    _aten.indices: lambda _mode, x: _parts(x).indices,
    _aten._values: lambda _mode, x: _parts(x).values,
    _aten.values: lambda _mode, x: _parts(x).values,
    _aten._nnz: lambda _mode, x: len(_parts(x).values),
    _aten.sparse_dim: lambda _mode, x: len(_parts(x).indices),
    _aten.dense_dim: lambda _mode, x: x.dim() - len(_parts(x).indices),
    _aten.is_coalesced: lambda _mode, x: _parts(x).is_coalesced,
    _aten._coalesce: _coalesce,
    _aten.clone: _clone,
    _aten.detach: _same,
    _aten.add: _add,
    _aten.add_: _add_in_place,
    **{
        getattr(_aten, way): partial(_scaled, getattr(torch.Tensor, way))
        for way in ("mul", "mul_", "div", "div_")
    },
    _aten.sparse_mask: _sparse_mask,
    _aten._to_dense: _to_dense,
}
"""By operation."""
