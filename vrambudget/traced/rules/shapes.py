"""Views and copies."""

from typing import Any

from vrambudget.dtypes import complex64, float32
from vrambudget.engine.tensor import Tensor
from vrambudget.ops import complex_numbers
from vrambudget.ops import shape as shapes
from vrambudget.traced.rules.table import RULES, getter, on


def _sizes(given: tuple[Any, ...]) -> tuple[int, ...] | None:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], tuple | list) else given
    return tuple(sizes) if all(isinstance(n, int) for n in sizes) else None


@on("view")
def view(x: Any, *size: Any) -> Any:
    """Give a view of other sizes."""
    sizes = _sizes(size)
    return NotImplemented if sizes is None else shapes.view(x, *sizes)


@on("view_as_complex")
def view_as_complex(x: Any) -> Any:
    """See pairs as complex numbers."""
    return complex_numbers.view_as_complex(x) if x.dtype is float32 else NotImplemented


@on("view_as_real")
def view_as_real(x: Any) -> Any:
    """See complex numbers as pairs."""
    return complex_numbers.view_as_real(x) if x.dtype is complex64 else NotImplemented


@on("reshape")
def reshape(x: Any, *size: Any, shape: Any = None) -> Any:
    """Give a view, else a copy."""
    sizes = _sizes(size if shape is None else (shape,))
    return NotImplemented if sizes is None else shapes.reshape(x, *sizes)


@on("flatten")
def flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Join neighbouring dimensions."""
    if not x.ndim:
        return NotImplemented
    first, last = start_dim % x.ndim, end_dim % x.ndim
    if first == last:
        return x
    return shapes.reshape(x, *x.shape[:first], -1, *x.shape[last + 1 :])


@on("transpose", "swapaxes", "swapdims")
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    """Swap two dimensions."""
    return shapes.transpose(x, dim0 % x.ndim, dim1 % x.ndim)


@on("permute")
def permute(x: Any, *dims: Any) -> Any:
    """Give the dimensions another order."""
    sizes = _sizes(dims)
    return NotImplemented if sizes is None else shapes.permute(x, *(n % x.ndim for n in sizes))


@on("unsqueeze")
def unsqueeze(x: Any, dim: int) -> Any:
    """Add a dimension of size 1."""
    dim %= x.ndim + 1
    return shapes.unsqueeze(x, dim) if dim < x.ndim else NotImplemented


@on("expand")
def expand(x: Any, *size: Any, implicit: bool = False) -> Any:
    """Repeat dimensions of size 1 without a copy."""
    del implicit
    sizes = _sizes(size)
    if sizes is None or len(sizes) != x.ndim:
        return NotImplemented
    wanted = [have if n == -1 else n for n, have in zip(sizes, x.shape, strict=True)]
    return shapes.expand(x, *wanted)


@on("contiguous")
def contiguous(x: Any, **options: Any) -> Any:
    """Give a copy where elements do not lie in order."""
    return NotImplemented if options else shapes.contiguous(x)


@on("cat", "concat", "concatenate")
def cat(tensors: Any, dim: int = 0, **options: Any) -> Any:
    """Join tensors along a dimension; an empty one beside others may have another shape."""
    plain = all(isinstance(x, Tensor) and x.ndim and x.strides is None for x in tensors)
    plain = plain and len({x.ndim for x in tensors}) == 1
    return shapes.cat(tensors, dim) if plain and not options else NotImplemented


@on("__getitem__")
def getitem(x: Any, index: Any) -> Any:
    """Slice the last dimension, slice nothing, or take one index of a dimension."""
    parts = index if isinstance(index, tuple) else (index,)
    if Ellipsis in [p for p in parts if p is Ellipsis]:
        at = next(i for i, p in enumerate(parts) if p is Ellipsis)
        missing = x.ndim - (len(parts) - 1)
        parts = (*parts[:at], *[slice(None)] * missing, *parts[at + 1 :])
    numbers = [i for i, p in enumerate(parts) if type(p) is int]
    others = [p for p in parts if type(p) is not int]
    if x.dtype.is_floating_point and len(numbers) == 1 and _are_colons(others):
        return shapes.select_between(x, numbers[0], len(others) - numbers[0])
    if not all(isinstance(p, slice) and p.step in (None, 1) for p in parts):
        return NotImplemented
    if not x.dtype.is_floating_point:
        return NotImplemented
    lengths = [len(range(*p.indices(n))) for p, n in zip(parts, x.shape, strict=False)]
    whole = [length == n for length, n in zip(lengths, x.shape, strict=False)]
    if all(whole):
        return shapes.open_slices(x, len(parts))
    if len(parts) == x.ndim and all(whole[:-1]):
        return shapes.slice_last(x, lengths[-1])
    return NotImplemented


def _are_colons(parts: list[Any]) -> bool:
    return all(isinstance(p, slice) and p == slice(None) for p in parts)


RULES[getter("T")] = lambda x: shapes.transpose(x, 0, 1) if x.ndim == len("ij") else NotImplemented
RULES[getter("mT")] = lambda x: shapes.transpose(x, x.ndim - 2, x.ndim - 1)
