"""nn.TransformerEncoderLayer's fast path, which it takes in eval mode without gradients.

Its C++ is called as one operation; here are the operations that it is made of on a GPU.

Source: torch/nn/modules/transformer.py (TransformerEncoderLayer.forward);
aten/src/ATen/native/transformers/transformer.cpp (transformer_encoder_layer_forward, norm,
linear_for_ffn), cuda/attention.cu (native_multi_head_attention_cuda).
Not modelled: masks and nested tensors.
"""

from __future__ import annotations

from typing import Any

import torch

from vrambudget.errors import NotModelledError
from vrambudget.traced.tensor import REHEARSE


def encoder_layer(  # noqa: PLR0917 - the schema of aten
    src: Any,
    width: int,
    heads: int,
    qkv_weight: Any,
    qkv_bias: Any,
    proj_weight: Any,
    proj_bias: Any,
    use_gelu: bool,  # noqa: FBT001
    norm_first: bool,  # noqa: FBT001
    eps: float,
    *rest: Any,
) -> Any:
    """torch._transformer_encoder_layer_fwd."""
    first, second, up, down = rest[:2], rest[2:4], rest[4:6], rest[6:8]
    if any(mask is not None for mask in rest[8:9]):
        raise NotModelledError(
            "nn.TransformerEncoderLayer in eval mode with a mask is not modelled", hint=REHEARSE
        )

    def norm(x: Any, parameters: Any) -> Any:
        weight, bias = parameters
        return torch.layer_norm(x, (width,), weight, bias, eps)

    x = norm(src, first) if norm_first else src
    x = _attention(x, heads, (qkv_weight, qkv_bias), (proj_weight, proj_bias))
    x.add_(src)
    x = x if norm_first else norm(x, first)
    residual = x
    x = norm(x, second) if norm_first else x
    x = _feed_forward(x, up, down, use_gelu=use_gelu)
    x.add_(residual)
    return x if norm_first else norm(x, second)


def _attention(x: Any, heads: int, qkv: Any, proj: Any) -> Any:
    batch, length, width = x.shape
    shape = (batch, length, heads, width // heads)
    packed = torch.nn.functional.linear(x, *qkv)
    q, k, v = (part.view(shape).transpose(1, 2) for part in packed.chunk(3, -1))
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return torch.nn.functional.linear(y.transpose(1, 2).reshape(batch, length, width), *proj)


def _feed_forward(x: Any, up: Any, down: Any, *, use_gelu: bool) -> Any:
    rows = x.view(-1, x.shape[-1])
    product: Any = torch._addmm_activation  # noqa: SLF001 - what its C++ calls
    hidden = product(up[1], rows, up[0].t(), use_gelu=use_gelu)
    return torch.addmm(down[1], hidden, down[0].t()).view(x.shape)


FAST_PATH = (
    (torch, "_transformer_encoder_layer_fwd", encoder_layer),
    (torch.overrides, "has_torch_function", lambda _tensors: False),  # its modules ask that first
)
"""What lets modules take it while a mode sees each call: where, by which name, and what."""
