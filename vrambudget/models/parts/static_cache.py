"""Caches of keys and values whose length is fixed before the first token.

    StaticLayer          [B, Hkv, L, D] twice, zeros at the first update; written in place, and
                         attention reads all L of them
    StaticSlidingLayer   the last min(window, L); once it is full each update rolls both by one

Steps are not compiled here (`disable_compile=True`). With CUDA graphs, which `generate` takes for
these caches by default, graphs' own pools come on top.

Source: cache_utils.py of transformers 5.17 (StaticLayer, StaticSlidingWindowLayer, StaticCache).
Not modelled: chunked prefill, for which all layers are made before the first chunk.
"""

from dataclasses import dataclass

from vrambudget.dtypes import DType, int64
from vrambudget.engine.context import made_for
from vrambudget.engine.layer_state import LayerPart
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.anew import Anew
from vrambudget.models.parts.cache import Cache, SlidingLayer
from vrambudget.ops.creation import arange, made
from vrambudget.tape.events import Purpose

_LENGTH = 2  # the dimension of tokens


@dataclass(slots=True)
class StaticLayer(LayerPart):
    """StaticLayer: room for `length` tokens."""

    length: int
    keys: Tensor | None = None
    values: Tensor | None = None
    seen: int = 0
    cumulative_length: Tensor | None = None  # on the device from the first update on
    is_sliding: bool = False

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new tokens behind the old ones; return all there is room for."""
        keys, values = self._made(key, value)
        self.seen += key.shape[_LENGTH]
        _positions(key.shape[_LENGTH])
        return keys, values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """All there is room for, from the first on."""
        del queries
        return self.length, 0

    def grow(self, tokens: int, new: Anew) -> None:
        """Hold so many tokens more."""
        self.seen += tokens
        self.keys, self.values = new.longer(self.keys, 0), new.longer(self.values, 0)

    def _made(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """lazy_initialization, unless it was done."""
        if self.keys is None or self.values is None:
            with made_for(Purpose.KV_CACHE):
                self.keys = _zeros(key, self.length, key.dtype)
                self.values = _zeros(value, self.length, key.dtype)
                self.cumulative_length = made("to_device", (), int64)
        if value.dtype is not self.values.dtype:
            raise NotModelledError(
                f"a static cache takes values of {self.values.dtype}, and they are {value.dtype}",
                hint="generate fails there: load the weights in 16 bit instead of under autocast",
            )
        return self.keys, self.values


@dataclass(slots=True)
class StaticSlidingLayer(StaticLayer):
    """StaticSlidingWindowLayer: room for a window, or for all tokens where they are fewer."""

    is_sliding: bool = True

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new tokens, or shift the window; return what attention reads."""
        keys, values = self._made(key, value)
        new, before = key.shape[_LENGTH], self.seen
        self.seen += new
        if before >= self.length:
            new_keys = made("roll", keys.shape, keys.dtype)
            new_values = made("roll", values.shape, values.dtype)
            index = made("to_device", (1,), int64)
            del index, new_keys, new_values
        elif before + new > self.length:
            return key, value
        else:
            _positions(new)
        return keys, values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """Return the keys that attention reads, and the position of the first."""
        offset = max(self.seen - self.length + 1, 0)
        if self.seen >= self.length:
            return self.length + queries - 1, offset
        return max(self.seen + queries, self.length), offset


def static_cache(like: Cache, length: int) -> Cache:
    """StaticCache(config=..., max_cache_len=length) for layers that see what those of `like` do."""
    return Cache(
        [
            StaticSlidingLayer(min(layer.window, length))
            if isinstance(layer, SlidingLayer)
            else StaticLayer(length)
            for layer in like.layers
        ],
        is_static=True,
    )


def _zeros(x: Tensor, length: int, dtype: DType) -> Tensor:
    B, H, _, D = x.shape
    return made("zeros", (B, H, length, D), dtype)


def _positions(tokens: int) -> None:
    """cache_position, which index_copy_ reads."""
    offset = arange(tokens)
    positions = made("add", (tokens,), int64)
    del offset, positions
