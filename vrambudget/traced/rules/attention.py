"""Scaled dot-product attention: the kernel that PyTorch takes on the GPU."""

from typing import Any

from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.traced.rules.table import on

_DIMS = 4


@on("scaled_dot_product_attention")
def sdpa(  # noqa: PLR0917 - torch's signature
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attend; the scale is a number."""
    del scale
    if not query.ndim == key.ndim == value.ndim == _DIMS:
        return NotImplemented
    return scaled_dot_product_attention(
        query,
        key,
        value,
        mask=attn_mask,
        dropout=dropout_p,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
    )
