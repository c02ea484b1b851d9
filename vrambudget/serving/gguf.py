"""The header of a GGUF file: the model's sizes, and a table of its tensors.

    magic "GGUF", version, number of tensors, number of values
    values     key, type, value: `llama.block_count` and the like; arrays are passed over, but
               for those of numbers
    tensors    name, number of dimensions, dimensions (rows first), type, offset of its data

Source: llama.cpp of August 2025: ggml/src/gguf.cpp (gguf_init_from_file_impl), docs/gguf.md. Files
of version 2 and 3.
Not modelled: a model in several files, of which each has its own tensors.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from vrambudget.errors import VramBudgetError
from vrambudget.files import open_file
from vrambudget.serving.gguf_types import NUMBERS

_VERSIONS = (2, 3)
_SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY = 8, 9
_MOST = 1 << 24  # of tensors, values and elements, and bytes of a text: more is no model's
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` with the length of a row first, as the file has it."""

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a file says before its data."""

    values: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]


def read_gguf(path: Path) -> Gguf:
    """Return a file's header. Raises VramBudgetError for what is none."""
    with open_file(path, "model") as file:
        return _Reader(file, str(path)).header()


class _Reader:
    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where = file, where

    def header(self) -> Gguf:
        """Read all of it."""
        if self.file.read(4) != b"GGUF":
            raise self._wrong("it does not begin with GGUF")
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise self._wrong(f"its version is {version}; 2 and 3 are read")
        tensors, values = self.count(), self.count()
        found = dict(self._value() for _ in range(values))
        table = tuple(self._tensors(tensors))
        if found.get("split.count", 1) > 1:
            raise self._wrong("it is one of several files: merge them with llama-gguf-split")
        return Gguf(found, table)

    def _tensors(self, count: int) -> Iterator[GgufTensor]:
        for _ in range(count):
            name, dimensions = self.text(), self.scalar("I")
            if dimensions > _MOST_DIMENSIONS:
                raise self._wrong(f"tensor {name!r} has {dimensions} dimensions")
            shape = tuple(self.scalar("Q") for _ in range(dimensions))
            number = self.scalar("I")
            self.scalar("Q")  # where its data begins
            if number not in NUMBERS:
                raise self._wrong(f"tensor {name!r} is of type {number}, which is not known")
            yield GgufTensor(name, shape, NUMBERS[number])

    def _value(self) -> tuple[str, Any]:
        key = self.text()
        return key, self._of_type(self.scalar("I"))

    def _of_type(self, kind: int) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise self._wrong(f"a value is of type {kind}, which is not known")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.scalar("I"), self.count()
        if kind == _TEXT:  # a vocabulary
            for _ in range(count):
                self.file.seek(self.count(), 1)
            return []
        if kind not in _SCALARS:
            raise self._wrong(f"an array is of type {kind}, which is not known")
        code = f"<{count}{_SCALARS[kind]}"
        return list(struct.unpack(code, self._bytes(struct.calcsize(code))))

    def text(self) -> str:
        """Read a text."""
        return self._bytes(self.count()).decode("utf-8", "replace")

    def count(self) -> int:
        """Read a number of things."""
        count = self.scalar("Q")
        if count > _MOST:
            raise self._wrong(f"it says that there are {count:,} of something")
        return int(count)

    def scalar(self, code: str) -> Any:
        """Read a number, little-endian."""
        return struct.unpack(f"<{code}", self._bytes(struct.calcsize(f"<{code}")))[0]

    def _bytes(self, count: int) -> bytes:
        found = self.file.read(count)
        if len(found) < count:
            raise self._wrong("it ends within its header")
        return found

    def _wrong(self, what: str) -> VramBudgetError:
        return VramBudgetError(f"this is no GGUF file: {what}", where=self.where)
