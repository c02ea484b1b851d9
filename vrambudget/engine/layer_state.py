"""What each layer of a pass leaves for later: its keys and values, in a cache that all layers get.

A layer that is replayed leaves what the traced one left, of storages of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, MutableSequence, Sequence
from copy import copy
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.tape.events import Storage, Tape


@dataclass(frozen=True, slots=True)
class Like:
    """A tensor as it is, but for its storage, which is an index."""

    index: int
    shape: Shape
    dtype: DType
    strides: Shape | None
    is_view: bool

    @classmethod
    def of(cls, x: Tensor) -> Like:
        """Return what a tensor is like."""
        return cls(x.storage.index, x.shape, x.dtype, x.strides, x.is_view)

    def replayed(self, tape: Tape, shift: int) -> Tensor:
        """Return a tensor like this of the storage that is `shift` further on."""
        return self.of_storage(tape.adopted(self.index + shift))

    def of_storage(self, storage: Storage) -> Tensor:
        """Return a tensor like this of a storage."""
        x = Tensor(self.shape, self.dtype, storage, self.strides)
        x.is_view = self.is_view
        return x


class LayerPart:
    """What one layer fills: a dataclass of tensors and of what decides about them."""

    __slots__ = ()

    def left(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that it holds, by name."""
        for name, value in self.items():
            if isinstance(value, Tensor):
                yield name, value

    def kind(self) -> tuple[object, ...]:
        """Return what decides how it is filled."""
        return type(self), *(value for _, value in self.items())

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all that it is made of, by name."""
        for field in fields(self):  # type: ignore[arg-type]  # those who inherit are dataclasses
            yield field.name, getattr(self, field.name)


class FilledByLayers:
    """What all layers of a pass are called with, and of which each fills its own part."""

    __slots__ = ()

    layers: MutableSequence[Any] | MutableMapping[int, Any]

    def empty_part(self, number: int) -> LayerPart | None:
        """Return a layer's part if it is empty, and of a kind that can be copied."""
        part = self.layers[number]
        return part if isinstance(part, LayerPart) and not any(part.left()) else None


def filled_by(values: Sequence[Any]) -> FilledByLayers | None:
    """Return what a layer fills, of what it is called with."""
    return next((value for value in values if isinstance(value, FilledByLayers)), None)


class Left(NamedTuple):
    """What a traced layer left in its part."""

    part: LayerPart
    tensors: dict[str, Like]
    of_graph: frozenset[str]  # the names of those that want gradients

    @classmethod
    def of(cls, filled: FilledByLayers, number: int) -> Left:
        """Return what layer `number` left; of its part a copy without tensors."""
        part = filled.layers[number]
        tensors = dict(part.left())
        empty = copy(part)
        for name in tensors:
            setattr(empty, name, None)
        of_graph = frozenset(name for name, x in tensors.items() if x.requires_grad)
        return cls(empty, {name: Like.of(x) for name, x in tensors.items()}, of_graph)

    @property
    def storages(self) -> frozenset[int]:
        """The storages of its tensors."""
        return frozenset(like.index for like in self.tensors.values())

    def moved(self, shift: int) -> Left:
        """Return what another layer leaves, its storages `shift` further on."""
        moved = {n: replace(x, index=x.index + shift) for n, x in self.tensors.items()}
        return self._replace(tensors=moved)

    def fill(self, filled: FilledByLayers, number: int) -> list[Tensor]:
        """Put it into the part of layer `number`, its tensors made; return these."""
        part, made = copy(self.part), list[Tensor]()
        for name, like in self.tensors.items():
            x = like.replayed(context.tape, 0)
            x.requires_grad = name in self.of_graph
            setattr(part, name, x)
            made.append(x)
        filled.layers[number] = part
        return made
