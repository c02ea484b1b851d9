"""Calls by the general rule (traced.meta_fallback), written down as effects.

A call is what it allocates, saves and frees, the nodes that it leaves, and the same for each node's
backward. `patches` puts the listening around the tracer's own methods while a model is recorded.
"""

from collections.abc import Iterator
from typing import Any

import torch

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, _dense_strides
from vrambudget.recording import buffers
from vrambudget.recording.listener import Listener, RecordedPhase
from vrambudget.recording.raw import Effects, Lies
from vrambudget.tape.events import Storage
from vrambudget.traced import casts, meta_fallback, tracer
from vrambudget.traced.tensor import dtype_of

Patch = tuple[Any, str, Any]


class _Kept(tracer.Kept):  # with room for its slot
    __slots__ = ("slot",)
    slot: int


def patches(listener: Listener) -> Iterator[Patch]:
    """Yield what is replaced while the listener listens: (owner, name, replacement)."""
    yield meta_fallback, "Kept", _Kept
    yield from _of_calls(listener)
    yield from buffers.patches()
    yield from _of_graphs(listener)


def _policy(name: str, kwargs: Any) -> str | None:
    plain = name.replace("_", "")
    if plain in casts._LOWER:  # noqa: SLF001 - autocast's lists stand once
        return "lower"
    if plain in casts._FULL:  # noqa: SLF001
        return "full"
    if plain in casts._FULL_UNLESS_TYPED and kwargs.get("dtype") is None:  # noqa: SLF001
        return "full"
    return "widest" if plain in casts._WIDEST else None  # noqa: SLF001


def _nested(value: Any, name: Any) -> Any:
    """Return the tensors of arguments as nested lists, without what holds none."""
    if isinstance(value, Tensor):
        return name(value)
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, slice):
        value = [value.start, value.stop, value.step]
    if isinstance(value, list | tuple):
        found = [_nested(x, name) for x in value]
        return [x for x in found if x is not None and x != []]
    return None


def _of_calls(listener: Listener) -> Iterator[Patch]:  # noqa: C901 - small functions side by side
    arguments, begin, meta_of = (
        casts.autocast_arguments,
        meta_fallback.TorchCall.__init__,
        meta_fallback.TorchCall.meta,
    )
    call, made = meta_fallback.TorchCall, tracer.Tracer.made
    pack, unpack = call._pack, call._unpack  # noqa: SLF001

    def autocast_arguments(name: str, args: Any, kwargs: Any) -> Any:
        if not listener.is_on:
            return arguments(name, args, kwargs)
        listener.pending = Effects(name, _policy(name, kwargs)), (*args, *kwargs.values())
        listener.depth += 1
        try:
            return arguments(name, args, kwargs)
        finally:
            listener.depth -= 1

    def init(self: Any, *, in_place: bool) -> None:
        begin(self, in_place=in_place)
        self.heard = listener.is_on
        if self.heard:
            self.effects, self.arguments = listener.pending
            listener.effects = self.effects
            self.tracer.call, self.phase = self, RecordedPhase(listener)
            self.own, self.places, self.dys, self.indices = [], [], (), {}

    def meta(self: Any, x: Tensor) -> Any:
        if self.heard and id(x) not in self._metas:
            self.own.append(x)
        return meta_of(self, x)

    def made_(self: Any, operation: str, meta: Any, nbytes: int | None = None) -> Storage:
        storage: Storage = made(self, operation, meta, nbytes)
        call = getattr(self, "call", None)
        if call is not None and call.heard:
            dtype = dtype_of(meta.dtype)
            actual = meta.untyped_storage().nbytes() if nbytes is None else nbytes
            same = actual == meta.numel() * dtype.itemsize
            content = [list(meta.shape), dtype]
            call.phase.new(storage, content, operation, None if same else actual // dtype.itemsize)
        return storage

    def pack_(self: Any, meta: Any) -> Any:
        kept = pack(self, meta)
        if self.heard and isinstance(kept, _Kept):
            storage = self.tracer.storage_of(meta)
            kept.slot = len(self.places)
            self.effects.kept.append(place_of(listener, self, storage))
            self.places.append(storage.index)
            self.phase.marks.append((len(context.tape.events), 0, ("keep", kept.slot)))
        return kept

    def unpack_(self: Any, kept: Any) -> Any:
        slots = getattr(self, "probed", None)
        if slots is not None and isinstance(kept, _Kept):
            slots.append(kept.slot)
            return torch.empty_strided(kept.shape, kept.strides, dtype=kept.dtype, device="meta")
        return unpack(self, kept)

    yield casts, "autocast_arguments", autocast_arguments
    yield meta_fallback.TorchCall, "__init__", init
    yield meta_fallback.TorchCall, "meta", meta
    yield tracer.Tracer, "made", made_
    yield meta_fallback.TorchCall, "_pack", pack_
    yield meta_fallback.TorchCall, "_unpack", unpack_


def place_of(listener: Listener, call: Any, storage: Any) -> list[Any]:
    """Return where a storage comes from."""
    for i, x in enumerate(call.dys):
        if x is not None and x.storage is storage:
            return ["dy", i]
    for i, x in enumerate(call.own):
        if x.storage is storage:
            return ["in", i]
    if (number := call.phase.number_of(storage)) is not None:
        return ["new", number]
    for slot, index in enumerate(call.places):
        if index == storage.index:
            return ["kept", slot]
    listener.problem(f"a storage from nowhere in {call.effects.name}")
    return ["new", 0]


def _lies(v: Tensor, others: list[tuple[str, Tensor]]) -> Lies:
    """Return a result's strides, and what else they may be: an operand's, or of one like it."""
    own, found = v.actual_strides(), list[str]()
    for name, x in others:
        strides = x.actual_strides()
        if x.shape == v.shape:
            like = None if x.strides is None else _dense_strides(x.shape, x.strides)
            if Tensor(x.shape, x.dtype, x.storage, like).actual_strides() == own:
                found.append(f"like {name}")
            if strides == own:
                found.append(f"as {name}")
        elif len(x.shape) == len(v.shape) and v.storage is x.storage and strides == own:
            found.append(f"as {name}")
        if len(x.shape) == len(v.shape) + 1 and v.storage is x.storage:
            for k in range(len(strides)):
                rest = (*strides[:k], *strides[k + 1 :]), (*x.shape[:k], *x.shape[k + 1 :])
                if rest == (own, v.shape):
                    found.append(f"drop {name} {k}")
    return Lies(None if v.strides is None else list(v.strides), found)


def _of_graphs(listener: Listener) -> Iterator[Patch]:
    finish, backward = meta_fallback.TorchCall.finish, meta_fallback.TorchCall.backward
    make_node = meta_fallback._AutogradGraph._node  # noqa: SLF001

    def finished(self: Any, result: Any) -> Any:
        if not self.heard:
            return finish(self, result)
        inputs = list(self.own)
        found, changed = finish(self, result)
        listener.effects = None
        note_results(listener, self, inputs, (result, found, changed))
        self.own = []
        return found, changed

    def node(self: Any, function: Any) -> Any:
        made = make_node(self, function)
        if self.call.heard:
            _node(self.call, function, made)
        return made

    def ran(self: Any, function: Any, gradients: Any) -> Any:
        if not self.heard or id(function) not in self.indices:
            return backward(self, function, gradients)
        self.phase, self.dys, kept = RecordedPhase(listener), tuple(gradients), len(self.places)
        result = backward(self, function, gradients)
        if len(self.places) != kept:
            listener.problem(f"{self.effects.name}: its backward saves tensors")
        outgoing = [gradient_of(listener, self, g, gradients) for g in result]
        self.effects.backs[self.indices[id(function)]] = [self.phase.events(), outgoing]
        self.dys = ()
        return result

    yield meta_fallback.TorchCall, "finish", finished
    yield meta_fallback._AutogradGraph, "_node", node  # noqa: SLF001
    yield meta_fallback.TorchCall, "backward", ran


def gradient_of(listener: Listener, call: Any, g: Any, given: Any) -> Any:
    """Return what a backward hands on: an incoming gradient, or a tensor of its own."""
    if g is None:
        return None
    for i, x in enumerate(given):
        if g is x:
            return ["dy", i]
    place = place_of(listener, call, g.storage)
    others = [(f"dy{i}", x) for i, x in enumerate(given) if x is not None]
    return ["tensor", place, list(g.shape), g.dtype, _lies(g, others), g.is_view]


def _node(call: Any, function: Any, made: Any) -> None:
    """Note a node: what it saves, and where its gradients go."""
    call.probed = []
    for name in dir(function):
        if name.startswith("_saved_"):
            try:
                getattr(function, name)
            except (RuntimeError, AttributeError):
                continue
    slots, call.probed = sorted(set(call.probed)), None
    edges: list[Any] = []
    for (following, _), edge in zip(function.next_functions, made.edges, strict=True):
        source = None if edge is None or following is None else call.boundary(following)
        if edge is None:
            edges.append(None)
        elif source is not None:
            edges.append(["in", next(i for i, x in enumerate(call.own) if x is source)])
        else:
            edges.append(["node", call.indices[id(following)], edge[1], list(edge[2]), edge[3]])
    call.indices[id(function)] = len(call.effects.nodes)
    call.numbers = {**getattr(call, "numbers", {}), id(made): len(call.effects.nodes)}
    call.effects.nodes.append([made.name, made.outputs, edges, slots])


def note_results(  # noqa: C901 - a call's results and writes
    listener: Listener, call: Any, inputs: list[Tensor], what: Any
) -> None:
    """Note a call's results, what it wrote into, and give them names."""
    result, found, changed = what
    effects, results = call.effects, list[Tensor]()
    others = [(f"x{i}", x) for i, x in enumerate(inputs)]

    def out(v: Tensor) -> Any:
        for i, x in enumerate(inputs):
            if v is x:
                return ["in", i]
        node: Any = None
        if v.requires_grad:
            number = getattr(call, "numbers", {}).get(id(v.node))
            source = (i for i, x in enumerate(inputs) if x.node is v.node and x.requires_grad)
            node = ["like", next(source, 0)] if number is None else [number, v.slot]
        place = place_of(listener, call, v.storage)
        return ["tensor", place, list(v.shape), v.dtype, _lies(v, others), v.is_view, node]

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            v = found.get(id(value))
            if v is None:
                return None
            results.append(v)
            return out(v)
        return [walk(x) for x in value] if isinstance(value, list | tuple) else None

    effects.outs = walk(result)
    written = [
        (i, x)
        for i, x in enumerate(inputs)
        if changed.get(id(x), x) is not x and not any(changed[id(x)] is v for v in results)
    ]
    effects.writes = [[i, out(changed[id(x)])] for i, x in written]
    effects.forward = call.phase.events()
    if effects.policy:
        effects.groups = _nested(list(call.arguments), listener.of) or []
    else:
        effects.groups = [listener.of(x) for x in inputs]
    for v in (*results, *(changed[id(x)] for _, x in written)):
        if any(v is x for x in inputs):
            effects.names.append(listener.again(v))
            continue
        name = listener.fresh()
        listener.temporaries[id(v)] = (name, v)
        effects.names.append(name)
    listener.emit("call", effects)
