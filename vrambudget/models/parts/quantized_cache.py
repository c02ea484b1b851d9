"""A cache of keys and values in 4 or 2 bit, with the newest tokens in full.

    QuantizedLayer   codes [B Hkv T D / 64, 64] packed to bytes, a scale and a shift for each group
                     of 64; and up to 127 tokens [B, Hkv, t, D] that came since
    update           all codes become numbers again, and are joined with the tokens since and the
                     new one: attention reads that. Each 128th token all of it is quantised anew
    prefill          attention reads the prompt's own keys and values, beside the codes

Source: cache_utils.py of transformers 5.17 (QuantizedLayer, QuantoQuantizedLayer); optimum-quanto
0.2.7: tensor/optimizers (MaxOptimizer), library/quantize.py (quantize_affine), tensor/packed.py
(pack_weights), library/extensions/cuda/unpack.cu, tensor/qbits.py (QBitsDequantizer).
Not modelled: the HQQ backend, whose solver ends by values (hqq/core/optimize.py: early_stop) and
which gives PyTorch's cache back in each quantisation; beams (transformers reorders the newest
tokens alone).
"""

import sys
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass

from vrambudget.dtypes import DType, promote, uint8
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Shape, Tensor, numel
from vrambudget.errors import VramBudgetError
from vrambudget.models.parts.anew import Anew
from vrambudget.models.parts.cache import Cache, SlidingLayer
from vrambudget.ops.creation import made
from vrambudget.ops.shape import cat, contiguous
from vrambudget.tape.events import Purpose

_GROUP = 64
_RESIDUAL = 128  # tokens in full, at most
_LENGTH = 2  # the dimension of tokens


@dataclass(frozen=True, slots=True)
class Codes:
    """A tensor in few bits: WeightQBitsTensor."""

    shape: Shape
    dtype: DType
    packed: Tensor
    scale: Tensor
    shift: Tensor

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What it holds."""
        return self.packed, self.scale, self.shift


class QuantizedLayer:
    """QuantoQuantizedLayer: `keys` and `values` are the tokens in full."""

    is_sliding = False

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.seen = 0
        self.quantised: tuple[Codes, Codes] | None = None

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Take the keys and values of new tokens; return those that attention reads."""
        self.seen += key.shape[_LENGTH]
        if self.quantised is None:
            self.quantised = self._codes(contiguous(key)), self._codes(contiguous(value))
            return key, value
        dequantised = self._numbers(self.quantised[0]), self._numbers(self.quantised[1])
        keys = _joined(dequantised[0], self.keys, key, wider=key.dtype)
        values = _joined(dequantised[1], self.values, value, wider=key.dtype)
        if self.keys is not None and self.keys.shape[_LENGTH] + 1 >= _RESIDUAL:
            codes = self._codes(keys)
            self.quantised = codes, self.quantised[1]
            del codes
            codes = self._codes(values)
            self.quantised = self.quantised[0], codes
            self.keys = self.values = None
        else:
            with made_for(Purpose.KV_CACHE):
                self.keys = _joined(self.keys, key, wider=key.dtype)
                self.values = _joined(self.values, value, wider=key.dtype)
        del dequantised  # held until here
        return keys, values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """All keys, from the first on."""
        return self.seen + queries, 0

    @property
    def waiting(self) -> int:
        """Tokens in full."""
        return 0 if self.keys is None else self.keys.shape[_LENGTH]

    @property
    def until_quantised(self) -> int:
        """After how many more tokens all are quantised anew."""
        return max(_RESIDUAL - self.waiting, 1)

    def grow(self, tokens: int, new: Anew) -> None:
        """Be so many tokens further on, which came one by one."""
        assert self.quantised is not None  # noqa: S101 - the prompt is there
        until, waiting = self.until_quantised, self.waiting + tokens
        if tokens >= until:
            waiting = (tokens - until) % _RESIDUAL
        self.seen += tokens
        wide = self.quantised[0].dtype
        keys, values = (
            self._grown(codes, self.seen - waiting, new, wide) for codes in self.quantised
        )
        self.keys = _in_full(self.keys, keys, waiting, new, wide)
        self.values = _in_full(self.values, values, waiting, new, wide)
        self.quantised = keys, values

    def tensors(self) -> Iterator[Tensor]:
        """Yield what it holds."""
        for codes in self.quantised or ():
            yield from codes.tensors
        if self.keys is not None and self.values is not None:
            yield from (self.keys, self.values)

    def _grown(self, codes: Codes, tokens: int, new: Anew, wide: DType) -> Codes:
        B, H, before, D = codes.shape
        dtype = codes.dtype if tokens == before else promote(codes.dtype, wide)
        if tokens == before and not new.everything:
            return codes
        groups = B * H * tokens * D // _GROUP
        rows = -(-groups // (8 // self.bits))
        return Codes(
            (B, H, tokens, D),
            dtype,
            new.shaped(codes.packed, (rows, _GROUP)),
            new.shaped(Tensor(codes.scale.shape, dtype, codes.scale.storage), (groups, 1)),
            new.shaped(Tensor(codes.shift.shape, dtype, codes.shift.storage), (groups, 1)),
        )

    def _codes(self, x: Tensor) -> Codes:
        """MaxOptimizer and quantize_weight: x [B, Hkv, T, D], contiguous."""
        groups, rest = divmod(x.numel // x.shape[0], _GROUP)
        if rest:
            raise VramBudgetError(
                f"a quantised cache takes groups of {_GROUP}, and {x.numel // x.shape[0]} elements"
                " of a row do not divide into them",
                hint="generate fails there: take another length of the prompt",
            )
        grouped = x.shape[0] * groups, _GROUP
        scale, shift = _scale_and_shift(grouped[0], x.dtype)
        return Codes(x.shape, x.dtype, self._packed(grouped, x.dtype), scale, shift)

    def _packed(self, grouped: Shape, dtype: DType) -> Tensor:
        shifted = made("add", grouped, dtype)
        scaled = made("div", grouped, dtype)
        del shifted
        data = made("round", grouped, dtype)
        del scaled
        clamped = made("clamp", grouped, dtype)
        codes = made("to_dtype", grouped, uint8)
        del clamped, data
        values = 8 // self.bits  # of a byte
        rows = -(-grouped[0] // values), _GROUP
        with made_for(Purpose.KV_CACHE):
            packed = made("zeros", rows, uint8)
        for part in range(min(values, grouped[0] // rows[0] + 1)):
            start = part * rows[0]
            end = min(start + rows[0], grouped[0])
            moved = made("bitwise_left_shift", (end - start, _GROUP), uint8)
            del moved
        del codes  # held until here
        return packed

    def _numbers(self, codes: Codes) -> Tensor:
        """QBitsTensor.dequantize."""
        values = 8 // self.bits
        data = made("unpack", (codes.packed.shape[0] * values, _GROUP), uint8)
        numbers = made("mul", (numel(codes.shape) // _GROUP, _GROUP), codes.dtype)
        del data
        return numbers.viewed(codes.shape, None)


class QuantizedCache(Cache):
    """QuantizedCache: a layer in few bits for each layer of a decoder."""

    def __init__(self, like: Cache, bits: int) -> None:
        if any(isinstance(layer, SlidingLayer) for layer in like.layers):
            raise VramBudgetError(
                "cache is 'quantized', and the model has layers with a window: generate refuses it",
                hint="take --cache dynamic",
            )
        self.quantised = [QuantizedLayer(bits) for _ in like.layers]
        super().__init__([*self.quantised])

    def tensors(self) -> Iterator[Tensor]:
        """Yield what all layers hold."""
        for layer in self.quantised:
            yield from layer.tensors()

    def copy(self) -> "QuantizedCache":
        """Return a cache that holds the same tensors."""
        other = copy(self)
        other.quantised = [copy(layer) for layer in self.quantised]
        other.layers = [*other.quantised]
        return other

    def odd_steps(self, done: int) -> range:
        """Return the steps that quantise: each of these, and the next one, is unlike the others."""
        following = done + self.quantised[0].until_quantised
        return range(following - _RESIDUAL, sys.maxsize, _RESIDUAL)


def _scale_and_shift(groups: int, dtype: DType) -> tuple[Tensor, Tensor]:
    """MaxOptimizer.optimize: [groups, 1] each."""
    shape = groups, 1
    least = made("amin", shape, dtype)
    most = made("amax", shape, dtype)
    with made_for(Purpose.KV_CACHE):
        distance = made("sub", shape, dtype)
        scale = made("div", shape, dtype)
        del distance
        shift = made("neg", shape, dtype)
    del least, most
    return scale, shift


def _in_full(x: Tensor | None, codes: Codes, tokens: int, new: Anew, dtype: DType) -> Tensor | None:
    """Return so many tokens [B, Hkv, tokens, D] in full, made anew where they are others."""
    B, H, _, D = codes.shape
    shape = B, H, tokens, D
    if not tokens or x is None:
        with made_for(Purpose.KV_CACHE):
            return made("cat", shape, dtype) if tokens else None
    return x if x.shape == shape and not new.everything else new.shaped(x, shape)


def _joined(*parts: Tensor | None, wider: DType) -> Tensor:
    """torch.cat(parts, dim=-2), where an empty one is None: it has the keys' type, `wider`.

    Under autocast that may not be the values'.
    """
    return cat([part for part in parts if part is not None], dim=_LENGTH, wider=wider)
