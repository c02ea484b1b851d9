"""Views and copies: view, transpose, split, cat, expand, reshape, contiguous.

    view, transpose, expand    share storage; backward is the inverse view
    split                      outputs are views; backward concatenates the gradients
    cat, contiguous            allocate the result

Source: aten/src/ATen/native/TensorShape.cpp; aten/src/ATen/TensorUtils.cpp (computeStride);
tools/autograd/derivatives.yaml.
"""

from collections.abc import Sequence
from functools import partial, reduce

from vrambudget.dtypes import DType, promote
from vrambudget.engine.autograd import Backward, record, record_many
from vrambudget.engine.context import context
from vrambudget.engine.tensor import (
    Shape,
    ShapeError,
    Tensor,
    contiguous_strides,
    empty,
    empty_like,
    numel,
)
from vrambudget.engine.versions import torch_since


def view(x: Tensor, *shape: int) -> Tensor:
    """Return x's elements as `shape`, without a copy. Raises ShapeError if that takes one."""
    shape = _inferred(x, shape)
    strides = None if x.strides is None else _view_strides(x.shape, x.strides, shape)
    if x.strides is not None and strides is None:
        raise ShapeError(f"view of {list(x.shape)} with strides {x.strides} as {list(shape)}")
    source = x.shape

    def backward(dy: Tensor) -> Tensor:
        return reshape(dy, *source)

    return _share(x, "view", shape, strides, backward)


def reshape(x: Tensor, *shape: int) -> Tensor:
    """Return a view if one is possible, else a contiguous copy."""
    shape = _inferred(x, shape)
    if x.strides is not None and _view_strides(x.shape, x.strides, shape) is None:
        x = _clone(x, "reshape")
    return view(x, *shape)


def flatten_rows(x: Tensor) -> Tensor:
    """Return x [..., C] as [N, C]."""
    return reshape(x, -1, x.shape[-1])


def transpose(x: Tensor, a: int, b: int) -> Tensor:
    """Return x with dimensions a and b swapped (a view)."""
    order = list(range(x.ndim))
    order[a], order[b] = order[b], order[a]

    def backward(dy: Tensor) -> Tensor:
        return _permuted(dy, order)

    y = _permuted(x, order)
    return record("transpose", y, inputs=(x,), backward=backward)


def permute(x: Tensor, *order: int) -> Tensor:
    """Return x with its dimensions in `order` (a view)."""
    inverse = [order.index(i) for i in range(len(order))]

    def backward(dy: Tensor) -> Tensor:
        return _permuted(dy, inverse)

    return record("permute", _permuted(x, order), inputs=(x,), backward=backward)


def contiguous(x: Tensor) -> Tensor:
    """Return x itself if it is contiguous, else a copy."""
    return x if x.is_contiguous else _clone(x, "contiguous")


def split(x: Tensor, size: int, dim: int) -> list[Tensor]:
    """Return views of `size` elements each along `dim`."""
    count, rest = divmod(x.shape[dim], size)
    if rest:
        raise ShapeError(f"split of {list(x.shape)} into parts of {size} along {dim}")
    return split_sizes(x, (size,) * count, dim)


def split_sizes(x: Tensor, sizes: Sequence[int], dim: int) -> list[Tensor]:
    """Return views of so many elements each along `dim`."""
    dim %= x.ndim
    shape, dtype = x.shape, x.dtype
    if sum(sizes) != shape[dim]:
        raise ShapeError(f"split of {list(shape)} into parts of {list(sizes)} along {dim}")
    parts = [(*shape[:dim], size, *shape[dim + 1 :]) for size in sizes]
    strides = x.actual_strides()
    outputs = [x.viewed(part, strides) for part in parts]

    def backward(*grads: Tensor | None) -> Tensor:
        context.operation = "split_backward"
        # A part that nobody read gets zeros first (split_backward in FunctionsManual.cpp).
        each = zip(parts, grads, strict=True)
        defined = [empty(part, dtype) if g is None else g for part, g in each]
        whole = empty(shape, dtype)
        del defined
        return whole

    record_many("split", outputs, inputs=(x,), backward=backward)
    return outputs


def slice_last(x: Tensor, length: int) -> Tensor:
    """Return a view of `length` elements of the last dimension; backward pads with zeros."""
    return slice_dim(x, -1, length)


def slice_dim(x: Tensor, dim: int, length: int) -> Tensor:
    """Return a view of `length` elements along `dim`; backward pads with zeros.

    A slice of everything is an alias: its gradient is passed on unchanged (TensorIndexing.h,
    applySlice).
    """
    source, dtype = x.shape, x.dtype
    dim %= x.ndim
    if length == source[dim]:
        return _share(x, "alias", source, x.strides, lambda dy: dy)

    # slice_backward: zeros, then the gradient is copied in
    y = narrowed(x, dim, length)
    return record("slice", y, inputs=(x,), backward=partial(_zeros, source, dtype))


def slice_step(x: Tensor, step: int) -> Tensor:
    """Return every `step`-th element of the last dimension (a view); backward pads with zeros."""
    shape = (*x.shape[:-1], -(-x.shape[-1] // step))
    *rest, last = x.actual_strides()
    return _share(x, "slice", shape, (*rest, last * step), partial(_zeros, x.shape, x.dtype))


def open_slices(x: Tensor, count: int) -> Tensor:
    """Return x indexed by `count` colons, x[:, :]: a view.

    Until 2.8 autograd follows each: backward copies the gradient into zeros.
    """
    if torch_since(2, 11):
        return x
    for _ in range(min(count, x.ndim)):
        x = last_elements(x)
    return x


def last_elements(x: Tensor) -> Tensor:
    """Return x[..., -n:] of all n: a slice that autograd follows, for its start is not 0."""
    return _share(x, "slice", x.shape, x.strides, partial(_zeros, x.shape, x.dtype))


def _zeros(shape: Shape, dtype: DType, dy: Tensor) -> Tensor:
    del dy
    return empty(shape, dtype)


def select(x: Tensor, dim: int) -> Tensor:
    """Return x at one index of `dim`: a view without that dimension; backward pads with zeros."""
    source, strides = x.shape, x.actual_strides()
    shape, rest = source[:dim] + source[dim + 1 :], strides[:dim] + strides[dim + 1 :]
    return _share(x, "select", shape, rest, partial(_zeros, source, x.dtype))


def select_between(x: Tensor, dim: int, colons: int) -> Tensor:
    """Return x[:, i, :]: x at one index of `dim`, and colons after it."""
    return open_slices(select(open_slices(x, dim), dim), colons)


def cat(tensors: Sequence[Tensor], dim: int, wider: DType | None = None) -> Tensor:
    """Return the tensors one after another along `dim`: a new tensor; backward slices, no copy.

    Of several types the widest is the result's (`wider`: that of an empty tensor among them); the
    kernel casts as it copies.
    """
    first = tensors[0]
    dtype = reduce(promote, (x.dtype for x in tensors), wider or first.dtype)
    dim %= first.ndim
    lengths = [x.shape[dim] for x in tensors]
    shape = (*first.shape[:dim], sum(lengths), *first.shape[dim + 1 :])
    context.operation = "cat"
    y = empty(shape, dtype)

    def backward(dy: Tensor) -> tuple[Tensor, ...]:
        return tuple(narrowed(dy, dim, length) for length in lengths)

    return record("cat", y, inputs=tuple(tensors), backward=backward)


def narrowed(x: Tensor, dim: int, length: int) -> Tensor:
    """Return a view of `length` elements along `dim`, unknown to autograd."""
    shape = (*x.shape[:dim], length, *x.shape[dim + 1 :])
    return x.viewed(shape, x.actual_strides())


def unsqueeze(x: Tensor, dim: int) -> Tensor:
    """Return a view with a dimension of size 1 at `dim`."""
    strides = x.actual_strides()
    shape = (*x.shape[:dim], 1, *x.shape[dim:])
    step = strides[dim] * x.shape[dim] if dim < x.ndim else 1
    widened = None if x.strides is None else (*strides[:dim], step, *strides[dim:])

    def backward(dy: Tensor) -> Tensor:
        kept = dy.actual_strides()
        return dy.viewed(shape[:dim] + shape[dim + 1 :], kept[:dim] + kept[dim + 1 :])

    return _share(x, "unsqueeze", shape, widened, backward)


def expand(x: Tensor, *shape: int) -> Tensor:
    """Return x with dimensions of size 1 repeated without a copy; backward sums them."""
    strides = tuple(
        0 if have == 1 and want != 1 else stride
        for have, want, stride in zip(x.shape, shape, x.actual_strides(), strict=True)
    )

    def backward(dy: Tensor) -> Tensor:
        return dy  # the engine sums a gradient to its input's shape

    return _share(x, "expand", shape, strides, backward)


def _share(x: Tensor, name: str, shape: Shape, strides: Shape | None, backward: Backward) -> Tensor:
    return record(name, x.viewed(shape, strides), inputs=(x,), backward=backward)


def clone(x: Tensor) -> Tensor:
    """Return a copy in x's order of dimensions."""
    context.operation = "clone"
    return record("clone", empty_like(x), inputs=(x,), backward=lambda dy: dy)


def _clone(x: Tensor, name: str) -> Tensor:
    context.operation = name
    y = empty(x.shape, x.dtype)
    return record("clone", y, inputs=(x,), backward=lambda dy: dy)


def _permuted(x: Tensor, order: Sequence[int]) -> Tensor:
    strides, sizes = x.actual_strides(), x.shape
    shape = tuple([sizes[i] for i in order])
    permuted = tuple([strides[i] for i in order])
    y = x.viewed(shape, permuted)
    if y.is_contiguous:
        y.strides = None
    return y


def _inferred(x: Tensor, shape: Shape) -> Shape:
    have, want, unknown = numel(x.shape), 1, False
    for size in shape:
        if size == -1:
            unknown = True
        else:
            want *= size
    if unknown:
        shape = tuple([have // want if size == -1 else size for size in shape])
        want *= have // want
    if want != have:
        raise ShapeError(f"{list(x.shape)} has {have} elements, {list(shape)} has {want}")
    return shape


def _view_strides(old: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Return the strides of a view of `new` shape, None if only a copy can have it."""
    if Tensor(old, None, None, strides).is_contiguous:  # type: ignore[arg-type]
        return contiguous_strides(new)
    result: list[int] = []
    sizes = list(new)
    # Walk the old dimensions from the last, joining those that lie one after another in memory.
    chunk, base = 1, strides[-1]
    for i in range(len(old) - 1, -1, -1):
        chunk *= old[i]
        if i and (old[i - 1] == 1 or strides[i - 1] == chunk * base):
            continue
        step = base
        while sizes and (chunk > 1 or sizes[-1] == 1):
            size = sizes.pop()
            if chunk % size:
                return None
            result.append(step)
            step *= size
            chunk //= size
        if chunk != 1:
            return None
        if i:
            base = strides[i - 1]
    return tuple(reversed(result)) if not sizes else None
