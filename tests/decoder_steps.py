"""What transformers has once for all its decoders, as single steps of what is recorded.

mask, rotary      made by who calls a layer: the program only says where they go
cache.update      keys and values of the new tokens
attention.attend  by whichever kernel a job asks for
experts           all rows through the experts that their router chose
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import transformers
from transformers.integrations.moe import ExpertsInterface
from transformers.modeling_utils import AttentionInterface

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autograd import record
from vrambudget.engine.tensor import empty
from vrambudget.models.parts.attention import attend
from vrambudget.models.parts.cache import DynamicLayer
from vrambudget.recording import models
from vrambudget.recording.casts import home_of
from vrambudget.recording.generation import step, traced
from vrambudget.recording.listener import Listener
from vrambudget.traced import live
from vrambudget.traced.tensor import dtype_of

_MASKS = ("create_causal_mask", "create_sliding_window_causal_mask")


class _KeysAndValues(transformers.DynamicCache):
    """A cache whose update is one step of the program."""

    past = 0  # tokens that it has

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
        """Take keys and values of the new tokens."""
        layer, given = DynamicLayer(), (key_states.v, value_states.v)
        if self.past:
            layer.keys, layer.values = (
                empty((*x.shape[:2], self.past, x.shape[3]), x.dtype) for x in given
            )
        made = layer.update(*given)
        return step(_heard[-1], "cache.update", made, [key_states, value_states])


def _attend(
    _module: Any, query: Any, key: Any, value: Any, mask: Any, dropout: float = 0.0, **given: Any
) -> Any:
    lengths = query.v.shape[2], key.v.shape[2]  # of a prompt alone, keys' gradients are narrowed
    own = None if lengths[0] == lengths[1] else empty((query.v.shape[0], 1, *lengths), bool_)
    output, _none = attend(query.v, key.v, value.v, own, dropout_p=0.0)
    made = output, empty((1,), query.v.dtype)
    cap = {"softcap": given["softcap"]} if given.get("softcap") else {}
    return step(
        _heard[-1], "attention.attend", made, [query, key, value, mask], dropout=dropout, **cap
    )


def _experts(_module: Any, hidden_states: Any, top_k_index: Any, top_k_weights: Any) -> Any:
    trained = hidden_states.v, top_k_weights.v
    layouts = [(x.shape, x.dtype) for x in trained]
    made = record(
        "experts",
        empty(*layouts[0]),
        inputs=trained,
        backward=lambda _: tuple(empty(*layout) for layout in layouts),
    )
    return step(_heard[-1], "experts", (made,), [hidden_states, top_k_index, top_k_weights])[0]


def _mask(*_: Any, **given: Any) -> Any:
    batch, length, _width = given["inputs_embeds"].shape
    return step(_heard[-1], "mask", (empty((int(batch), 1, 1, int(length)), bool_),), [])[0]


def _alibi(tokens: Any, heads: int, dtype: Any) -> Any:
    rows, length = tokens.shape
    made = empty((int(rows) * int(heads), 1, int(length)), dtype_of(dtype))
    return step(_heard[-1], "alibi", (made,), [])[0]


_heard: list[Listener] = []  # the recording that runs, and what it is recorded with


class _Heard:
    """What is noted of one recording besides its rows."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}


@contextlib.contextmanager
def steps_for(model_type: str, rows: int, past: int) -> Iterator[_Heard]:
    """Let calls of shared functions be single steps of what is recorded, after `past` tokens."""
    home = home_of(model_type)
    called, patches, heard = live.outputs_of, models.patches, _Heard()

    def with_cache(module: Any, inputs: Any) -> Any:
        v = empty((rows, int(inputs["input_ids"].shape[1])), int64)
        heard.facts["positions"] = _heard[-1].fresh()
        _heard[-1].temporaries[id(v)] = heard.facts["positions"], v
        cache = _KeysAndValues()
        cache.past = past
        own = {"position_ids": traced(v), "past_key_values": cache}
        head = module.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, args: heard.facts.update(hidden=args[0]))
        try:
            return called(module, {**inputs, **own})
        finally:
            hook.remove()

    def patched(listener: Listener) -> Any:
        _heard.append(listener)
        return patches(listener)

    def turned(forward: Any) -> Any:
        def tables(self: Any, *given: Any, **named: Any) -> Any:
            listener = _heard[-1]
            listener.is_on = False
            made = forward(self, *given, **named)
            listener.is_on = True
            every = made if isinstance(made, tuple) else (made,)  # complex numbers are one
            first = every[0].v
            heard.facts |= {"rotary_width": int(first.shape[-1]), "tables": first.dtype.name}
            found = step(
                _heard[-1], "rotary", tuple(empty(t.v.shape, t.v.dtype) for t in every), []
            )
            return found if isinstance(made, tuple) else found[0]

        return tables

    with ExitStack() as stack:
        for name, found in vars(home).copy().items():
            if name in _MASKS:
                stack.enter_context(patch.object(home, name, _mask))
            elif name == "build_alibi_tensor":
                stack.enter_context(patch.object(home, name, _alibi))
            elif name.endswith("RotaryEmbedding"):
                stack.enter_context(patch.object(found, "forward", turned(found.forward)))
        stack.enter_context(patch.object(AttentionInterface, "get_interface", lambda *_: _attend))
        stack.enter_context(patch.object(ExpertsInterface, "get_interface", lambda *_: _experts))
        stack.enter_context(patch.object(live, "outputs_of", with_cache))
        stack.enter_context(patch("vrambudget.recording.tracing.models.patches", patched))
        yield heard
    heard.facts["hidden"] = heard.facts["hidden"].named
    _heard.clear()
