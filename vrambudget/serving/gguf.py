"""The header of a GGUF file: the model's sizes, and a table of its tensors.

    magic "GGUF", version, number of tensors, number of values
    values     key, type, value: `llama.block_count` and the like; arrays of texts are passed over
    tensors    name, number of dimensions, dimensions (rows first), type, offset of its data

A model in several files ("model-00001-of-00005.gguf") is read from all of them: the first has the
values, each its own tensors.

A header is somebody else's: what it says of numbers is held against what the file has left, and
against bounds that no model reaches, before anything is made of it.

Source: llama.cpp 0c1e570 of October 2026: ggml/src/gguf.cpp (gguf_init_from_reader), docs/gguf.md,
src/llama-model-loader.cpp (splits). Files of version 2 and 3, little-endian.
"""

import os
import re
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
_MOST_DIMENSIONS = 4
_MOST_TENSORS = _MOST_VALUES = 1 << 16
_MOST_ELEMENTS = 1 << 22  # of all arrays; a vocabulary with its merges has 800,000
_LONGEST_TEXT = 1 << 20  # of a key, a name or a chat template, in bytes
_LARGEST = 1 << 48  # of a dimension
_LEAST_OF_A_VALUE, _LEAST_OF_A_TENSOR = 13, 32  # bytes that each takes in a header
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
_MOSTPARTS = 1000


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: `shape` with the length of a row first, as the file has it."""

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass(frozen=True, slots=True)
class Gguf:
    """What a file says before its data; `where` names it in errors."""

    values: Mapping[str, Any]
    tensors: tuple[GgufTensor, ...]
    where: str = ""

    def of(self, key: str, kind: type, what: str) -> Any:
        """Return a value, None where there is none. Raises VramBudgetError for another type."""
        found = self.values.get(key)
        if found is not None and type(found) is not kind:
            raise VramBudgetError(f"{key} is {shown(found)}; it should be {what}", where=self.where)
        return found


def read_gguf(path: Path) -> Gguf:
    """Return a model's header, of all its files. Raises VramBudgetError for what is none."""
    match = PART.fullmatch(path.name)
    if not match:
        found = _read(path)
        if (_parts(found) or 1) > 1:
            raise VramBudgetError(
                "this is one of several files of a model, and its name does not say which",
                where=str(path),
                hint="keep the names that it was published with: model-00001-of-00005.gguf",
            )
        return found
    parts = int(match[3])
    if not 1 <= int(match[2]) <= parts <= _MOSTPARTS:
        raise VramBudgetError("its name is that of a part which cannot be", where=str(path))
    names = [path.with_name(f"{match[1]}-{n:05}-of-{parts:05}.gguf") for n in range(1, parts + 1)]
    return joined([_read(name) for name in names])


def joined(parts: list[Gguf]) -> Gguf:
    """Return a model's header, of its parts in order. Raises VramBudgetError."""
    first = parts[0]
    if (said := _parts(first) or 1) != len(parts):
        raise VramBudgetError(
            f"split.count is {said}, and its name says {len(parts)}", where=first.where
        )
    tensors = tuple(tensor for part in parts for tensor in part.tensors)
    return Gguf(first.values, tensors, first.where)


def _parts(found: Gguf) -> int | None:
    count: int | None = found.of("split.count", int, "how many files the model has")
    return count


def _read(path: Path) -> Gguf:
    with open_file(path, "model") as file:
        return read_header(file, os.fstat(file.fileno()).st_size, str(path))


def read_header(file: BinaryIO, size: int, where: str) -> Gguf:
    """Return the header of a file of so many bytes. Raises VramBudgetError for what is none."""
    return _Reader(file, size, where).header()


class _Reader:
    def __init__(self, file: BinaryIO, size: int, where: str) -> None:
        self.file, self.left, self.where = file, size, where
        self.elements = 0

    def header(self) -> Gguf:
        """Read all of it."""
        if self.bytes(4) != b"GGUF":
            raise self._wrong("it does not begin with GGUF")
        version = self.scalar("I")
        if version not in _VERSIONS:
            raise self._wrong(f"its version is {version}; 2 and 3 are read")
        tensors = self.count("tensors", _MOST_TENSORS, _LEAST_OF_A_TENSOR)
        values = self.count("values", _MOST_VALUES, _LEAST_OF_A_VALUE)
        found: dict[str, Any] = {}
        for _ in range(values):
            key = self.text()
            if key in found:
                raise self._wrong(f"{shown(key)} stands twice")
            found[key] = self._of_type(self.scalar("I"), key)
        return Gguf(found, tuple(self._tensors(tensors)), self.where)

    def _tensors(self, count: int) -> Iterator[GgufTensor]:
        names = set()
        for _ in range(count):
            name, dimensions = self.text(), self.scalar("I")
            if name in names:
                raise self._wrong(f"tensor {shown(name)} stands twice")
            names.add(name)
            if not 1 <= dimensions <= _MOST_DIMENSIONS:
                raise self._wrong(f"tensor {shown(name)} has {dimensions} dimensions")
            shape = tuple(self.scalar("Q") for _ in range(dimensions))
            if not all(0 < n <= _LARGEST for n in shape):
                raise self._wrong(f"tensor {shown(name)} is {' x '.join(map(str, shape))}")
            number = self.scalar("I")
            self.scalar("Q")  # where its data begins
            if number not in NUMBERS:
                raise self._wrong(f"tensor {shown(name)} is of type {number}, which is not known")
            yield GgufTensor(name, shape, NUMBERS[number])

    def _of_type(self, kind: int, key: str) -> Any:
        if kind == _TEXT:
            return self.text()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._wrong(f"{shown(key)} is of type {kind}, which is not known")
        return self.scalar(_SCALARS[kind])

    def _array(self, key: str) -> list[Any]:
        kind = self.scalar("I")
        code = "Q" if kind == _TEXT else _SCALARS.get(kind)
        if code is None:
            raise self._wrong(f"{shown(key)} is a list of type {kind}, which is not known")
        count = self.count(f"elements of {shown(key)}", _MOST_ELEMENTS, struct.calcsize(code))
        self.elements += count
        if self.elements > _MOST_ELEMENTS:
            raise self._wrong(f"its lists have {self.elements:,} elements by {shown(key)}")
        if kind == _TEXT:  # a vocabulary
            for _ in range(count):
                self.bytes(self.length())
            return []
        packed = f"<{count}{code}"
        return list(struct.unpack(packed, self.bytes(struct.calcsize(packed))))

    def text(self) -> str:
        """Read a text."""
        return self.bytes(self.length()).decode("utf-8", "replace")

    def length(self) -> int:
        """Read the length of a text."""
        return self.count("bytes of a text", _LONGEST_TEXT, 1)

    def count(self, what: str, most: int, each: int) -> int:
        """Read a number of things, of which each takes at least so many bytes."""
        count: int = self.scalar("Q")
        if count > most or count * each > self.left:
            raise self._wrong(f"it says that there are {count:,} {what}")
        return count

    def scalar(self, code: str) -> Any:
        """Read a number, little-endian."""
        return struct.unpack(f"<{code}", self.bytes(struct.calcsize(f"<{code}")))[0]

    def bytes(self, count: int) -> bytes:
        """Read so many bytes."""
        found = self.file.read(count) if count <= self.left else b""
        if len(found) < count:
            raise self._wrong("it ends within its header")
        self.left -= count
        return found

    def _wrong(self, what: str) -> VramBudgetError:
        return VramBudgetError(f"this is no GGUF file: {what}", where=self.where)


def shown(value: object) -> str:
    """Return a value's text, as much of it as a line has."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."  # noqa: PLR2004 - a line
