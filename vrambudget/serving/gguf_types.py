"""ggml's types (`gguf_types.csv`): a block's elements and bytes, and the number that a file writes.

    Q4_K     [n / 256] blocks of 144 bytes, and so on

Source: llama.cpp 0c1e570 of October 2026: ggml/src/ggml.c (type_traits), ggml/include/ggml.h
(ggml_type), gguf/constants.py (GGML_QUANT_SIZES).
"""

from collections.abc import Mapping

from vrambudget.files import csv_beside

_TYPES = csv_beside(__file__, "gguf_types.csv")
SIZES: Mapping[str, tuple[int, int]] = {
    row["name"]: (int(row["elements"]), int(row["bytes"])) for row in _TYPES
}
"""Elements and bytes of a block."""
NUMBERS: Mapping[int, str] = {int(row["number"]): row["name"] for row in _TYPES}
"""ggml_type, as a file writes it."""


def row_bytes(kind: str, elements: int) -> int:
    """Return the bytes of a row."""
    block, nbytes = SIZES[kind]
    return elements // block * nbytes
