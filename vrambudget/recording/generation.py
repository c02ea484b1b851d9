"""What `generate` calls of an encoder-decoder, each a program: all else of it is inference's.

    encode   the encoder, once
    first    the decoder's first token: keys and values of the encoder's states are made, too
    next     a further token, or all so far without a cache

The caches of transformers are steps, for models.parts.cache has their rules: `cache.update` and
`cache.update_cross` take keys and values, `cache.read` returns those of the encoder's states, and
`cache.length` is what a static cache has on the device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn
from unittest.mock import patch

import torch
import transformers
from transformers.modeling_outputs import BaseModelOutput

from vrambudget.dtypes import int64
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.cache import CacheLayer, DynamicLayer
from vrambudget.models.parts.static_cache import StaticLayer
from vrambudget.recording.keys import Values
from vrambudget.recording.listener import Listener
from vrambudget.recording.sized import Size
from vrambudget.traced import live
from vrambudget.traced.known import of_tensor
from vrambudget.traced.tensor import TracedTensor

_MOST_LAYERS = 64
CACHE_LENGTH = 90
"""Tokens that a static cache is recorded for."""
CALLS = (
    {"call": "encode"},
    *(
        {"call": call, "cache": x}
        for x in ("dynamic", "static", "none")
        for call in ("first", "next")
    ),
)


def sizes_of(job: Values, length: int) -> dict[str, int]:
    """Return the sizes that a call has besides the batch and the prompt's length."""
    target = {"target": length - 9} if job["call"] == "next" else {}  # tokens with the new one
    return target | ({"cache_length": CACHE_LENGTH} if job.get("cache") == "static" else {})


CALLED = ("call", "cache", "cache_length", "padding")
"""Fields of a job that is such a call."""


class RecordedError(NotModelledError):
    """A recording has the call that it was made for."""


@contextmanager
def calling(listener: Listener, job: Values) -> Iterator[None]:
    """Call a traced model as `generate` does, which ends the job, or run the job without a call."""
    call = partial(_called, listener, job) if job else live.outputs_of
    with patch.object(live, "outputs_of", call):
        yield


def _ones(*size: Any, _ones: Any = torch.ones, **given: Any) -> Any:
    """Return torch.ones of a length that is on the GPU, which PyTorch reads."""
    return _ones(*(int(x) if isinstance(x, torch.Tensor) else x for x in size), **given)


@patch.object(torch, "ones", _ones)
def _called(listener: Listener, job: Values, module: Any, inputs: Any) -> NoReturn:
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    rows, target = int(ids.shape[0]), int(inputs["labels"].shape[1])
    facts = listener.facts
    encode = partial(module.get_encoder(), input_ids=ids, attention_mask=mask, return_dict=True)
    if job["call"] == "encode":
        del facts["inputs"]["labels"]
        _end(listener, encode())
    listener.is_on = False
    cache_length, cache = int(job.get("cache_length", CACHE_LENGTH)), None
    if job["cache"] != "none":
        own, cross = (
            _RecordedKeys(listener, n, job["cache"]) for n in (cache_length, int(ids.shape[1]))
        )
        cross.is_cross = True
        cache = transformers.EncoderDecoderCache(own, cross)

    def decode(new: Any, states: Any) -> Any:
        return module(
            decoder_input_ids=new,
            encoder_outputs=BaseModelOutput(last_hidden_state=states),
            attention_mask=mask,
            past_key_values=cache,
            use_cache=cache is not None,
        )

    encoded = encode()[0].v
    if job["call"] == "next" and cache is not None:
        decode(traced(empty((rows, target - 1), int64)), traced(encoded))
    del facts["inputs"]["labels"], facts["inputs"]["input_ids"]
    listener.is_on = True
    tokens = target if job["call"] == "next" and cache is None else 1
    states = _input(listener, "encoder_states", empty(encoded.shape, encoded.dtype))
    new = _input(listener, "decoder_input_ids", empty((rows, tokens), int64))
    del encoded
    _end(listener, decode(new, states))


def traced(v: Tensor) -> TracedTensor:
    """Return what the model's code sees of a tensor, which has a name."""
    x: TracedTensor = vars(live)["traced_tensor"](v)
    return x


def step(
    listener: Listener, name: str, results: tuple[Tensor, ...], given: list[Any], **options: Any
) -> Any:
    """Write down that a shared function is called, whose results these are."""
    names = [listener.fresh() for _ in results]
    own = {key: listener.encoded(value) for key, value in options.items()}
    listener.emit("op", name, names, [None if x is None else x.named for x in given], own)
    listener.temporaries |= {id(v): (n, v) for n, v in zip(names, results, strict=True)}
    return tuple(traced(v) for v in results)


def _input(listener: Listener, name: str, v: Tensor) -> Any:
    """Return what the model's code sees of an input that the job itself does not feed."""
    listener.inputs[name] = listener.fresh()
    listener.temporaries[id(v)] = listener.inputs[name], v
    listener.facts["inputs"][name] = [list(v.shape), v.dtype]
    return traced(v)


def _end(listener: Listener, outputs: Any) -> NoReturn:
    """Note what a call returns, and end the job."""
    listener.facts["loss"] = None
    live.tensors_in(outputs, TracedTensor)  # which notes them
    raise RecordedError("it is recorded")


class _RecordedKeys(transformers.Cache):
    """The keys and values of all layers; what is done with them is a step each."""

    is_compileable = is_cross = False
    is_sliding: Any = (False,)

    def __init__(self, listener: Listener, cache_length: int, kind: str) -> None:
        self._listener, self._cache_length = listener, Size(cache_length)
        self.is_compileable = kind == "static"
        self._made: dict[int, CacheLayer] = {}
        self.layers: Any = [_Read(self, number) for number in range(_MOST_LAYERS)]

    def made(self, number: int) -> CacheLayer:
        """Return a layer as our rules have it."""
        make = (
            partial(StaticLayer, int(self._cache_length)) if self.is_compileable else DynamicLayer
        )
        return self._made.setdefault(number, make())

    def update(self, key_states: Any, value_states: Any, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Take keys and values of the new tokens."""
        made = self.made(layer_idx).update(key_states.v, value_states.v)
        name = "cache.update_cross" if self.is_cross else "cache.update"
        return self._step(name, made, [key_states, value_states])

    def _step(self, name: str, made: Any, given: Any) -> Any:
        if self._listener.is_on:
            return step(self._listener, name, made, given)
        return tuple(map(traced, made))

    def read(self, number: int) -> Any:
        """Return the keys and values of a layer."""
        layer = self.made(number)
        return self._step("cache.read", (layer.keys, layer.values), [])

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Return how many tokens there are: of a static cache on the device."""
        seen = self.made(layer_idx).seen
        if not seen or not self.is_compileable:
            return Size(seen)
        (found,) = self._step("cache.length", (empty((), int64),), [])
        found.known = of_tensor(torch.tensor(seen))
        return found

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many keys the new tokens see, and the first one's place."""
        seen = self.made(layer_idx).seen
        return (self._cache_length if self.is_compileable else seen + query_length), 0


class _Read:
    """A layer that a cross-attention reads."""

    is_sliding = False

    def __init__(self, keys: _RecordedKeys, number: int) -> None:
        self._read = partial(keys.read, number)
        self._values: Any = None

    @property
    def keys(self) -> Any:
        """Return the keys; the values come with them."""
        found, self._values = self._read()
        return found

    @property
    def values(self) -> Any:
        """Return the values, whose keys were read."""
        found, self._values = self._values, None
        return found
