"""The keys and values that a model keeps of tokens it has seen (transformers' `past_key_values`).

    DynamicLayer   [B, Hkv, S, D] twice. Each update makes new tensors of all tokens, the old ones
                   beside them until they are there; the first one copies what it is given
    SlidingLayer   the same, but keeps views of the last window - 1 tokens: the storage is that of
                   all tokens of the update, until the next one

Source: cache_utils.py of transformers 5.17 (DynamicLayer, DynamicSlidingWindowLayer, DynamicCache).
Not modelled: cropping (assisted decoding), linear-attention layers.
"""

from collections.abc import Iterator, MutableSequence, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol

from vrambudget.config.model_config import ModelConfig
from vrambudget.dtypes import DType, bool_, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.layer_state import FilledByLayers, LayerPart
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.anew import Anew
from vrambudget.ops.creation import made
from vrambudget.ops.shape import cat, narrowed
from vrambudget.tape.events import Purpose

_LENGTH = 2  # the dimension of tokens


class CacheLayer(Protocol):
    """What one layer keeps."""

    keys: Tensor | None
    values: Tensor | None
    is_sliding: bool

    @property
    def seen(self) -> int:
        """Tokens so far."""

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Take the keys and values of new tokens; return those that attention reads."""

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """Return how many keys the next `queries` tokens see, and the position of the first."""

    def grow(self, tokens: int, new: Anew) -> None:
        """Become what it will be after so many more tokens, one by one."""


@dataclass(slots=True)
class DynamicLayer(LayerPart):
    """DynamicLayer: all tokens."""

    keys: Tensor | None = None
    values: Tensor | None = None
    is_sliding: bool = False

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return 0 if self.keys is None else self.keys.shape[_LENGTH]

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Join the new tokens to the old ones."""
        with made_for(Purpose.KV_CACHE):
            dtype = key.dtype if self.keys is None else self.keys.dtype
            self.keys = _joined(self.keys, key, dtype)
            self.values = _joined(self.values, value, dtype)
        return self.keys, self.values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """All keys, from the first on."""
        return self.seen + queries, 0

    def grow(self, tokens: int, new: Anew) -> None:
        """Hold so many tokens more."""
        self.keys = new.longer(self.keys, tokens, _LENGTH)
        self.values = new.longer(self.values, tokens, _LENGTH)


@dataclass(slots=True)
class SlidingLayer(LayerPart):
    """DynamicSlidingWindowLayer: the tokens that a window can still reach."""

    window: int
    keys: Tensor | None = None
    values: Tensor | None = None
    seen: int = 0
    window_tensor: Tensor | None = None  # on the device from the first update on
    is_sliding: bool = True

    def update(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Join the new tokens to the old ones; keep a view of the last."""
        with made_for(Purpose.KV_CACHE):
            if self.window_tensor is None:
                self.window_tensor = made("to_device", (), int64)
            self.seen += key.shape[_LENGTH]
            dtype = key.dtype if self.keys is None else self.keys.dtype
            keys = _joined(self.keys, key, dtype)
            values = _joined(self.values, value, dtype)
        self.keys, self.values = self._last(keys), self._last(values)
        return keys, values

    def mask_sizes(self, queries: int) -> tuple[int, int]:
        """Return the keys in the window, and the position of the first."""
        offset = max(self.seen - self.window + 1, 0)
        kept = self.window - 1 if self.seen >= self.window else self.seen
        return kept + queries, offset

    def grow(self, tokens: int, new: Anew) -> None:
        """Be so many tokens further on: what is kept is a view of it and the newest token."""
        self.seen += tokens
        self.keys, self.values = self._grown(self.keys, new), self._grown(self.values, new)

    def _grown(self, x: Tensor | None, new: Anew) -> Tensor | None:
        if x is None:
            return None
        B, H, _, D = x.shape
        is_view = x.strides is not None  # else it was copied since, in another order of rows
        shape = B, H, min(self.seen, self.window - (not is_view)), D
        content = x.storage.tape.contents[x.storage.index]
        if not new.everything and content is not None and content[0] == shape:
            return x
        return self._last(new.shaped(x, shape))

    def _last(self, x: Tensor) -> Tensor:
        length = min(x.shape[_LENGTH], self.window - 1)
        return narrowed(x, _LENGTH, length)


def _joined(old: Tensor | None, new: Tensor, dtype: DType) -> Tensor:
    """torch.cat([old, new], dim=-2); at first the old one is empty, in the keys' type.

    Under autocast that type may not be the values': the kernel casts as it copies.
    """
    return cat([new] if old is None else [old, new], dim=_LENGTH, wider=dtype)


def _reordered(x: Tensor) -> Tensor:
    """x.index_select(0, beam_idx)."""
    with made_for(Purpose.KV_CACHE):
        return made("index_select", x.shape, x.dtype)


@dataclass(slots=True)
class Cache(FilledByLayers):
    """Cache: one layer's keys and values for each layer of a decoder."""

    layers: MutableSequence[CacheLayer]
    is_static: bool = False  # is_compileable: of layers whose length is fixed
    is_traced: bool = False  # steps do not repeat one another: each has to be traced

    def update(self, key: Tensor, value: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Take the keys and values [B, Hkv, T, D] of a layer's new tokens."""
        return self.layers[layer].update(key, value)

    @property
    def seen(self) -> int:
        """Tokens so far."""
        return self.layers[0].seen

    def tensors(self) -> Iterator[Tensor]:
        """Yield what all layers hold."""
        for layer in self.layers:
            if layer.keys is not None and layer.values is not None:
                yield layer.keys
                yield layer.values

    def grow(self, tokens: int, new: Anew) -> None:
        """Become what it will be after so many more tokens, one by one."""
        for layer in self.layers:
            layer.grow(tokens, new)

    def odd_steps(self, done: int) -> range:
        """Return decoding steps that do not do what those between them do, as far as is known.

        `done`: steps so far.
        """
        del done
        return range(0)

    def reorder(self) -> None:
        """reorder_cache: keys and values of each layer in another order of rows."""
        for layer in self.layers:
            if self.is_static and not layer.is_sliding:
                has_tokens = made("gt", (), bool_)  # its length is on the device
                del has_tokens
            layer.keys = layer.keys and _reordered(layer.keys)
            layer.values = layer.values and _reordered(layer.values)

    def copy(self) -> "Cache":
        """Return a cache that holds the same tensors."""
        return replace(self, layers=[copy(layer) for layer in self.layers])

    def layer_for_mask(self, *, is_sliding: bool) -> CacheLayer:
        """Return the first layer of the kind that a mask is for (create_causal_mask)."""
        kind = (layer for layer in self.layers if layer.is_sliding == is_sliding)
        return next(kind, self.layers[0])


@dataclass(slots=True)
class EncoderDecoderCache:
    """EncoderDecoderCache: a decoder's own keys and values, and those of the encoder's states.

    The latter are made once, in the first pass.
    """

    self_attention: Cache
    cross_attention: Cache
    is_static: bool = False
    is_traced: bool = False

    @classmethod
    def of(cls, layers: int) -> "EncoderDecoderCache":
        """Return an empty cache for so many layers of a decoder."""
        return cls(dynamic_cache([None] * layers), dynamic_cache([None] * layers))

    @property
    def layers(self) -> Sequence[CacheLayer]:
        """Those of the decoder's own tokens."""
        return self.self_attention.layers

    def tensors(self) -> Iterator[Tensor]:
        """Yield what all layers hold."""
        yield from self.self_attention.tensors()
        yield from self.cross_attention.tensors()

    def grow(self, tokens: int, new: Anew) -> None:
        """Become what it will be after so many more tokens of the decoder, one by one."""
        self.self_attention.grow(tokens, new)
        self.cross_attention.grow(0, new)

    def odd_steps(self, done: int) -> range:
        """Return what those of the decoder's own tokens do."""
        return self.self_attention.odd_steps(done)

    def reorder(self) -> None:
        """reorder_cache of both."""
        self.self_attention.reorder()
        self.cross_attention.reorder()

    def copy(self) -> "EncoderDecoderCache":
        """Return a cache that holds the same tensors."""
        return EncoderDecoderCache(self.self_attention.copy(), self.cross_attention.copy())


AnyCache = Cache | EncoderDecoderCache


class CachesKeysAndValues(Module):
    """A decoder with a head, which makes a cache where its caller gives none and wants one."""

    config: ModelConfig

    def past(self, given: Cache | None, use_cache: bool | None) -> Cache | None:  # noqa: FBT001
        """Return what a forward pass fills: what it is given, or with `use_cache` an empty cache.

        A model that checkpoints its layers makes none (merge_with_config_defaults).
        """
        options = context.options
        usual = options.use_cache or self.config.caches_by_itself
        wanted = usual if use_cache is None else use_cache
        if given is not None or not wanted or (options.checkpointing and self.training):
            return given
        cache: Cache | None = self.config.new_cache()
        return cache


def dynamic_cache(windows: Sequence[int | None]) -> Cache:
    """DynamicCache(config=...): a layer for each window, None where a layer sees all tokens."""
    return Cache([DynamicLayer() if w is None else SlidingLayer(w) for w in windows])
