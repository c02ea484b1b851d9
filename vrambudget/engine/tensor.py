"""A tensor without data: a shape, a dtype, strides and a storage that may be shared.

`strides` is None for a contiguous tensor. They matter because they decide where PyTorch must copy:
`transpose(1, 2).contiguous()` is free or a copy, `reshape` is a view or a copy.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.errors import VramBudgetError
from vrambudget.strides import strides_in
from vrambudget.tape.events import Purpose, Storage

if TYPE_CHECKING:
    from vrambudget.engine.autograd import Node

Shape = tuple[int, ...]


class ShapeError(VramBudgetError):
    """Shapes that an operation cannot combine: a mistake in a model's code or its configuration."""


class Tensor:
    """Shape, dtype, strides, storage; and for autograd what torch.Tensor has: node, grad."""

    __slots__ = (
        "accumulator",
        "dtype",
        "grad",
        "is_view",
        "node",
        "requires_grad",
        "shape",
        "slot",
        "storage",
        "strides",
    )

    is_swapped = False

    def __init__(
        self, shape: Shape, dtype: DType, storage: Storage, strides: Shape | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.storage = storage
        self.strides = strides
        self.is_view = False  # made by a view operation: its base lives as long as it does
        self.requires_grad = False
        self.node: Node | None = None  # grad_fn: None for a leaf
        self.accumulator: weakref.ref[Node] | None = None  # of a leaf: what fills grad
        self.slot = 0  # which output of `node` this is
        self.grad: Tensor | None = None

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype})"

    @property
    def grad_dtype(self) -> DType:
        """The type that its gradients are cast to."""
        return self.dtype

    @property
    def numel(self) -> Any:
        """Elements."""
        return numel(self.shape)

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)

    @property
    def is_contiguous(self) -> bool:
        """Whether elements lie in row-major order without gaps."""
        if self.strides is None:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True

    @property
    def is_dense(self) -> bool:
        """Whether elements fill their memory without gaps, in any order of dimensions."""
        if self.strides is None:
            return True
        expected = 1
        for stride, size in sorted(zip(self.strides, self.shape, strict=True)):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True

    def lies_like(self, variable: Tensor) -> bool:
        """Whether this gradient can be `variable.grad` as it lies (grad_layout_contract.h)."""
        if variable.strides is None or not variable.is_dense:
            return self.is_contiguous
        strides = zip(self.actual_strides(), variable.strides, self.shape, strict=True)
        return all(own == other or size == 1 for own, other, size in strides)

    def detach(self) -> Tensor:
        """Return a tensor of the same storage that autograd does not know."""
        return Tensor(self.shape, self.dtype, self.storage, self.strides)

    def viewed(self, shape: Shape, strides: Shape | None) -> Tensor:
        """Return a view of this tensor, unknown to autograd."""
        view = Tensor(shape, self.dtype, self.storage, strides)
        view.is_view = True
        return view

    def actual_strides(self) -> Shape:
        """Strides in elements, also of a contiguous tensor."""
        return contiguous_strides(self.shape) if self.strides is None else self.strides


def numel(shape: Shape) -> Any:
    """Return the product of `shape`."""
    n: Any = 1
    for size in shape:
        n = n * size
    return n


def contiguous_strides(shape: Shape) -> Shape:
    """Return row-major strides."""
    return strides_in(range(len(shape) - 1, -1, -1), shape)


def empty(shape: Shape, dtype: DType, strides: Shape | None = None) -> Tensor:
    """Allocate a tensor for the operation that runs now."""
    n: Any = dtype.itemsize
    for size in shape:
        n = n * size
    storage = Storage(context.tape, n, context.purpose, context.operation, (shape, dtype))
    return Tensor(shape, dtype, storage, strides)


def empty_like(x: Tensor, dtype: DType | None = None) -> Tensor:
    """Allocate a tensor like `x`; the dimensions lie in x's order (preserve_format)."""
    strides = x.strides
    if strides is not None and not x.is_dense:
        strides = _dense_strides(x.shape, strides)
    return empty(x.shape, dtype or x.dtype, strides)


def _dense_strides(shape: Shape, strides: Shape) -> Shape | None:
    """Return strides without gaps for dimensions in the order of `strides`.

    Repeated (stride 0) dimensions stay where they are (c10's infer_dense_strides_dim_last).
    """
    if 0 in strides:
        return None
    order = sorted(range(len(shape)), key=lambda i: (strides[i], shape[i] == 1, -i))
    return strides_in(order, shape)


def empty_bytes(nbytes: int) -> Storage:
    """Allocate a buffer of raw bytes."""
    return Storage(context.tape, nbytes, context.purpose, context.operation)


class Parameter(Tensor):
    """A leaf that a module owns; it wants a gradient until it is frozen."""

    __slots__ = ()

    def __init__(self, shape: Shape, dtype: DType) -> None:
        nbytes = numel(shape) * dtype.itemsize
        storage = Storage(context.tape, nbytes, Purpose.WEIGHTS, "parameter", (shape, dtype))
        super().__init__(shape, dtype, storage)
        self.requires_grad = True


class SwappedParameter(Parameter):
    """A parameter whose data are replaced meanwhile: saved as it is, it holds none of them.

    autograd keeps a leaf itself (torch/csrc/autograd/saved_variable.cpp, saved_original_), so it
    finds the new data; views of it keep the old ones.
    """

    __slots__ = ()

    is_swapped = True
