"""What CUDA kernels allocate besides their results, by aten operation.

    reductions                  partial sums (ops.reduce_buffers)
    matrix products             cuBLAS' workspace; of batches, copies that it can read
    softmax' backward           grad * output, in rows
    topk                        as ops.sampling says
    masked_scatter_             the running count of the mask's places
    means by index              ones, summed up: how many go to each place
    images                      as ops.image_temporaries says
    cdist, pdist in backward    a gradient for each pair: [B, R, P, M] of x1 [B, P, M] and
                                x2 [B, R, M], [N - 1, N, M] of x [N, M]

A rule is called with an operation's arguments and its result. In the place of each tensor is a
`layout`, which says how it lies. It returns False where it does not cover the call.

Source: aten/src/ATen/native/cuda (Reduce.cuh, SoftMax.cu, Blas.cpp, ScanKernels.cpp;
DistanceKernel.cu: cdist_backward_kernel_impl, pdist_backward_kernel_impl; Indexing.cu:
index_reduce_cuda_out); native/TensorAdvancedIndexing.cpp (scatter_reduce_two); native/Loss.cpp;
cublasCommonArgs.h (prepare_matrix_for_cublas, prepare_batch_matrix_for_cublas).
"""

from collections.abc import Callable
from itertools import zip_longest
from math import prod
from typing import Any

from vrambudget.dtypes import DType, bool_, float64, int64
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.cub import inclusive_sum_bytes
from vrambudget.ops.elementwise import iterated_strides
from vrambudget.ops.image_temporaries import OF_IMAGES, moments_of_rows
from vrambudget.ops.indexing import accumulating_buffers
from vrambudget.ops.masked import scattering_buffers
from vrambudget.ops.ordering import read_back_extremes
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.sampling import sort_buffers, topk_buffers
from vrambudget.ops.workspaces import bmm_workspace, cublas_workspace

_ACCUMULATES, _REDUCTION = 3, 2  # places among the arguments of index_put, of losses
_OF, _HOW = 3, 4  # of scatter_reduce and index_reduce
_NONE = 0  # of a loss' reductions
_MATRIX = 2  # dimensions


def layout(shape: Shape, dtype: DType, strides: Shape | None = None) -> Tensor:
    """Return how a tensor lies: one without a storage."""
    no_storage: Any = None  # never read
    return Tensor(shape, dtype, no_storage, strides)


def _reduced(args: Any, result: Tensor) -> None:
    """Reduce args[0] along the dimensions args[1], all of them if there are none."""
    x, dims = args[0], tuple(args[1]) or tuple(range(args[0].ndim))
    if result.dtype is bool_ and not x.ndim and x.dtype is not bool_:
        cast = empty((), bool_)  # native/ReduceOps.cpp (allany_impl)
        del cast
        return
    if result.dtype is int64 and x.dtype.is_floating_point:  # argmax: a value and its place each
        with_partial_sums(x, dims, accumulator=2 * int64.itemsize)
        return
    size = 1 if result.dtype is bool_ else max(4, result.dtype.itemsize)
    if result.dtype is int64 and x.dtype is not int64:  # counted as integers
        integers = empty(x.shape, int64)
        with_partial_sums(integers, dims, accumulator=size)
        del integers
        return
    with_partial_sums(x, dims, result.dtype, accumulator=size)


def _in_rows(args: Any, _result: Any) -> None:
    """Copy what does not lie in rows (SoftMax.cu, host_softmax)."""
    given = [x for x in args[:2] if isinstance(x, Tensor) and not x.is_contiguous]
    copies = [empty(x.shape, x.dtype) for x in given]
    del copies


def _softmax_backward(args: Any, _result: Tensor) -> None:
    shape = args[0].shape
    product = empty(shape, args[0].dtype, iterated_strides(shape, args[:2]))
    _in_rows((product, args[1]), None)


def batched_product(args: Any, _result: Any) -> None:
    """Allocate and free what `bmm` needs besides its result."""
    copies = [readable(x) for x in reversed(args[:2])]
    bmm_workspace(args[0].shape[2])
    del copies


def readable(x: Tensor) -> Tensor | None:
    """Return the copy that is made of a matrix, or of a batch of them, if one is.

    cuBLAS reads a matrix whose rows or columns lie one after the other, at distances of at least
    their length. Any other, an expanded one for instance, is copied first.
    """
    if x.ndim < _MATRIX:
        return None
    rows, columns = x.actual_strides()[-2:]
    height, width = x.shape[-2:]
    is_readable = (columns == 1 and rows >= max(1, width)) or (
        rows == 1 and columns >= max(1, height)
    )
    has_no_gaps = x.is_contiguous if x.ndim > _MATRIX else x.is_dense
    if is_readable or (has_no_gaps and rows and columns):
        return None
    return empty(x.shape, x.dtype)


def _running_sum(args: Any, result: Tensor) -> None:
    cast = None if args[0].dtype is result.dtype else empty(result.shape, result.dtype)
    if result.shape and result.numel == result.shape[args[1]]:  # one row goes through CUB
        empty_bytes(inclusive_sum_bytes(result.numel, result.dtype.itemsize))
    del cast


def _masked_scatter(args: Any, _result: Any) -> None:
    scattering_buffers(args[0].shape, args[1])


def _index(args: Any, _result: Any) -> list[Tensor]:
    """Lay several indices out alike: as large as all of them together, if one lies otherwise.

    Return the copies, which live until the kernel ran.
    Source: native/TensorAdvancedIndexing.cpp (make_info, all_strides_match).
    """
    given = [index for index in args[1] if index is not None]
    if any(index.dtype is bool_ for index in given):
        return []
    shape = _together(given)
    apart = [index for index in given if index.shape != shape or not index.is_contiguous]
    same = len({_expanded(index, shape) for index in given}) <= 1
    return [] if same else [empty(shape, index.dtype) for index in apart]


def _together(tensors: list[Tensor]) -> Shape:
    """Return the shape that tensors are expanded to."""
    sizes = zip_longest(*(reversed(x.shape) for x in tensors), fillvalue=1)
    return tuple(max(column) if min(column) else 0 for column in sizes)[::-1]


def _expanded(x: Tensor, shape: Shape) -> Shape:
    """Return the strides of a tensor that is expanded to a shape."""
    missing = len(shape) - x.ndim
    own = zip(x.shape, x.actual_strides(), shape[missing:], strict=True)
    return (0,) * missing + tuple(stride if size == wide else 0 for size, stride, wide in own)


def _index_put(args: Any, _result: Any) -> None:
    x, indices, values = args[:3]
    given = [index for index in indices if index is not None]
    accumulates = len(args) > _ACCUMULATES and args[_ACCUMULATES]
    if accumulates and given and all(index.dtype is not bool_ for index in given):
        sizes = zip(x.shape, indices, strict=False)
        places = prod(1 if index is None else size for size, index in sizes)
        lies = [place for place, index in enumerate(indices) if index is not None]
        apart = lies[-1] - lies[0] >= len(lies)  # cuda/Indexing.cu (transposeToFrontAndInvPerm)
        copy = empty(x.shape, x.dtype) if apart else None
        accumulating_buffers(places, (numel(_together(given)),) * len(given), values)
        del copy
    elif not accumulates:
        _index(args, None)


def _scatter_reduce(args: Any, result: Tensor) -> None:
    if args[_HOW] == "mean":
        ones = empty(args[_OF].shape, args[_OF].dtype)
        numbers, missing = empty(result.shape, result.dtype), empty(result.shape, bool_)
        del ones, numbers, missing


def _index_reduce(args: Any, result: Tensor) -> None:
    if args[_HOW] == "mean":
        numbers, ones = empty(result.shape, result.dtype), empty(args[_OF].shape, args[_OF].dtype)
        del ones
        missing = empty(result.shape, bool_)
        del numbers, missing


def _unfold_backward(args: Any, _result: Any) -> None:
    """Make the numbers of elements along the dimension, but where windows do not meet."""
    _, shape, dim, size, step = args
    if shape and step < size:
        numbers = empty((shape[dim],), int64)
        del numbers


def _sort(args: Any, _result: Any) -> None:
    sort_buffers(args[0].shape, args[0].dtype)


def differences(args: Any, place: int = _REDUCTION) -> Shape | None:
    """Return the shape of the differences that a loss reduces; None without (args[place]).

    The loss is made as large as they are, then resized to the one number that stays in it
    (native/Loss.cpp, TORCH_META_FUNC(mse_loss), smooth_l1_loss; cuda/Loss.cu,
    binary_cross_entropy_out_cuda).
    """
    if len(args) > place and args[place] == _NONE:
        return None
    return _together(args[:2])


def _loss(args: Any, result: Tensor) -> None:
    """Make the differences, then reduce them."""
    shape = differences(args)
    if shape is not None:
        apart = empty(shape, result.dtype)
        with_partial_sums(apart, tuple(range(len(shape))), result.dtype, accumulator=4)
        del apart


def _binary_cross_entropy(args: Any, result: Tensor) -> None:
    """Reduce what the result began as, apart."""
    if differences(args, _REDUCTION + 1) is not None:
        apart = empty((), result.dtype)
        with_partial_sums(args[0], tuple(range(args[0].ndim)), result.dtype, accumulator=4)
        del apart


def _raised(_args: Any, _result: Any) -> None:
    """Lay the number that is raised on the device; it is freed at once."""
    empty_bytes(float64.itemsize)


def _product(args: Any, _result: Any) -> None:
    cublas_workspace(epilogue=args[0])


def _cdist_backward(args: Any, result: Tensor) -> None:
    gradient, x1, x2, p = args[:4]
    if not (p and gradient.numel):
        return
    shape = (numel(result.shape[:-2]), x2.shape[-2], x1.shape[-2], x1.shape[-1])
    pairs = empty(shape, x1.dtype)
    with_partial_sums(pairs, (1,), accumulator=max(4, x1.dtype.itemsize))
    del pairs


def _pdist_backward(args: Any, result: Tensor) -> None:
    (rows, width), p = result.shape, args[2]
    if rows > 1 and width and p:
        pairs = empty((rows - 1, rows, width), args[1].dtype)
        with_partial_sums(pairs, (0,), accumulator=max(4, result.dtype.itemsize))
        del pairs


def _histc(args: Any, _result: Any) -> None:
    """Read the extremes back where no limits are given (SummaryOps.cu, _histc_cuda_template)."""
    least, most = (*args[2:], 0, 0)[:2]
    if least == most and args[0].numel:
        read_back_extremes(args[0])


def _topk(args: Any, result: Any) -> bool:
    usual = (None, None, -1, True, True)  # dim, largest, sorted
    dim, _, in_order = [*args, *usual[len(args) :]][2:]
    return topk_buffers(args[0], result[0].shape, dim, in_order=in_order)


Rule = Callable[[Any, Any], Any]
OPERATIONS: dict[str, Rule] = {
    **dict.fromkeys(("_softmax", "_log_softmax", "_log_softmax_backward_data"), _in_rows),
    "_softmax_backward_data": _softmax_backward,
    "bmm": batched_product,
    **dict.fromkeys(("cumsum", "cumprod"), _running_sum),  # cuda/ScanKernels.cpp
    **dict.fromkeys(("index_put", "index_put_", "_index_put_impl_"), _index_put),
    "masked_scatter_": _masked_scatter,
    **dict.fromkeys(("scatter_reduce", "scatter_reduce_"), _scatter_reduce),
    **dict.fromkeys(("index_reduce", "index_reduce_"), _index_reduce),
    "topk": _topk,
    "histc": _histc,
    **dict.fromkeys(("mse_loss", "smooth_l1_loss", "huber_loss"), _loss),
    "binary_cross_entropy": _binary_cross_entropy,
    **dict.fromkeys(("index", "_unsafe_index"), _index),
    "unfold_backward": _unfold_backward,
    **OF_IMAGES,
    "_cdist_backward": _cdist_backward,
    "_pdist_backward": _pdist_backward,
}
"""By an operation's name."""

BEFORE_RESULT = frozenset({"index", "_unsafe_index"})
"""Operations whose rule runs before the result is made, and returns what lives until then."""

KERNELS: dict[str, Rule] = {
    **OPERATIONS,
    "reduced": _reduced,
    "moments_of_rows": moments_of_rows,
    "sort": _sort,
    "pow": _raised,
    "product": _product,
}
"""By what a program calls them; reductions, products of matrices and powers of numbers, too."""
