"""What an operation of PyTorch does with its arguments, as far as their values matter.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

MOVES = ("to.device", "to.dtype_layout", "to.other")
"""How Python moves a tensor to the GPU, and how its numbers become one there.

Not copy_, of which they are made: each cast of autocast calls it.
"""

FILLS = (
    "fill_.Scalar",
    "fill_.Tensor",
    "zero_",
    "arange.start_out",
    "linspace.out",
    "eye.out",
    "eye.m_out",
    "tril_indices",
    "triu_indices",
)
"""Operations that give values by themselves; others that make tensors of known values call one."""

WRAPS = ("pow.Scalar",)
"""Operations that fill a tensor on the GPU with a number and call it one: such a tensor, followed,
could not be handed to Python (aten/src/ATen/native/Pow.cpp, wrapped_scalar_tensor).
"""

VIEWS = (
    *("alias", "as_strided", "diagonal", "expand", "permute", "_reshape_alias", "select.int"),
    *("slice.Tensor", "split.Tensor", "split_with_sizes", "squeeze", "squeeze.dim", "squeeze.dims"),
    *("t", "transpose.int", "unbind.int", "unfold", "unsqueeze", "view", "view.dtype"),
)
"""Operations whose result lies in its argument's storage, and so is known as that is."""

MADE_OF_OTHERS = (
    *("contiguous", "cross_entropy_loss", "expand_as", "flatten.using_ints", "is_nonzero", "item"),
    *("matmul", "movedim.int", "nll_loss", "nll_loss2d", "nll_loss_nd"),
    *("narrow", "reshape", "reshape_as", "scaled_dot_product_attention", "to.device", "to.dtype"),
    *("to.dtype_layout", "to.other", "type_as", "unflatten.int", "view_as"),
)
"""Operations that C++ makes of others, which come here by themselves."""

BESIDE_SHARDS = (
    *(f"_fused_{name}_" for name in ("adam", "adamw", "adagrad", "sgd")),
    *(f"_fused_{name}_.tensor_lr" for name in ("adam", "adamw", "adagrad", "sgd")),
    *("nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward", "nll_loss2d_backward"),
)
"""Operations that take DTensors beside tensors, counters of steps and labels, which they only read.

No kernel in Python may stand above a DTensor's own, which is in C++ from PyTorch 2.10 on: the
dispatcher hands a subclass of Tensor to Python at once, where DTensor has nothing.
"""

_EMPTY = ("aten::empty_like", "aten::new_empty", "aten::new_empty_strided", "aten::resize_")
_WHOLLY = ("aten::copy_", "aten::fill_", "aten::zero_")
_ALONE = ("all", "any", "clone", "cumsum", "mean", "sum")
_ANSWERS = ("aten::_local_scalar_dense", "aten::equal")
_READS_WITHIN = ("aten::segment_reduce",)  # its kernel checks lengths: cuda/SegmentReduce.cu
_SAME_ON_RANKS = ("c10d::broadcast_",)  # each rank does as the first: what it gets is what it has
_NUMBERS = (int, float, bool, complex)


class Operation:
    """One overload of an operation, by its schema and its name.

    `reads`: its answer, or the shape of its output, comes from values. `written`: the arguments
    that it writes into; `fills`: wholly, so that what was there is no matter. `passes`: values stay
    what they are, or the operations of which it is made come here by themselves. `unknown`: its
    result does not follow from its arguments. `foreign`: not PyTorch's own, or it speaks with
    others. `is_alone`: what C++ makes it of reads no values, and need not come here again.
    """

    def __init__(self, torch: Any, op: Any) -> None:
        self.op = op  # its id stays its own
        schema = op._schema  # noqa: SLF001 - the operation's own name for it
        name = self.name = schema.name
        arguments = list(enumerate(schema.arguments))
        self.tensors = [i for i, a in arguments if str(a.type) in ("Tensor", "Optional[Tensor]")]
        has_scalar = any("number" in str(a.type) for _, a in arguments)
        self.has_scalar = has_scalar and name not in _READS_WITHIN
        outs = [(i, a) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write]
        self.written = [(i, a.name) for i, a in outs]
        self.fills = name in _WHOLLY or any(a.kwarg_only for _, a in outs)
        self.copies = name == "aten::copy_"
        self.reads = name in _ANSWERS or name in _SIZES
        self.is_view = any(r.alias_info is not None for r in schema.returns) and not outs
        self.unknown = torch.Tag.nondeterministic_seeded in op.tags or name in _EMPTY
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key  # noqa: SLF001 - no other way
        composite = has_kernel(op.name(), "CompositeImplicitAutograd")
        self.passes = (composite and not self.has_scalar) or name in _SAME_ON_RANKS
        self.foreign = not name.startswith("aten::")
        self.adds = op.name() == "aten::add_.Tensor"
        self.is_alone = name.partition("::")[2] in _ALONE and not self.foreign

    def has_number(self, args: tuple[Any, ...]) -> bool:
        """Return whether a Python number stands in a tensor's place (`mask + 1`), or soon will."""
        return self.has_scalar or any(
            i < len(args) and type(args[i]) in _NUMBERS for i in self.tensors
        )

    def counts(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a whole number is added in place, as batch norm counts its batches."""
        return self.adds and type(args[-1]) is int and not kwargs

    def targets(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
        """Yield the tensors that it writes into."""
        for i, name in self.written:
            yield from flat(args[i] if i < len(args) else kwargs.get(name))

    def number(self, args: Any, value: Any) -> int:
        """Return the number that it reads from the GPU on its way to `value`."""
        size = _SIZES.get(self.name)
        return int(size(args, value)) if size else 0


def flat(result: Any) -> Iterator[Any]:
    """Yield the tensors of a result: none, one, or lists of them."""
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from flat(item)
    elif hasattr(result, "untyped_storage"):
        yield result


def on_cpu(op: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation on the CPU, where histc takes no integers."""
    source = args[0]
    if op._schema.name != "aten::histc" or source.is_floating_point():  # noqa: SLF001 - its name
        return op(*args, **kwargs)
    return op(source.double(), *args[1:], **kwargs).to(source.dtype)


def _different(args: Any, value: Any) -> Any:
    """Return how many values differ; of booleans, CUDA counts those that are true."""
    of_booleans = str(args[0].dtype) == "torch.bool"
    return args[0].sum() if of_booleans else value[0].shape[0]


def _runs(args: Any, value: Any) -> Any:
    """Return how many runs there are, along a dimension if the fourth argument names one."""
    dims = [dim for dim in args[3:] if dim is not None]
    return value[0].shape[dims[0] if dims else 0]


# What their CUDA kernels read back: Nonzero.cu, UniqueCub.cu, Unique.cu.
_SIZES: dict[str, Callable[[Any, Any], Any]] = {
    "aten::nonzero": lambda _args, value: value.shape[0],
    "aten::_unique": _different,
    "aten::_unique2": _different,
    "aten::unique_consecutive": _runs,
    "aten::unique_dim": lambda args, value: value[0].shape[args[1]],
}
