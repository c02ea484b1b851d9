"""scaled_dot_product_attention, down to the kernel that the GPU would run.

PyTorch's C++ chooses a kernel by the GPU; here `ops.attention.select` does, and what C++ does
around the kernel is done again in Python: head dimensions padded to multiples of 8 for flash, bool
masks turned into biases and aligned for the memory-efficient kernel.

Source: aten/src/ATen/native/transformers/attention.cpp (scaled_dot_product_attention,
pad_last_dim, convert_boolean_attn_mask, preprocess_mask, pad_bias).
"""

from typing import Any

import torch

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.attention import select_kernel
from vrambudget.traced.tensor import dtype_of

_ALIGNMENT = 8
_DIMENSIONS = 4  # [batch, heads, length, head_dim]: any other goes the mathematical way
aten = torch.ops.aten


def attend(  # noqa: PLR0917 - the schema of aten
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002 - the schema of aten
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Return attention's output, as torch.ops.aten.scaled_dot_product_attention."""
    wants = torch.is_grad_enabled()
    if not q.dim() == k.dim() == v.dim() == _DIMENSIONS:
        return aten._scaled_dot_product_attention_math(
            q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    before, context.grad_enabled = context.grad_enabled, wants
    kernel = select_kernel(
        *(_described(x) for x in (q, k, v)),
        mask=None if attn_mask is None else _described(attn_mask),
        dropout=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
    )
    context.grad_enabled = before
    if kernel == "flash":
        return _flash(q, k, v, dropout=dropout_p, is_causal=is_causal, scale=scale)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        zero, minus_infinity = (
            torch.scalar_tensor(value, dtype=q.dtype, device=q.device)
            for value in (0.0, float("-inf"))
        )
        attn_mask = torch.where(attn_mask, zero, minus_infinity)
    needs = wants and any(x.requires_grad for x in (q, k, v))
    if kernel == "cudnn":
        return aten._scaled_dot_product_cudnn_attention(
            q, k, v, attn_mask, needs, dropout_p, is_causal, scale=scale
        )[0]
    if kernel == "efficient":
        bias = None if attn_mask is None else _aligned(attn_mask, (*q.shape[:3], k.shape[2]))
        return aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, needs, dropout_p, is_causal, scale=scale
        )[0]
    return aten._scaled_dot_product_attention_math(
        q, k, v, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]


def _flash(q: Any, k: Any, v: Any, *, dropout: float, is_causal: bool, scale: float | None) -> Any:
    head_dim = q.shape[-1]
    missing = -head_dim % _ALIGNMENT
    if missing:
        q, k, v = (torch.nn.functional.pad(x, [0, missing]) for x in (q, k, v))
    scale = head_dim**-0.5 if scale is None else scale
    out = aten._scaled_dot_product_flash_attention(
        q,
        k,
        v,
        dropout,
        is_causal,
        return_debug_mask=False,
        scale=scale,
    )[0]
    return out[..., :head_dim] if missing else out


def _aligned(bias: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    strides = bias.stride()
    if strides[-1] != 1 or any(stride % _ALIGNMENT for stride in strides[:-1]):
        length = bias.shape[-1]
        padded = torch.nn.functional.pad(bias, [0, _ALIGNMENT - length % _ALIGNMENT])
        bias = padded[..., :length]
    return bias.expand(shape)


def _described(x: torch.Tensor) -> Tensor:
    """Return a tensor of the engine that says what selects a kernel; it has no storage."""
    no_storage: Any = None  # never read
    shape, strides = (tuple(map(_number, given)) for given in (x.shape, x.stride()))
    found = Tensor(shape, dtype_of(x.dtype), no_storage, strides)
    found.requires_grad = x.requires_grad
    return found


def _number(size: int | torch.SymInt) -> int:
    """Return a size as a number: that of this call, where the graph is compiled for any."""
    return size if isinstance(size, int) else int(size.node.hint)
