"""A layer's part of the tape, forward and backward: read where it was walked, laid down elsewhere.

    part       makes                              frees
    forward    its output; what the graph or      its own, its input
               the autocast region holds
    backward   its input's gradient, its          its own, its output's gradient, what its forward
               parameters' gradients              left, its input

Events are kept relative to where the layer's own storages begin, so that the parts of two layers
that are alike are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vrambudget.engine.context import context
from vrambudget.engine.layer_calls import Call
from vrambudget.engine.layer_state import Like
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Tensor
from vrambudget.tape.events import Storage
from vrambudget.tape.packing import died_in, laid

_FORWARD = 1 << 32  # backward's name for storage i of its layer's forward is i + this
_INPUT = 1 << 40
_GRADIENT = _INPUT + 1  # of the layer's output


@dataclass(frozen=True)
class ForwardPart:
    """What one layer's forward pass does to the tape."""

    call: Call
    first: int
    stop: int
    events: list[int]

    @classmethod
    def of(cls, call: Call) -> ForwardPart | None:
        """Return a walked call's part; None where it does what is not known here."""
        assert call.end is not None  # noqa: S101 - the next layer was called
        tape, first, stop = context.tape, call.begin.storage, call.end.storage
        events = tape.events[call.begin.event : call.end.event]
        died = died_in(events, is_plain=tape.is_plain)
        left = set(range(first, stop)) - died
        known = {*call.held, *call.attributes, *(copy.index for _, copy in call.copies)}
        known |= call.kept
        if call.output is None or call.output.index not in left or _workspaces() & left:
            return None
        if not left <= known | {call.output.index} or not died <= {*range(first, stop), call.input}:
            return None
        names = {i: _INPUT if i == call.input else i - first for i in died}
        return cls(call, first, stop, laid(events, -first, names))

    @property
    def frees_input(self) -> bool:
        """Whether nobody holds the input once the layer is over."""
        return _INPUT in self.freed

    @cached_property
    def freed(self) -> set[int]:
        """The storages that die in it."""
        return died_in(self.events, is_plain=True)

    def same_as(self, other: ForwardPart | None) -> bool:
        """Whether another layer did the same."""
        return other is not None and (
            self.events == other.events
            and _columns(self.first, self.stop) == _columns(other.first, other.stop)
            and self.call.has_graph == other.call.has_graph
            and len(self.call.kept) == len(other.call.kept)
        )

    def lay(self, call: Call, x: Tensor) -> Tensor:
        """Lay the part down for a call with input x; return the output, without its node."""
        tape, source = context.tape, self.call
        shift = tape.copy_storages(self.first, self.stop, source.path, call.path)
        first = self.first + shift
        if self.frees_input:
            disown(x.storage)
        names = {i: i + first for i in self.freed} | {_INPUT: x.storage.index}
        tape.events += laid(self.events, first, names)
        region = context.autocast
        for number, copy in source.copies:
            if region is not None and copy.index not in source.held | source.attributes:
                region.cache[id(call.parameters[number])] = copy.laid(tape, shift)
        context.operation = source.operation
        assert source.output is not None  # noqa: S101 - it is a walked call's
        output = source.output.laid(tape, shift)
        call.output, call.has_graph, call.is_laid = Like.of(output), source.has_graph, True
        call.left = source.left and source.left.moved(shift)
        call.held = self._moved(source.held, call, shift)
        call.attributes = self._moved(source.attributes, call, shift)
        return output

    def _moved(self, storages: frozenset[int], call: Call, shift: int) -> frozenset[int]:
        """Return a laid call's for the walked one's; what all layers hold is left to these."""
        return frozenset(
            index + shift if index >= self.first else call.input
            for index in storages
            if index >= self.first or index == self.call.input
        )


@dataclass(frozen=True)
class BackwardPart:
    """What one layer's backward pass does to the tape."""

    call: Call
    first: int
    stop: int
    events: list[int]
    output: Like  # the gradient of the layer's input

    @cached_property
    def freed(self) -> set[int]:
        """The storages that die in it."""
        return died_in(self.events, is_plain=True)

    @classmethod
    def of(cls, call: Call, below: Call) -> BackwardPart:
        """Return a walked call's part, from its output's gradient to that of `below`'s output.

        Raises CannotRepeatError where it does what is not known here.
        """
        if call.complete is None or below.complete is None or call.gradient is None:
            raise CannotRepeatError
        if not context.tape.is_plain:
            raise CannotRepeatError
        if below.gradient is None or call.end is None or call.output is None:
            raise CannotRepeatError
        tape, begin, end = context.tape, call.complete, below.complete
        events = tape.events[begin.event : end.event]
        forward = range(call.begin.storage, call.end.storage)
        first, stop = begin.storage, end.storage
        names = {call.gradient.index: _GRADIENT, call.input: _INPUT}

        def name(storage: int) -> int:
            if storage >= first:
                return storage - first
            if storage in forward:
                return storage - forward.start + _FORWARD
            if storage not in names:
                raise CannotRepeatError
            return names[storage]

        died = died_in(events, is_plain=True)
        relative = laid(events, -first, {i: name(i) for i in died})
        outlive = {call.output.index, *call.attributes, *call.kept}
        if {i for i in call.held if i in forward} - died - outlive:
            raise CannotRepeatError
        left = set(range(first, stop)) - died
        made = {p.grad.storage.index for p in call.parameters if p.grad is not None}
        carried = below.gradient.index == call.gradient.index
        if not left <= {below.gradient.index, *made} or not (
            carried or below.gradient.index in left
        ):
            raise CannotRepeatError
        return cls(call, first, stop, relative, below.gradient)

    def same_as(self, other: BackwardPart) -> bool:
        """Whether another layer did the same."""
        return self.events == other.events and (
            _columns(self.first, self.stop) == _columns(other.first, other.stop)
        )

    def lay(self, call: Call, gradient: Tensor, kept: list[Storage]) -> Tensor:
        """Lay the part down for a call; return the gradient of its input.

        Of `kept`, the storages that the node holds, those stay that die with it.
        """
        tape, source = context.tape, self.call
        shift = tape.copy_storages(self.first, self.stop, source.path, call.path)
        first, forward = self.first + shift, call.begin.storage
        outer = {_GRADIENT: gradient.storage.index, _INPUT: call.input}
        freed = self.freed
        if _GRADIENT in freed:
            disown(gradient.storage)
        owned = {storage.index for storage in kept}
        for storage in kept:
            index = storage.index
            if (_INPUT if index == call.input else index - forward + _FORWARD) in freed:
                disown(storage)
        kept[:] = [storage for storage in kept if storage.index in call.attributes]
        kept += (
            tape.adopted(index)
            for index in call.attributes - owned
            if index - forward + _FORWARD not in freed
        )
        names = {i: i + first if i < _FORWARD else i - _FORWARD + forward for i in freed} | outer
        tape.events += laid(self.events, first, names)
        for ours, theirs in zip(call.parameters, source.parameters, strict=True):
            given = theirs.grad if theirs.grad and theirs.grad.storage.index >= self.first else None
            if given is not None:
                if ours.grad is not None:
                    raise CannotRepeatError
                ours.grad = Like.of(given).laid(tape, shift)
        assert source.end is not None  # noqa: S101 - it is a walked call's
        tape.purposes[call.input] = tape.purposes[source.input]
        stop = forward + source.end.storage - source.begin.storage
        tape.purposes[forward:stop] = tape.purposes[source.begin.storage : source.end.storage]
        return self.output.laid(tape, shift) if self.output.index >= self.first else gradient


def disown(storage: Storage) -> None:
    """Let a storage's end be told by events that are laid down, and not by its own."""
    storage.events = []


def _columns(first: int, stop: int) -> tuple[Any, ...]:
    tape = context.tape
    return tape.sizes[first:stop], tape.operations[first:stop], tape.contents[first:stop]


def _workspaces() -> set[int]:
    return {storage.index for storage in context.workspaces.values()}
