"""What runs around a layer's calls, forward and backward, and holds tensors from one to another.

FSDP2's hooks are such: they gather a layer's weights before its forward and reduce their gradients
after its backward, and what they hold meanwhile is let go in the next layer. Where one is replayed,
they are not called, but given what they would hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.layer_state import LayerPart, Like
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Parameter, Shape, Tensor
from vrambudget.tape.events import Storage

Value = Storage | Tensor | None


class LayerHooks(Protocol):
    """What runs around one layer; what it holds has places, which are always the same."""

    def state(self) -> tuple[Any, ...]:
        """Return what decides what it does, besides what it holds."""

    def held(self) -> list[Value]:
        """Return what it holds, by place."""

    def gathered(self) -> Sequence[Parameter]:
        """Return the parameters that the layer computes with, once its forward was there."""

    def forward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Value]) -> None:
        """Take the state after a forward pass; `state` is the copied layer's."""

    def backward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Value]) -> None:
        """Take the state after a backward pass."""


class FilledPart:
    """What an earlier pass left in a layer's part, and a forward pass changes: its hooks."""

    def __init__(self, part: LayerPart, parameters: Sequence[Parameter]) -> None:
        self._part, self._parameters = part, parameters

    def state(self) -> tuple[Any, ...]:
        """Return what the part is, but for its tensors, and what those are like."""
        return type(self._part), *((name, _described(x)) for name, x in self._part.items())

    def held(self) -> list[Value]:
        """Return its tensors of this tape: one of another stays, or gives way to one of this."""
        return [x for _, x in self._part.left() if x.storage.tape is context.tape]

    def gathered(self) -> Sequence[Parameter]:
        """Return the layer's own parameters."""
        return self._parameters

    def forward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Value]) -> None:
        """Fill the part as the copied layer's is."""
        tensors = iter(held)
        for name, value in state[1:]:
            if not isinstance(value, _Kind):
                setattr(self._part, name, value)
            elif value.is_here:
                setattr(self._part, name, next(tensors))

    def backward_was_replayed(self, *_: object) -> None:
        """Refuse: no gradient is wanted where a part is filled."""
        raise CannotRepeatError


class _Kind(NamedTuple):
    """What a tensor is like, but for where it lies."""

    shape: Shape
    dtype: DType
    strides: Shape | None
    is_view: bool
    is_here: bool  # on this tape


def _described(x: Any) -> Any:
    if isinstance(x, Tensor):
        return _Kind(x.shape, x.dtype, x.strides, x.is_view, x.storage.tape is context.tape)
    return x


class _Noted(NamedTuple):
    """What is held in one place, but for the storage itself, which is an index."""

    storage: int
    is_released: bool
    like: Like | None  # of a tensor


class HookMoment(NamedTuple):
    """The state of a layer's hooks at one moment."""

    state: tuple[Any, ...]
    held: tuple[_Noted | None, ...]

    @classmethod
    def now(cls, hooks: LayerHooks | None) -> HookMoment:
        """Return what they are now."""
        if hooks is None:
            return NOTHING
        return cls(hooks.state(), tuple(map(_noted, hooks.held())))

    @property
    def places(self) -> dict[int, int]:
        """The place in which each storage is held; the first, if in several."""
        noted = reversed(list(enumerate(self.held)))
        return {each.storage: place for place, each in noted if each is not None}

    def like(self) -> tuple[Any, ...]:
        """Return what is equal for identical layers."""
        return self.state, _like([None if each is None else each.storage for each in self.held])

    def replayed(
        self, before: HookMoment, values: Sequence[Value], first: int, shift: int
    ) -> list[Value]:
        """Return what another layer's hooks hold where these, of the copied one, are this.

        They held `values` before, and these `before`. From storage `first` on all were made
        meanwhile; the other layer's are `shift` further on.
        """
        storages = {
            each.storage: storage
            for each, storage in zip(before.held, map(storage_of, values), strict=True)
            if each is not None and storage is not None
        }
        return [each and self._replayed(each, storages, first, shift) for each in self.held]

    def _replayed(
        self, noted: _Noted, storages: dict[int, Storage], first: int, shift: int
    ) -> Storage | Tensor:
        storage = storages.get(noted.storage)
        if storage is None:
            if noted.storage < first:
                raise CannotRepeatError
            storage = storages[noted.storage] = context.tape.adopted(noted.storage + shift)
        storage.is_released = noted.is_released
        return storage if noted.like is None else noted.like.of_storage(storage)


NOTHING = HookMoment((), ())


def storage_of(value: Value) -> Storage | None:
    """Return the storage of what is held."""
    return value.storage if isinstance(value, Tensor) else value


def likeness(hooks: LayerHooks | None) -> tuple[Any, ...] | None:
    """Return what `Around.like` would of what they are now."""
    if hooks is None:
        return None
    storages = map(storage_of, hooks.held())
    return hooks.state(), _like([None if s is None else s.index for s in storages])


def _like(indices: list[int | None]) -> tuple[int | None, ...]:
    """Return which places hold something, and which of them the same."""
    places = {index: place for place, index in reversed(list(enumerate(indices)))}
    return tuple(None if index is None else places[index] for index in indices)


def _noted(value: Value) -> _Noted | None:
    storage = storage_of(value)
    if storage is None:
        return None
    like = Like.of(value) if isinstance(value, Tensor) else None
    return _Noted(storage.index, storage.is_released, like)
