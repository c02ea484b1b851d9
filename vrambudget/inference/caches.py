"""Which cache of keys and values `generate` makes for its `cache_implementation`.

Source: generation/utils.py of transformers 5.17 (_prepare_cache_for_generation).
"""

from collections.abc import Callable

from vrambudget.config.fields.generation import CacheKind
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.cache import AnyCache, EncoderDecoderCache, SlidingLayer


def cache_of(kind: CacheKind, dynamic: Callable[[], AnyCache], length: int) -> AnyCache | None:
    """Return an empty cache; `length`: tokens that it will hold."""
    if kind == "none":
        return None
    if kind == "static":
        from vrambudget.models.parts.static_cache import static_cache  # noqa: PLC0415

        like = dynamic()
        if isinstance(like, EncoderDecoderCache):
            raise NotModelledError("a static cache of an encoder-decoder is not modelled")
        return static_cache(like, length)
    return dynamic()


def windows_of(cache: AnyCache) -> tuple[int | None, ...]:
    """Return the windows of its layers, each once; None for layers that see all tokens."""
    windows = (layer.window if isinstance(layer, SlidingLayer) else None for layer in cache.layers)
    return tuple(dict.fromkeys(windows))
