"""Scaled dot-product attention: q, k, v [B, H, S, D] and a mask, by PyTorch's choice of kernel.

    select.py      which kernel
    cudnn.py       cuDNN's, on Hopper and Blackwell
    flash.py       FlashAttention 2
    efficient.py   CUTLASS kernels; tiles.py: their tiles and workspaces
    composed.py    "math": matrix products and a softmax
    mask.py        bool masks become biases
    layout.py      where results lie in memory

Source: aten/src/ATen/native/transformers/attention.cpp (scaled_dot_product_attention).
Not modelled: kernels that the user disables (torch.nn.attention.sdpa_kernel);
q, k and v of three dimensions; a gradient for the mask alone, which PyTorch refuses.
"""

from vrambudget.engine.autocast import lower_precision
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.attention.composed import composed_attention
from vrambudget.ops.attention.cudnn import cudnn_attention
from vrambudget.ops.attention.efficient import efficient_attention
from vrambudget.ops.attention.flash import flash_attention
from vrambudget.ops.attention.mask import additive, aligned
from vrambudget.ops.attention.select import Kernel, select_kernel

__all__ = ["Kernel", "scaled_dot_product_attention", "select_kernel"]


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """Return attention's output [B, H, Sq, Dv], as torch.nn.functional's function does."""
    if context.attention is not None:
        settings = {"mask": mask, "dropout": dropout, "is_causal": is_causal}
        return context.attention(q, k, v, **settings, enable_gqa=enable_gqa)
    # Autocast casts from the last argument to the first: the compiler's order of evaluation.
    mask = None if mask is None else lower_precision(mask)
    v = lower_precision(v)
    k = lower_precision(k)
    q = lower_precision(q)
    kernel = select_kernel(
        q, k, v, mask=mask, dropout=dropout, is_causal=is_causal, enable_gqa=enable_gqa
    )
    if kernel == "flash":
        return flash_attention(q, k, v, dropout=dropout)
    bias = None if mask is None else additive(mask, q.dtype)
    if kernel == "cudnn":
        return cudnn_attention(q, k, v, bias, dropout=dropout)
    if kernel == "efficient":
        if bias is not None:
            bias = aligned(bias, (*q.shape[:3], k.shape[2]))
        return efficient_attention(q, k, v, bias, dropout=dropout)
    return composed_attention(
        q, k, v, bias, dropout=dropout, is_causal=is_causal, enable_gqa=enable_gqa
    )
