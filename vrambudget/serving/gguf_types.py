"""ggml's types: how many bytes a row of each takes, and the numbers that a file writes for them.

    Q4_K     [n / 256] blocks of 144 bytes, and so on

Source: llama.cpp 0c1e570 of October 2026: ggml/src/ggml.c (type_traits), ggml/include/ggml.h
(ggml_type), gguf/constants.py (GGML_QUANT_SIZES).
"""

from collections.abc import Mapping

_TYPES = (
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 40),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
    (42, "Q2_0", 64, 18),
)
"""Number in a file, name, elements and bytes of a block."""
SIZES: Mapping[str, tuple[int, int]] = {name: (block, size) for _, name, block, size in _TYPES}
"""Elements and bytes of a block."""
NUMBERS: Mapping[int, str] = {number: name for number, name, _, _ in _TYPES}
"""ggml_type, as a file writes it."""


def row_bytes(kind: str, elements: int) -> int:
    """Return the bytes of a row."""
    block, nbytes = SIZES[kind]
    return elements // block * nbytes
