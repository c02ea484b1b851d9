"""NVIDIA's cuDNN, where it is installed, and its backend's descriptors through ctypes.

    pip install nvidia-cudnn-cu13        the library alone: no GPU, no PyTorch, no CUDA toolkit

A descriptor is made, its attributes are set, it is finalized, and then attributes can be read.
Numbers are those of cudnn_graph_v9.h. Only Linux's library is looked for.
"""

import ctypes
import importlib.util
import os
import shutil
from collections.abc import Iterator, Sequence
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

_FILE = Path("nvidia") / "cudnn" / "lib" / "libcudnn.so.9"
_ANSWERS_SINCE = 9_08_00  # without a GPU: CUDNN_VERSION


class Of(IntEnum):
    """cudnnBackendDescriptorType_t."""

    CONVOLUTION = 1
    ENGINE_CONFIG = 3
    HEURISTICS = 4
    PLAN = 5
    FORWARD = 10
    BACKWARD_FILTER = 11
    BACKWARD_DATA = 12
    GRAPH = 15
    TENSOR = 17
    DEVICE_PROPERTIES = 38


class Type(IntEnum):
    """cudnnBackendAttributeType_t."""

    DATA_TYPE = 1
    INT64 = 3
    FLOAT = 4
    CONVOLUTION_MODE = 7
    HEURISTICS_MODE = 8
    DESCRIPTOR = 15
    CHARACTER = 24


_INTEGER, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_IN_C: dict[Type, Any] = {
    Type.INT64: _INTEGER,
    Type.FLOAT: _FLOAT,
    Type.DESCRIPTOR: _POINTER,
    Type.CHARACTER: ctypes.c_char,
}


class CudnnError(Exception):
    """A call that cuDNN refused, by its status."""


class Cudnn:
    """One library. Its descriptors are destroyed by `close`, all at once."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.cudnnGetVersion.restype = ctypes.c_size_t
        self.number: int = self._library.cudnnGetVersion()
        self._made: list[ctypes.c_void_p] = []

    @property
    def version(self) -> str:
        """Its version, as "9.19.0"."""
        major, rest = divmod(self.number, 10_000)
        return f"{major}.{rest // 100}.{rest % 100}"

    def made(
        self, kind: Of, attributes: Sequence[tuple[int, Type, Sequence[object]]] = ()
    ) -> ctypes.c_void_p:
        """Return a descriptor with these attributes; one with any is finalized."""
        descriptor = _POINTER()
        self._call("cudnnBackendCreateDescriptor", int(kind), ctypes.byref(descriptor))
        self._made.append(descriptor)
        for name, type_, values in attributes:
            array = (_IN_C.get(type_, ctypes.c_int) * len(values))(*values)
            count = _INTEGER(len(values))
            self._call("cudnnBackendSetAttribute", descriptor, name, int(type_), count, array)
        if attributes:
            self._call("cudnnBackendFinalize", descriptor)
        return descriptor

    def number_of(self, descriptor: ctypes.c_void_p, name: int) -> int:
        """Return an attribute that is one integer."""
        value, count = _INTEGER(), ctypes.byref(_INTEGER())
        wanted = descriptor, name, int(Type.INT64), _INTEGER(1), count, ctypes.byref(value)
        self._call("cudnnBackendGetAttribute", *wanted)
        return int(value.value)

    def descriptors(
        self, descriptor: ctypes.c_void_p, name: int, kind: Of, most: int
    ) -> Iterator[ctypes.c_void_p]:
        """Yield an attribute that is a list of descriptors."""
        values = [self.made(kind) for _ in range(most)]
        array, count = (_POINTER * most)(*values), _INTEGER()
        capacity, type_ = _INTEGER(most), int(Type.DESCRIPTOR)
        wanted = descriptor, name, type_, capacity, ctypes.byref(count), array
        self._call("cudnnBackendGetAttribute", *wanted)
        yield from values[: count.value]

    def close(self) -> None:
        """Destroy the descriptors that were made."""
        while self._made:
            self._library.cudnnBackendDestroyDescriptor(self._made.pop())

    def _call(self, name: str, *arguments: object) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise CudnnError(f"{name} returns {status}")


@cache
def installed() -> Cudnn | None:
    """Return the cuDNN of this Python, else of VRAMBUDGET_PYTHON's, that answers without a GPU."""
    for path in _places():
        if path.is_file():
            try:
                found = Cudnn(path)
            except OSError:  # for another system, or not whole
                continue
            return found if found.number >= _ANSWERS_SINCE else None
    return None


def _places() -> Iterator[Path]:
    if (spec := importlib.util.find_spec("nvidia")) is not None:
        for folder in spec.submodule_search_locations or ():
            yield Path(folder).parent / _FILE
    program = shutil.which(os.environ.get("VRAMBUDGET_PYTHON", ""))
    if program:
        yield from sorted(Path(program).parents[1].glob(f"lib/python3*/site-packages/{_FILE}"))
