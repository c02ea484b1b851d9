"""Where tensors have their storages and dispatch keys, read without objects of Python's.

Runs in the user's Python, 3.9 or later.
"""

# ruff: noqa: SLF001 - storages' and tensors' addresses have no public names

from __future__ import annotations

import ctypes
import sys
from typing import Any

_FIELDS_WITHIN = 128  # bytes of a TensorImpl, or a StorageImpl, with what is looked for
_KEY_SET_WITHIN = 400  # bytes of a TensorImpl in which its dispatch keys are looked for


class Storages:
    """Tensors' storages by their addresses, without objects of Python's."""

    def __init__(self, torch: Any) -> None:
        size = 5 << 10  # bytes that are no other field's value
        tensor = torch.empty(size, dtype=torch.uint8)
        self.offset = _offset_in(tensor._cdata, tensor.untyped_storage()._cdata)
        self.size_offset = _offset_in(self.of(tensor), size)

    def of(self, tensor: Any) -> int:
        """Return the address of a tensor's storage (c10::StorageImpl)."""
        return ctypes.c_uint64.from_address(tensor._cdata + self.offset).value

    def nbytes(self, tensor: Any) -> int:
        """Return the bytes of a tensor's storage; of one without (a sparse one), more than any."""
        storage = self.of(tensor)
        if not storage:
            return sys.maxsize
        return ctypes.c_uint64.from_address(storage + self.size_offset).value

    def is_whole(self, tensor: Any) -> bool:
        """Return whether a tensor is all that its storage holds."""
        return bool(tensor.numel() * tensor.element_size() == self.nbytes(tensor))


def _offset_in(address: int, word: int) -> int:
    """Return where, after an address, the first word lies that has this value."""
    words = (ctypes.c_uint64 * (_FIELDS_WITHIN // 8)).from_address(address)
    for i, found in enumerate(words):
        if found == word:
            return 8 * i
    raise LookupError("a tensor's storage is not where it was looked for")


def offset_of_keys(torch: Any) -> int:
    """Return where a TensorImpl has its dispatch keys, which no function sets."""
    common: set[int] | None = None
    for tensor in (torch.empty(1), torch.empty(1, 1).to_sparse()):
        keys = torch._C._dispatch_keys(tensor).raw_repr()
        words = (ctypes.c_uint64 * (_KEY_SET_WITHIN // 8)).from_address(tensor._cdata)
        places = {8 * i for i, word in enumerate(words) if word == keys}
        common = places if common is None else common & places
    if common is None or len(common) != 1:
        raise LookupError("a tensor's dispatch keys are not where they were looked for")
    return common.pop()
