"""What transformers has once for all its decoders, as single steps of what is recorded.

mask, rotary      made by who calls a layer: the program only says where they go
cache.update      keys and values of the new tokens
attention.attend  by whichever kernel a job asks for
experts           all rows through the experts that their router chose
"""

import contextlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

import transformers
from transformers.integrations.moe import ExpertsInterface
from transformers.modeling_utils import AttentionInterface

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.autograd import record
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.models.parts.attention import attend
from vrambudget.models.parts.cache import DynamicLayer
from vrambudget.recording import models
from vrambudget.recording.casts import home_of
from vrambudget.recording.generation import step, traced
from vrambudget.recording.listener import Listener
from vrambudget.recording.sized import Size
from vrambudget.traced import live
from vrambudget.traced.tensor import dtype_of

_MASKS = ("create_causal_mask", "create_sliding_window_causal_mask")


class _KeysAndValues(transformers.DynamicCache):
    """A cache whose update is one step of the program."""

    past = 0  # tokens that it has
    is_read = False  # whether gradients go through what the code makes of all keys

    def get_seq_length(self, *_: Any) -> Any:
        """Return how many tokens it has."""
        return Size(self.past)

    def update(self, key_states: Any, value_states: Any, *_: Any, **__: Any) -> Any:
        """Take keys and values of the new tokens."""
        layer, given = DynamicLayer(), (key_states.v, value_states.v)
        if self.past and self.is_read:
            layer.keys, layer.values = (_longer(x, self.past - x.shape[2]) for x in given)
        made = layer.update(*given)
        if self.past and not self.is_read:  # in training there are no tokens before
            made = tuple(_with_gradient(_longer(x, self.past), x) for x in given)
        return step(_heard[-1], "cache.update", made, [key_states, value_states])


def _longer(x: Tensor, tokens: int) -> Tensor:
    return empty((*x.shape[:2], x.shape[2] + tokens, x.shape[3]), x.dtype)


def _with_gradient(made: Tensor, given: Tensor) -> Tensor:
    """Return a tensor whose gradient is as if it were the one that was given."""
    layout = given.shape, given.dtype
    return record("cat", made, inputs=(given,), backward=lambda _: (empty(*layout),))


def _attend(  # noqa: PLR0917 - transformers' interface
    own_way: Any,
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    dropout: float = 0.0,
    **given: Any,
) -> Any:
    if own_way is not None:
        B, _, T, _ = map(int, query.shape)
        bias = empty((B, 1, T, int(key.shape[2])), query.v.dtype)
        begun = step(_heard[-1], "eager.begin", (bias,), [query, key, value])
        left = own_way(module, query, key, value, *begun, dropout=dropout, **given)
        step(_heard[-1], "eager.end", (), left)
        return left
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
    embeddings = given["inputs_embeds"]
    is_eager = given["config"]._attn_implementation == "eager"  # noqa: SLF001 - has no other name
    batch, length, _width = map(int, embeddings.shape)
    past = int(given["past_key_values"].get_seq_length())
    dtype = dtype_of(embeddings.dtype) if is_eager else bool_
    made = empty((batch, 1, length, past + length), dtype)
    own = [embeddings, given.get("attention_mask"), given.get("position_ids")]
    _heard[-1].facts["masks_by_position"] = own[2] is not None
    skips = {"skips": given.get("allow_is_causal_skip", True)}
    return step(_heard[-1], "mask", (made,), own, **skips)[0]


def _alibi(tokens: Any, heads: int, dtype: Any) -> Any:
    rows, length = tokens.shape
    made = empty((int(rows) * int(heads), 1, int(length)), dtype_of(dtype))
    return step(_heard[-1], "alibi", (made,), [tokens], heads=heads)[0]


def _repeat(x: Any, groups: int) -> Any:
    B, H, S, D = map(int, x.shape)
    return step(_heard[-1], "repeat_kv", (empty((B, H * int(groups), S, D), x.v.dtype),), [x])[0]


_heard: list[Listener] = []  # the recording that runs, and what it is recorded with


@dataclass
class _Heard:
    """How a recording calls its model, and what is noted of it besides its rows.

    eager: the type's own way to attend by single operations is written down.
    padded, placed: whether the model is called with a tokenizer's mask, and with positions.
    """

    rows: int  # of positions
    past: int
    padded: bool = False
    placed: bool = True
    eager: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    def called(self, module: Any, inputs: Any, call: Any) -> Any:
        """Call the model with a cache, after `past` tokens."""
        listener, (batch, length) = _heard[-1], map(int, inputs["input_ids"].shape)
        cache = _KeysAndValues()
        cache.past, cache.is_read = self.past, hasattr(module.config, "kv_lora_rank")
        own = {"past_key_values": cache}
        shapes = {
            "position_ids": (self.rows, length),
            "attention_mask": (batch, self.past + length),
        }
        for name, is_given in zip(shapes, (self.placed, self.padded), strict=True):
            if is_given:
                v, self.facts[name] = empty(shapes[name], int64), listener.fresh()
                listener.temporaries[id(v)] = self.facts[name], v
                own[name] = traced(v)
        head = module.get_output_embeddings()
        hook = head.register_forward_pre_hook(lambda _, args: self.facts.update(hidden=args[0]))
        try:
            return call(module, {**inputs, **own})
        finally:
            hook.remove()

    def turned(self, forward: Any) -> Any:
        """Return the forward of what makes rotary tables as a step."""

        def tables(module: Any, *given: Any, **named: Any) -> Any:
            listener = _heard[-1]
            listener.is_on = False
            made = forward(module, *given, **named)
            listener.is_on = True
            every = made if isinstance(made, tuple) else (made,)  # complex numbers are one
            first, frequencies = every[0].v, getattr(module, "inv_freq", None)
            if isinstance(made, tuple) and frequencies is not None:
                self.facts["has_half_tables"] = frequencies.shape[0] == first.shape[-1]
            self.facts |= {"rotary_width": int(first.shape[-1]), "tables": first.dtype.name}
            positions = [named["position_ids"] if "position_ids" in named else given[-1]]
            results = tuple(empty(t.v.shape, t.v.dtype) for t in every)
            found = step(listener, "rotary", results, positions)
            return found if isinstance(made, tuple) else found[0]

        return tables

    def steps(self, model_type: str) -> Iterator[tuple[Any, str, Any]]:
        """Yield the shared functions that are single steps: whose, their names, what they are."""
        own = dict.fromkeys(_MASKS, _mask) | {"build_alibi_tensor": _alibi}
        own |= {"repeat_kv": _repeat} if self.eager else {}
        home = home_of(model_type)
        for name, found in vars(home).copy().items():
            if name in own:
                yield home, name, own[name]
            elif name.endswith("RotaryEmbedding"):
                yield found, "forward", self.turned(found.forward)
        call = live.outputs_of
        yield live, "outputs_of", lambda module, inputs: self.called(module, inputs, call)
        yield AttentionInterface, "get_interface", self.attention
        yield ExpertsInterface, "get_interface", lambda *_: _experts

    def attention(self, _name: str, own: Any) -> Any:
        """Return how a layer attends: one step, or the type's own."""
        return partial(_attend, own if self.eager else None)


@contextlib.contextmanager
def steps_for(model_type: str, rows: int, past: int, **called: bool) -> Iterator[_Heard]:
    """Let calls of shared functions be single steps of what is recorded, after `past` tokens."""
    patches, heard = models.patches, _Heard(rows, past, **called)

    def patched(listener: Listener) -> Any:
        _heard.append(listener)
        return patches(listener)

    with ExitStack() as stack:
        for owner, name, new in heard.steps(model_type):
            stack.enter_context(patch.object(owner, name, new))
        stack.enter_context(patch("vrambudget.recording.tracing.models.patches", patched))
        yield heard
    heard.facts["hidden"] = heard.facts["hidden"].named
    _heard.clear()
