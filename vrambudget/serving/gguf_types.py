"""ggml's types: how many bytes a row takes, and what a file's name says of its tensors' types.

    Q4_K     [n / 256] blocks of 144 bytes, and so on
    Q4_K_M   Q4_K; Q6_K for the output and for half of attn_v and ffn_down (`_more_bits`)

Rows that are no multiple of a type's block take the next simpler type.

Source: llama.cpp of August 2025 (in llama-cpp-python 0.3.16): gguf-py/gguf/constants.py
(GGML_QUANT_SIZES), src/llama-quant.cpp (llama_tensor_get_type, llama_model_quantize_impl).
Not modelled: names of types that an importance matrix decides (IQ...), mixtures of experts.
"""

from collections.abc import Mapping

from vrambudget.errors import VramBudgetError, did_you_mean

SIZES: Mapping[str, tuple[int, int]] = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "F64": (1, 8),
    "I8": (1, 1),
    "I16": (1, 2),
    "I32": (1, 4),
    "I64": (1, 8),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q8_1": (32, 40),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "Q8_K": (256, 292),
    "IQ2_XXS": (256, 66),
    "IQ2_XS": (256, 74),
    "IQ3_XXS": (256, 98),
    "IQ1_S": (256, 50),
    "IQ4_NL": (32, 18),
    "IQ3_S": (256, 110),
    "IQ2_S": (256, 82),
    "IQ4_XS": (256, 136),
    "IQ1_M": (256, 56),
    "TQ1_0": (256, 54),
    "TQ2_0": (256, 66),
    "MXFP4": (32, 17),
}
"""Elements and bytes of a block."""

NUMBERS: Mapping[int, str] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
}
"""ggml_type, as a file writes it."""

_DEFAULTS: Mapping[str, str] = {
    **{name: name for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    "Q2_K": "Q2_K",
    "Q3_K_S": "Q3_K",
    "Q3_K_M": "Q3_K",
    "Q3_K_L": "Q3_K",
    "Q4_K_S": "Q4_K",
    "Q4_K_M": "Q4_K",
    "Q5_K_S": "Q5_K",
    "Q5_K_M": "Q5_K",
    "Q6_K": "Q6_K",
}
"""What each name gives to the tensors that it says nothing else of."""
_SIMPLER = {"Q2_K": "IQ4_NL", "Q3_K": "IQ4_NL", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_UNQUANTISED = frozenset({"F32", "F16", "BF16"})
_LAYERS_OF_70B = 80
_FEW_HEADS = 4  # query heads that share keys and values, from which on these get more bits


def row_bytes(kind: str, elements: int) -> int:
    """Return the bytes of a row."""
    block, nbytes = SIZES[kind]
    return elements // block * nbytes


def named(name: str) -> str:
    """Return the name as llama.cpp writes it. Raises VramBudgetError for one without rules."""
    upper = name.upper()
    if upper not in _DEFAULTS:
        hint = did_you_mean(upper, _DEFAULTS) or f"there is {', '.join(_DEFAULTS)}"
        raise VramBudgetError(
            f"what {name!r} says of a file's tensors is not modelled",
            hint=f"{hint}; a local file says it itself: vrambudget serve model.gguf",
        )
    return upper


def type_of(name: str, tensor: str, width: int, *, layer: int, layers: int, shared: int) -> str:
    """Return the type of a tensor [.., width] of a file of that name.

    `tensor`: as "attn_v"; `shared`: query heads for each head of keys and values.
    """
    kind = _DEFAULTS[name]
    if kind in _UNQUANTISED:
        return kind
    if tensor == "output":
        kind = "Q8_0" if kind == "Q8_0" or width % SIZES[kind][0] else "Q6_K"
    elif tensor == "attn_v":
        kind = _of_values(name, kind, layer, layers, shared)
    elif tensor == "ffn_down":
        kind = _of_ffn_down(name, kind, layer, layers)
    elif tensor == "attn_output":
        of_output = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}
        kind = of_output.get(name, kind)
    if width % SIZES[kind][0]:
        kind = _SIMPLER.get(kind, "F16")
        if width % SIZES[kind][0]:
            return "F16"
    return kind


def _of_values(name: str, kind: str, layer: int, layers: int, shared: int) -> str:
    if name == "Q2_K":
        kind = "Q4_K" if shared >= _FEW_HEADS else "Q3_K"
    elif name == "Q3_K_M":
        kind = "Q5_K" if layer < 2 else "Q4_K"  # noqa: PLR2004 - as llama.cpp has it
    elif name == "Q3_K_L":
        kind = "Q5_K"
    elif name in {"Q4_K_M", "Q5_K_M"} and _more_bits(layer, layers):
        kind = "Q6_K"
    elif name == "Q4_K_S" and layer < 4:  # noqa: PLR2004
        kind = "Q5_K"
    if layers == _LAYERS_OF_70B and shared > 1 and kind in {"Q3_K", "Q4_K"}:
        return "Q5_K"
    return kind


def _of_ffn_down(name: str, kind: str, layer: int, layers: int) -> str:
    if name == "Q2_K":
        return "Q3_K"
    if name == "Q3_K_M":
        return "Q5_K" if layer < layers // 16 else "Q4_K"
    if name == "Q3_K_L":
        return "Q5_K"
    if name in {"Q4_K_M", "Q5_K_M"} and _more_bits(layer, layers):
        return "Q6_K"
    if name == "Q4_K_S" and layer < layers // 8:
        return "Q5_K"
    return kind


def _more_bits(layer: int, layers: int) -> bool:
    """use_more_bits: the first and the last eighth, and every third layer between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2  # noqa: PLR2004
