"""Which cache of keys and values `generate` makes for its `cache_implementation`.

Source: generation/utils.py of transformers 5.17 (_prepare_cache_for_generation).
"""

from collections.abc import Callable

from vrambudget.config.fields.generation import CacheKind
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.cache import AnyCache, Cache, EncoderDecoderCache, SlidingLayer


def cache_of(
    kind: CacheKind, dynamic: Callable[[], AnyCache], length: int, encoded: int, bits: int
) -> AnyCache | None:
    """Return an empty cache.

    `length`: tokens that it will hold, `encoded`: those of an encoder, `bits`: of a quantised one.
    Raises NotModelledError for what `generate` refuses.
    """
    if kind == "none":
        return None
    if kind == "offloaded":
        from vrambudget.models.parts.offloaded_cache import OffloadedCache  # noqa: PLC0415

        return OffloadedCache(_of_a_decoder(dynamic(), kind).layers)
    if kind == "static":
        from vrambudget.models.parts.static_cache import static_cache  # noqa: PLC0415

        like = dynamic()
        if isinstance(like, EncoderDecoderCache):
            own, cross = like.self_attention, like.cross_attention
            return EncoderDecoderCache(
                static_cache(own, length), static_cache(cross, encoded), is_static=True
            )
        return static_cache(like, length)
    if kind == "quantized":
        from vrambudget.models.parts.quantized_cache import QuantizedCache  # noqa: PLC0415

        return QuantizedCache(_of_a_decoder(dynamic(), kind), bits)
    return dynamic()


def _of_a_decoder(cache: AnyCache, kind: str) -> Cache:
    if isinstance(cache, EncoderDecoderCache):
        raise NotModelledError(
            f"cache {kind!r} of an encoder-decoder is not modelled: generate fails with it",
            hint="transformers quantises no such cache, and looks on the GPU for the encoder's keys"
            " that it offloaded; --cache dynamic and static work",
        )
    return cache


def windows_of(cache: AnyCache) -> tuple[int | None, ...]:
    """Return the windows of its layers, each once; None for layers that see all tokens."""
    windows = (layer.window if isinstance(layer, SlidingLayer) else None for layer in cache.layers)
    return tuple(dict.fromkeys(windows))
