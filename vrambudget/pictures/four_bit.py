"""Linear layers in nf4, as bitsandbytes runs them: the weight is unpacked for each product.

    weight     [numel / 2, 1]   uint8
    absmax     [numel / 64]     float32
    code       [16]             float32
    unpacked   [O, I]           in x's type, temporary; in backward again

Source: bitsandbytes/autograd/_functions.py (MatMul4Bit), functional.py (quantize_4bit).
Not modelled: double quantisation; the kernel for one row, which unpacks nothing.
"""

from typing import Any

import torch

_BLOCK = 64  # values that share a scale
_CODES = 16


class _Product(torch.autograd.Function):
    """x times the unpacked weight, which no graph keeps."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, shape: Any, bias: Any) -> Any:
        """Return the product."""
        ctx.save_for_backward(weight)
        ctx.shape = shape
        return torch.nn.functional.linear(x, _unpacked(weight, shape, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        """Return x's gradient."""
        (weight,) = ctx.saved_tensors
        return torch.matmul(dy, _unpacked(weight, ctx.shape, dy.dtype)), None, None, None


def _unpacked(weight: torch.Tensor, shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device=weight.device)


class Linear4bit(torch.nn.Linear):
    """A linear layer whose weight is packed; PEFT adapts it as it adapts any other."""

    @classmethod
    def of(cls, linear: torch.nn.Linear) -> "Linear4bit":
        """Return the layer that takes a linear layer's place."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new.in_features, new.out_features = linear.in_features, linear.out_features
        count = linear.weight.numel()
        packed = torch.empty(((count + 1) // 2, 1), dtype=torch.uint8, device="meta")
        new.weight = torch.nn.Parameter(packed, requires_grad=False)
        new.bias = linear.bias
        new.register_buffer("absmax", torch.empty(-(-count // _BLOCK), device="meta"))
        new.register_buffer("code", torch.empty(_CODES, device="meta"))
        return new

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product in x's type."""
        if torch.is_autocast_enabled("cuda"):
            x = x.to(torch.get_autocast_dtype("cuda"))
        own: torch.Tensor | None = self.bias  # None, too, whatever torch's types say
        bias = None if own is None else own.to(x.dtype)
        shape = (self.out_features, self.in_features)
        return _Product.apply(x, self.weight, shape, bias)  # type: ignore[no-any-return,no-untyped-call]


def in_four_bit(module: torch.nn.Module) -> None:
    """Put a module's linear layers in nf4, but those that it keeps in float32."""
    kept = getattr(module, "_keep_in_fp32_modules", None) or ()
    for path, part in [*module.named_modules()]:
        for name, child in [*part.named_children()]:
            whole = f"{path}.{name}".split(".")
            if type(child) is torch.nn.Linear and not any(word in whole for word in kept):
                setattr(part, name, Linear4bit.of(child))
