"""What a file's name says of its tensors: "Q4_K_M" as llama-quantize makes it.

    Q4_K_M   Q4_K; Q6_K for the output and for half of attn_v and ffn_down (`_more_bits`)
    IQ4_XS   IQ4_XS; Q5_K for attn_v where four heads or more share it

Rows that are no multiple of a type's block take a simpler type. Types that need an importance
matrix are those of a file made with one, as published files are.

Source: llama.cpp 0c1e570 of October 2026: src/llama-quant.cpp (llama_ftype_get_default_type,
llama_tensor_get_type_impl, tensor_type_fallback, tensor_allows_quantization), conversion/base.py
(prepare_tensors).
Not modelled: Falcon's own rules, --tensor-type, and publishers' own recipes (UD-Q4_K_XL and the
like): their files say their types themselves.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.files import toml_beside
from vrambudget.serving.gguf_types import SIZES

_NAMES = toml_beside(__file__, "gguf_quants.toml")
_DEFAULTS: Mapping[str, str] = _NAMES["defaults"]
_SPELLED: Mapping[str, str] = _NAMES["spelled"]
_SIMPLER = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
_IN_F32 = frozenset({"ffn_gate_inp", "ssm_conv1d", "altup_correct_coef", "altup_predict_coef"}) | {
    *("position_embd", "token_types", "shortconv.conv", "indexer.proj")
}
_AS_IT_WAS = ("altup", "laurel", "per_layer_model_proj")  # of a file in 16 bit
_UNQUANTISED = frozenset({"F32", "F16", "BF16"})
_LOWEST = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
_BETTER_LOW = frozenset({"IQ2_S", "IQ2_M"})
_OF_TABLE = dict.fromkeys(_LOWEST, "Q2_K") | dict.fromkeys((*_BETTER_LOW, "IQ3_XXS"), "IQ3_S")
_OF_QUERIES = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}  # and of keys
_OF_ATTN_OUTPUT = {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "Q2_K": "Q3_K", "Q3_K_M": "Q4_K"} | {
    **dict.fromkeys(("IQ2_S", "IQ2_M", "IQ3_XXS"), "IQ3_S"),
    "IQ3_M": "Q4_K",
    "Q3_K_L": "Q5_K",
}
_OF_QKV = {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
_FEW_HEADS = 4  # query heads that share keys and values, from which on these get more bits
_MIXTRAL = 8  # experts of the models that have rules of their own
_OF_OUTPUT_OF_MIXTRAL = dict.fromkeys(_LOWEST, "Q5_K") | dict.fromkeys(
    ("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M"),
    "Q5_K",
)
_OF_OUTPUT_OF_MIXTRAL |= {"IQ3_S": "Q5_K", "IQ3_M": "Q5_K"}
_OF_KEYS_OF_MIXTRAL = dict.fromkeys(_DEFAULTS, "Q8_0") | dict.fromkeys(_LOWEST, "Q4_K")


@dataclass(frozen=True, slots=True)
class Shape:
    """What the rules ask of a model. `shared`: query heads for each head of keys and values."""

    layers: int
    shared: int
    experts: int = 0
    is_70b: bool = False  # LLM_TYPE_70B: 80 layers of Llama or Qwen2 with shared heads


def named(name: str) -> str:
    """Return the name as llama.cpp writes it. Raises VramBudgetError for one without rules."""
    upper = name.upper().replace("-", "_")
    upper = _SPELLED.get(upper, upper)
    if upper not in _DEFAULTS:
        hint = did_you_mean(upper, _DEFAULTS) or f"there is {', '.join(_DEFAULTS)}"
        raise VramBudgetError(
            f"{name!r} is no quantisation that is modelled",
            hint=f"{hint}; a local file says it itself: vrambudget run model.gguf --gpu GPU",
        )
    return upper


def type_of(name: str, tensor: str, shape: tuple[int, ...], model: Shape, *, layer: int) -> str:
    """Return the type of a tensor of a file of that name.

    `tensor`: as "attn_v"; `shape`: the length of a row first.
    """
    kind = _DEFAULTS[name]
    if len(shape) == 1 or tensor in _IN_F32 or tensor.endswith("_norm"):
        return "F32"
    if tensor.startswith(_AS_IT_WAS):
        return "F16"
    if kind in _UNQUANTISED:
        return kind
    if tensor == "output":
        return _fitting(_of_output(name, kind, shape[0]), shape[0])
    if name == "MXFP4_MOE":
        return "MXFP4" if len(shape) > 2 else "Q8_0"  # noqa: PLR2004 - experts have 3 dimensions
    return _fitting(_of(name, kind, tensor, model, layer), shape[0])


def _of(name: str, kind: str, tensor: str, model: Shape, layer: int) -> str:
    if tensor.startswith("ffn"):
        return _of_mlp(name, kind, tensor, layer, model)
    of = {
        "token_embd": _OF_TABLE,
        "attn_q": _OF_QUERIES,
        "attn_k": _OF_KEYS_OF_MIXTRAL if model.experts == _MIXTRAL else _OF_QUERIES,
        "attn_output": _OF_OUTPUT_OF_MIXTRAL if model.experts == _MIXTRAL else _OF_ATTN_OUTPUT,
        "attn_qkv": _OF_QKV,
    }
    if tensor in {"attn_v", "attn_kv_b"}:
        return _of_values(name, kind, layer, model)
    return of.get(tensor, {}).get(name, kind)


def _of_output(name: str, kind: str, width: int) -> str:
    if name == "MXFP4_MOE" or width % SIZES[kind][0]:
        return "Q8_0"
    if name in {"IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ2_S", "IQ2_M", "IQ1_M"}:
        return "Q5_K"
    return kind if kind == "Q8_0" else "Q6_K"


def _of_values(name: str, kind: str, layer: int, model: Shape) -> str:
    many = model.shared >= _FEW_HEADS
    if name in _LOWEST:
        of_few = "IQ3_S" if name in _BETTER_LOW else "Q2_K"
        return "Q4_K" if many or model.experts >= 4 else of_few  # noqa: PLR2004 - as llama.cpp
    chosen = {
        "Q2_K": "Q4_K" if many else "Q3_K",
        "IQ3_M": "Q4_K",
        "Q3_K_M": "Q5_K" if layer < 2 else "Q4_K",  # noqa: PLR2004
        "Q3_K_L": "Q5_K",
    }
    if many:
        chosen |= dict.fromkeys(("Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S"), "Q4_K")
        chosen |= {"IQ4_NL": "Q5_K", "IQ4_XS": "Q5_K"}
    if _more_bits(layer, model.layers):
        chosen |= {"Q4_K_M": "Q6_K", "Q5_K_M": "Q6_K"}
    if layer < 4:  # noqa: PLR2004
        chosen["Q4_K_S"] = "Q5_K"
    kind = chosen.get(name, kind)
    if model.is_70b and kind in {"Q3_K", "Q4_K"}:
        kind = "Q5_K"
    return "Q8_0" if model.experts == _MIXTRAL else kind


def _of_mlp(name: str, kind: str, tensor: str, layer: int, model: Shape) -> str:
    """Return the type of ffn_gate, ffn_up and ffn_down, experts' and shared ones."""
    layers = model.layers
    if not tensor.startswith("ffn_down"):
        is_inner = layers // 8 <= layer < 7 * layers // 8
        return "IQ3_XXS" if name == "IQ3_XS" and is_inner else kind
    chosen = {
        "Q2_K": "Q3_K",
        "Q3_K_M": "Q5_K" if layer < layers // 16 else "Q4_K",
        "Q3_K_L": "Q5_K",
    }
    if layer < layers // 8:
        chosen |= dict.fromkeys(_LOWEST, "Q2_K") | dict.fromkeys(_BETTER_LOW, "IQ3_S")
        chosen |= {"Q4_K_S": "Q5_K", "Q2_K_S": "Q4_K", "IQ3_M": "Q4_K"}
    if _more_bits(layer, layers):
        chosen |= {"Q4_K_M": "Q6_K", "Q5_K_M": "Q6_K"}
        if model.experts == _MIXTRAL:
            chosen["IQ3_M"] = "Q4_K"
    return chosen.get(name, kind)


def _fitting(kind: str, width: int) -> str:
    """Return the type, or a simpler one where rows are no multiple of its block."""
    if width % SIZES[kind][0]:
        kind = _SIMPLER.get(kind, "IQ4_NL" if SIZES[kind][0] > 32 else kind)  # noqa: PLR2004
    return "F16" if width % SIZES[kind][0] else kind


def _more_bits(layer: int, layers: int) -> bool:
    """use_more_bits: the first and the last eighth, and every third layer between them."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2  # noqa: PLR2004
