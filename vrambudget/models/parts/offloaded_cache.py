"""A dynamic cache in main memory: one layer's keys and values on the device, and the next one's.

    update of layer l   fetches layer l + 1 on a stream of its own (after the last: the first),
                        joins the new tokens to layer l, and copies both to the host: on the device
                        they die when attention is over

Blocks of that stream are in pools of its own, which the other stream's requests cannot use.

Source: cache_utils.py of transformers 5.17 (Cache.update, prefetch, offload, CacheLayerMixin).
"""

from collections.abc import Sequence

from vrambudget.dtypes import DType
from vrambudget.engine.context import made_for, on_stream
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.models.parts.anew import Anew
from vrambudget.models.parts.cache import Cache, CacheLayer
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose

_PREFETCH = 1  # the stream that layers are fetched on


class OffloadedLayer:
    """A layer of a dynamic cache that may be on the host."""

    def __init__(self, layer: CacheLayer) -> None:
        self.layer, self.is_sliding = layer, layer.is_sliding
        self.on_host: tuple[Shape, Shape, DType] | None = None
        self.tokens = 0

    @property
    def keys(self) -> Tensor | None:
        """Those on the device."""
        return self.layer.keys

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        self.layer.keys = keys

    @property
    def values(self) -> Tensor | None:
        """Those on the device."""
        return self.layer.values

    @values.setter
    def values(self, values: Tensor | None) -> None:
        self.layer.values = values

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return self.tokens

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Join the new tokens to the old ones, then copy all to the host."""
        self.tokens += key.shape[2]
        keys, values = self.layer.update(key, value)
        if self.keys is not None and self.values is not None:
            self.on_host = self.keys.shape, self.values.shape, self.keys.dtype
            self.keys = self.values = None
        return keys, values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """Return what the layer on the device would."""
        return self.layer.mask_sizes(queries) if self.is_sliding else (self.tokens + queries, 0)

    def prefetch(self) -> None:
        """Copy keys and values to the device."""
        if self.on_host is not None:
            keys, values, dtype = self.on_host
            self.keys, self.values = made("to_copy", keys, dtype), made("to_copy", values, dtype)
            self.on_host = None

    def grow(self, tokens: int, new: Anew) -> None:
        """Refuse: each step is traced."""
        raise NotImplementedError


class OffloadedCache(Cache):
    """DynamicCache(offloading=True)."""

    def __init__(self, layers: Sequence[CacheLayer]) -> None:
        self.offloaded = [OffloadedLayer(layer) for layer in layers]
        super().__init__([*self.offloaded], is_traced=True)

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Take the keys and values of a layer's new tokens, once the next one's are fetched."""
        with on_stream(_PREFETCH), made_for(Purpose.KV_CACHE):
            self.offloaded[(layer + 1) % len(self.offloaded)].prefetch()
        return super().update(key, value, layer)
