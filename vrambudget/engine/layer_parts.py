"""A layer's part of the tape, forward and backward: read where it was traced, replayed elsewhere.

    part       makes                              frees
    forward    its outputs; what the graph or     its own, its inputs
               the autocast region holds
    backward   its inputs' gradients, its         its own, its outputs' gradients, what its forward
               parameters' gradients              left, its inputs

Events are kept relative to where the layer's own storages begin, so that the parts of two layers
that are identical are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.engine.context import context
from vrambudget.engine.hook_state import Value, likeness, storage_of
from vrambudget.engine.layer_calls import LayerCall, TapeMoment
from vrambudget.engine.layer_events import FORWARD, GRADIENT, HELD, INPUT, NamedEvents
from vrambudget.engine.layer_state import Like
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Tensor
from vrambudget.tape.events import Storage
from vrambudget.tape.packing import died_in


class _UnknownStorageError(Exception):
    """A storage that no name of a part stands for."""


@dataclass(frozen=True)
class ForwardPart:
    """What one layer's forward pass does to the tape."""

    call: LayerCall
    first: int
    stop: int
    named: NamedEvents

    @classmethod
    def of(cls, call: LayerCall) -> ForwardPart | None:
        """Return a traced call's part; None if a copy cannot repeat it."""
        assert call.end is not None  # noqa: S101 - the next layer was called
        tape, first, stop = context.tape, call.begin.storage, call.end.storage
        events = tape.events[call.begin.event : call.end.event]
        left = set(range(first, stop)) - died_in(events, is_fast=tape.is_fast)
        known = {*call.held, *call.attributes, *(copy.index for _, copy in call.copies)}
        known |= call.kept | call.end.hooks.places.keys()
        made = {x.index for x in call.outputs}
        if not made or not made <= left <= known | made or _workspaces() & left:
            return None
        places = call.begin.hooks.places

        def name(storage: int) -> int:
            if storage >= first:
                return storage - first
            if storage in call.inputs:
                return INPUT + call.inputs.index(storage)
            if storage in places:
                return HELD + places[storage]
            raise _UnknownStorageError

        try:
            return cls(call, first, stop, NamedEvents.of(events, first, name))
        except _UnknownStorageError:
            return None

    def same_as(self, other: ForwardPart | None) -> bool:
        """Whether another layer did the same."""
        return other is not None and (
            self.named == other.named
            and _columns(self.first, self.stop) == _columns(other.first, other.stop)
            and self.call.has_graph == other.call.has_graph
            and len(self.call.kept) == len(other.call.kept)
            and _left_hooks(self.call.end) == _left_hooks(other.call.end)
        )

    def replay(self, call: LayerCall, states: Sequence[Tensor]) -> list[Tensor]:
        """Replay the part for a call; return the outputs, without their node."""
        tape, source = context.tape, self.call
        values = [] if call.hook_state is None else call.hook_state.held()
        shift = tape.copy_storages(self.first, self.stop, source.path, call.path)
        _disown_freed(self.named, INPUT, states)
        _disown_held(self.named, values)

        def storage(name: int) -> int:
            return call.inputs[name - INPUT] if name >= INPUT else _index(values, name)

        tape.events += self.named.replayed(self.first + shift, storage)
        context.operation = source.operation
        assert source.end is not None  # noqa: S101 - traced
        if call.hook_state is not None:
            after, before = source.end.hooks, source.begin.hooks
            held = after.replayed(before, values, self.first, shift)
            call.hook_state.forward_was_replayed(after.state, held)
        region = context.autocast
        for number, copy in source.copies:
            if region is not None and copy.index not in source.held | source.attributes:
                region.cache[id(call.computed_with[number])] = copy.replayed(tape, shift)
        outputs = _replayed(source.outputs, shift)
        call.outputs = tuple(map(Like.of, outputs))
        call.has_graph, call.is_replayed = source.has_graph, True
        call.left = source.left and source.left.moved(shift)
        call.held = self._moved(source.held, call, shift)
        call.attributes = self._moved(source.attributes, call, shift)
        return outputs

    def _moved(self, storages: frozenset[int], call: LayerCall, shift: int) -> frozenset[int]:
        """Return a replayed call's for the traced one's; what all layers hold is left to these."""
        inputs = self.call.inputs
        return frozenset(
            index + shift if index >= self.first else call.inputs[inputs.index(index)]
            for index in storages
            if index >= self.first or index in inputs
        )


@dataclass(frozen=True)
class BackwardPart:
    """What one layer's backward pass does to the tape."""

    call: LayerCall
    first: int
    stop: int
    named: NamedEvents
    outputs: tuple[Like, ...]  # the gradients of the layer's inputs

    @classmethod
    def of(cls, call: LayerCall, below: LayerCall) -> BackwardPart:
        """Return a traced call's part, from its outputs' gradients to those of `below`'s outputs.

        Raises CannotRepeatError where it does what is not known here.
        """
        if call.complete is None or call.over is None or not call.gradients:
            raise CannotRepeatError
        if call.hook_state is None and not context.tape.is_fast:
            raise CannotRepeatError
        if not below.gradients or call.end is None or not call.outputs:
            raise CannotRepeatError
        tape, begin, end = context.tape, call.complete, call.over
        events = tape.events[begin.event : end.event]
        forward = range(call.begin.storage, call.end.storage)
        first, stop = begin.storage, end.storage
        names = {index: HELD + place for index, place in begin.hooks.places.items()}
        names |= _named(GRADIENT, [x.index for x in call.gradients]) | _named(INPUT, call.inputs)

        def name(storage: int) -> int:
            if storage >= first:
                return storage - first
            if storage in names:
                return names[storage]
            if storage in forward:
                return storage - forward.start + FORWARD
            raise CannotRepeatError

        named = NamedEvents.of(events, first, name)
        died, kept = died_in(events, is_fast=tape.is_fast), end.hooks.places.keys()
        outlive = {*(x.index for x in call.outputs), *call.attributes, *call.kept, *kept}
        if {i for i in call.held if i in forward} - died - outlive:
            raise CannotRepeatError
        left = set(range(first, stop)) - died - kept
        made = {p.grad.storage.index for p in call.parameters if p.grad is not None}
        carried = {x.index for x in call.gradients}
        passed = {x.index for x in below.gradients}
        if not left <= passed | made or not passed <= left | carried:
            raise CannotRepeatError
        return cls(call, first, stop, named, below.gradients)

    def same_as(self, other: BackwardPart) -> bool:
        """Whether another layer did the same."""
        return (
            self.named == other.named
            and _columns(self.first, self.stop) == _columns(other.first, other.stop)
            and _left_hooks(self.call.over) == _left_hooks(other.call.over)
        )

    def replay(
        self, call: LayerCall, gradients: Sequence[Tensor], kept: list[Storage]
    ) -> tuple[Tensor, ...]:
        """Replay the part for a call; return the gradients of its inputs.

        Of `kept`, the storages that the node holds, those stay that die with it.
        """
        tape, source = context.tape, self.call
        values = self._held_before(call)
        shift = tape.copy_storages(self.first, self.stop, source.path, call.path)
        forward, freed = call.begin.storage, self.named.freed
        outer = {GRADIENT + n: x.storage.index for n, x in enumerate(gradients)}
        outer |= {INPUT + n: index for n, index in enumerate(call.inputs)}
        _disown_freed(self.named, GRADIENT, gradients)
        _disown_held(self.named, values)
        owned = {storage.index for storage in kept}
        named = _named(INPUT, call.inputs)
        for storage in kept:
            if named.get(storage.index, storage.index - forward + FORWARD) in freed:
                disown(storage)
        kept[:] = [storage for storage in kept if storage.index in call.attributes]
        kept += (
            tape.adopted(index)
            for index in call.attributes - owned
            if index - forward + FORWARD not in freed
        )

        def index_of(name: int) -> int:
            if name < HELD:
                return name - FORWARD + forward
            return outer[name] if name in outer else _index(values, name)

        tape.events += self.named.replayed(self.first + shift, index_of)
        self._leave_hooks(call, values, shift)
        for copy, traced in zip(call.parameters, source.parameters, strict=True):
            given = traced.grad if traced.grad and traced.grad.storage.index >= self.first else None
            if given is not None:
                if copy.grad is not None:
                    raise CannotRepeatError
                copy.grad = Like.of(given).replayed(tape, shift)
        assert source.end is not None  # noqa: S101 - it is a traced call's
        for own_input, source_input in zip(call.inputs, source.inputs, strict=True):
            tape.purposes[own_input] = tape.purposes[source_input]
        stop = forward + source.end.storage - source.begin.storage
        tape.purposes[forward:stop] = tape.purposes[source.begin.storage : source.end.storage]
        return self._passed(gradients, shift)

    def _passed(self, gradients: Sequence[Tensor], shift: int) -> tuple[Tensor, ...]:
        """Return the gradients of the inputs: new ones, and those that are carried through."""
        carried = {x.index: gradients[n] for n, x in enumerate(self.call.gradients)}
        made = iter(_replayed([x for x in self.outputs if x.index >= self.first], shift))
        return tuple(
            next(made) if x.index >= self.first else carried[x.index] for x in self.outputs
        )

    def _held_before(self, call: LayerCall) -> list[Value]:
        """Return what the layer's hooks hold: it must be like what the copied ones held."""
        if call.hook_state is None:
            return []
        source = self.call.complete
        if source is None or likeness(call.hook_state) != source.hooks.like():
            raise CannotRepeatError
        return call.hook_state.held()

    def _leave_hooks(self, call: LayerCall, values: list[Value], shift: int) -> None:
        source = self.call
        if call.hook_state is not None and source.over is not None and source.complete is not None:
            after, before = source.over.hooks, source.complete.hooks
            held = after.replayed(before, values, self.first, shift)
            call.hook_state.backward_was_replayed(after.state, held)


def disown(storage: Storage) -> None:
    """Let copied events free a storage, and not its Python object's death: it must die once."""
    storage.events = []


def _named(first: int, indices: Sequence[int]) -> dict[int, int]:
    """Return the names of storages by their places, the first of each."""
    return {index: first + place for place, index in reversed([*enumerate(indices)])}


def _replayed(likes: Sequence[Like], shift: int) -> list[Tensor]:
    """Return tensors like these, of the storages that are `shift` further on, each once."""
    storages = {index: context.tape.adopted(index + shift) for index in {x.index for x in likes}}
    return [x.of_storage(storages[x.index]) for x in likes]


def _columns(first: int, stop: int) -> tuple[Any, ...]:
    tape = context.tape
    return tape.sizes[first:stop], tape.operations[first:stop], tape.contents[first:stop]


def _workspaces() -> set[int]:
    return {storage.index for storage in context.workspaces.values()}


def _index(values: list[Value], name: int) -> int:
    """Return the storage that the hooks held in a place when the part began."""
    storage = storage_of(values[name - HELD])
    assert storage is not None  # noqa: S101 - what is held is like what the copied one's held
    return storage.index


def _disown_freed(named: NamedEvents, first: int, tensors: Sequence[Tensor]) -> None:
    for place, x in enumerate(tensors):
        if first + place in named.freed:
            disown(x.storage)


def _disown_held(named: NamedEvents, values: list[Value]) -> None:
    for place, value in enumerate(values):
        storage = storage_of(value)
        if storage is not None and HELD + place in named.freed:
            disown(storage)


def _left_hooks(end: TapeMoment | None) -> tuple[Any, ...]:
    return () if end is None else end.hooks.like()
