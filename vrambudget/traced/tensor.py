"""`TracedTensor`: to modelling code a tensor on the GPU, to us a tensor of the engine.

It has a shape, a dtype and strides that torch itself answers for, and no data. `v` is the engine's
tensor; `known` its value, where the host knows it; `base` what it is a view of, as torch's `_base`;
`remake` makes it of its base's value.
"""

import weakref
from typing import Any

import torch

from vrambudget import dtypes
from vrambudget.dtypes import DType
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.ops.temporaries import layout

GPU = torch.device("cuda:0")
"""Where modelling code believes that its tensors are."""

REHEARSE = "`vrambudget rehearse` runs any script, or any model of transformers by its name"
"""The way out, where code cannot be followed."""

_PAIRS = (
    (dtypes.float64, torch.float64),
    (dtypes.float32, torch.float32),
    (dtypes.bfloat16, torch.bfloat16),
    (dtypes.float16, torch.float16),
    (dtypes.complex128, torch.complex128),
    (dtypes.complex64, torch.complex64),
    (dtypes.int64, torch.int64),
    (dtypes.int32, torch.int32),
    (dtypes.int16, torch.int16),
    (dtypes.int8, torch.int8),
    (dtypes.uint8, torch.uint8),
    (dtypes.bool_, torch.bool),
)
TORCH_DTYPE = dict(_PAIRS)
"""torch's dtype of each of the engine's."""

DTYPE = {torch_dtype: engine_dtype for engine_dtype, torch_dtype in _PAIRS}
"""The engine's dtype of torch's, where there is one."""


class TracedTensor(torch.Tensor):
    """A tensor without data that the engine counts."""

    v: Tensor
    known: Any
    base: "TracedTensor | None"
    remake: Any
    views: "list[weakref.ref[TracedTensor]]"  # of this one, with values that may be known
    whole: "weakref.ref[TracedTensor] | None" = None  # its base, where that is in use still

    # Calls come to the mode (traced.mode) and never here.
    __torch_function__: Any = torch._C._disabled_torch_function_impl  # noqa: SLF001 - torch's own

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, _types: Any, args: Any = (), _kwargs: Any = None
    ) -> Any:
        """Refuse what reached PyTorch's kernels past the mode; but modes never see `set_`."""
        if func is torch.ops.aten.set_.source_Tensor:
            x, other = args
            x.v.storage, x.v.strides = other.v.storage, other.v.strides
            return x
        raise NotModelledError(f"{func} was called where no rule could see it")

    def __repr__(self) -> str:  # type: ignore[override]
        return f"TracedTensor({list(self.v.shape)}, {self.v.dtype})"


def traced_tensor(
    v: Tensor, known: Any = None, base: TracedTensor | None = None, remake: Any = None
) -> TracedTensor:
    """Return the tensor that modelling code sees for the engine's `v`."""
    x: TracedTensor = torch.Tensor._make_wrapper_subclass(  # noqa: SLF001 - torch's own way
        TracedTensor, v.shape, strides=v.actual_strides(), dtype=TORCH_DTYPE[v.dtype], device=GPU
    )
    x.v, x.known, x.base, x.remake, x.views = v, known, base, remake, []
    if base is not None:
        x.whole = base.whole or weakref.ref(base)
    if base is not None and (known is not None or remake is not None):
        base.views.append(weakref.ref(x))
    return x


def dtype_of(torch_dtype: torch.dtype) -> DType:
    """Return the engine's dtype of torch's. Raises NotModelledError for exotic ones."""
    if torch_dtype not in DTYPE:
        raise NotModelledError(f"tensors of type {torch_dtype} are not traced")
    return DTYPE[torch_dtype]


def with_layouts(value: Any) -> Any:
    """Return arguments, or results, with layouts in the place of torch's tensors."""
    if isinstance(value, torch.Tensor):
        strides = None if value.is_contiguous() else tuple(value.stride())
        return layout(tuple(value.shape), dtype_of(value.dtype), strides)
    return [with_layouts(item) for item in value] if isinstance(value, list | tuple) else value


def meta_of(v: Tensor) -> torch.Tensor:
    """Return a tensor on the meta device that lies as `v` does."""
    return torch.empty_strided(
        v.shape, v.actual_strides(), dtype=TORCH_DTYPE[v.dtype], device="meta"
    )


def no_rule(name: str, error: Exception) -> NotModelledError:
    """Return the error for an operation, or a node of backward, that PyTorch cannot run on meta."""
    reason = str(error).strip().splitlines()[0] if str(error) else type(error).__name__
    return NotModelledError(
        f"the operation {name} has no rule, and PyTorch's own code does not say: {reason}",
        hint=REHEARSE,
    )
