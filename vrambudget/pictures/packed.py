"""Linear layers in nf4, as diffusers' quantizer makes them: without double quantisation.

    weight     [numel / 2, 1]   uint8
    absmax     [numel / 64]     float32
    code       [16]             float32

Layers that stay in float32 stay as they are.
Source: diffusers/quantizers/bitsandbytes (replace_with_bnb_linear).
"""

from collections.abc import Collection
from typing import NamedTuple

from vrambudget.dtypes import DType, float32, uint8
from vrambudget.engine.context import on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Shape, Tensor, empty
from vrambudget.models.parts.layers import Linear
from vrambudget.ops.four_bit import FourBit
from vrambudget.training.kbit import Linear4bit

_BLOCK, _CODES = 64, 16


class Packed(NamedTuple):
    """How a packed weight lies, and the tables that come with it."""

    shape: Shape
    tables: tuple[Tensor, Tensor]


def pack(model: Module, dtype: DType, kept: Collection[str]) -> dict[int, Packed]:
    """Put linear layers in 4 bits, but in modules of `kept` names; return the packs by weight."""
    found: dict[int, Packed] = {}
    for prefix, module in model.named_modules():
        for name, child in [*vars(module).items()]:
            words = {name, *prefix.split(".")}
            if not isinstance(child, Linear) or child.weight.dtype is not dtype or words & {*kept}:
                continue
            layer, n = Linear4bit(child), child.weight.numel
            with on_meta():
                packed = empty(((n + 1) // 2, 1), uint8)
                tables = empty((-(-n // _BLOCK),), float32), empty((_CODES,), float32)
            layer.quantised = FourBit(child.weight.shape, dtype, packed, *tables)
            setattr(module, name, layer)
            found[id(child.weight)] = Packed(packed.shape, tables)
    return found
