"""What kernels allocate themselves, which Inductor's wrapper does not show.

    matrix products      the workspaces of cuBLAS and cuBLASLt
    attention            copies of arguments whose strides its kernels do not take; their buffers
    any other            as in a model that is traced (traced.kernels)

Source: that of the rules in `ops`; strides are those of the tensors that the wrapper passes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.engine.versions import torch_since
from vrambudget.ops.attention import cudnn, efficient, flash
from vrambudget.ops.workspaces import addmm_workspace, bmm_workspace, cublas_workspace
from vrambudget.traced import kernels
from vrambudget.traced.tensor import dtype_of

_CUDNN = "_scaled_dot_product_cudnn_attention"
_FLASH = "_scaled_dot_product_flash_attention"
_EFFICIENT = "_scaled_dot_product_efficient_attention"


def copied(name: str, args: Sequence[Any]) -> list[Tensor]:
    """Return copies that an operation makes of its arguments before it makes its results."""
    if name == f"{_FLASH}_backward":
        return _made_contiguous(args[0], args[4])
    if name == f"{_EFFICIENT}_backward":
        return _made_contiguous(args[0])
    return []


def _made_contiguous(*given: torch.Tensor) -> list[Tensor]:
    """Return copies of tensors [B, H, S, D] that do not lie as [B, S, H, D]."""
    return [
        empty(tuple(x.shape), dtype_of(x.dtype))
        for x in given
        if not x.transpose(1, 2).is_contiguous()
    ]


def on_host(name: str, results: Any) -> Sequence[Any]:
    """Return the results of an operation that are not on the GPU."""
    if name == _EFFICIENT and not torch_since(2, 14):
        seed_and_offset: Sequence[Any] = results[2:]
        return seed_and_offset
    return ()


def buffers(func: Any, name: str, args: Sequence[Any], result: Any) -> None:
    """Allocate and free what an operation's kernels need besides its results."""
    rule = _RULES.get(name)
    if rule is not None:
        rule(args)
    else:
        kernels.temporaries(func, name, args, result)


def product(name: str, args: Sequence[Any]) -> None:
    """Allocate what a matrix product that writes into a buffer allocates."""
    context.operation = name
    if name in ("bmm", "baddbmm"):
        bmm_workspace(args[-2].shape[2])
    elif name == "addmm" and args[0].dim() == 1:  # a bias
        cublas_workspace(epilogue=True)
    elif name == "addmm":
        addmm_workspace()
    else:
        cublas_workspace()


def _cudnn_forward(args: Sequence[Any]) -> None:
    q, k, v = (tuple(x.shape) for x in args[:3])
    dropout = args[5] if len(args) > 5 else 0.0  # noqa: PLR2004 - left out where it is the default
    cudnn.forward_buffers(cudnn.sizes_of(q, k, v), dropout)


def _cudnn_backward(args: Sequence[Any]) -> None:
    q, k, v = (tuple(x.shape) for x in args[1:4])
    cudnn.backward_buffers(cudnn.sizes_of(q, k, v), dtype_of(args[1].dtype), args[13])


def _flash_forward(args: Sequence[Any]) -> None:
    dropout = args[3] if len(args) > 3 else 0.0  # noqa: PLR2004 - left out where it is the default
    if not dropout:
        flash.split_accumulators(tuple(args[0].shape), tuple(args[1].shape))


def _flash_backward(args: Sequence[Any]) -> None:
    q, k = args[1:3]
    flash.backward_buffers(tuple(q.shape), tuple(k.shape[1:3]), dtype_of(k.dtype))


def _efficient_forward(args: Sequence[Any]) -> None:
    q, v = args[0], args[2]
    efficient.forward_buffers(tuple(q.shape), v.shape[3], dtype_of(q.dtype))


def _efficient_backward(args: Sequence[Any]) -> None:
    q, k, v, dropout = args[1], args[2], args[3], args[9]
    kind = dtype_of(q.dtype)
    efficient.backward_buffers(tuple(q.shape), k.shape[2], v.shape[3], kind, dropout)


_RULES: dict[str, Callable[[Sequence[Any]], None]] = {
    _CUDNN: _cudnn_forward,
    f"{_CUDNN}_backward": _cudnn_backward,
    _FLASH: _flash_forward,
    f"{_FLASH}_backward": _flash_backward,
    _EFFICIENT: _efficient_forward,
    f"{_EFFICIENT}_backward": _efficient_backward,
}
