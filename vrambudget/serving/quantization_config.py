"""How a checkpoint's weights are quantised, as vLLM reads its `quantization_config`.

    quant_method          awq, gptq, fp8, mxfp4, compressed-tensors; `--quantization`
                          has to agree; with awq or gptq it says that no kernel may repack them
    without one           fp8 quantises 16-bit weights as they are loaded; of the
                          others the usual checkpoint is meant

Source: vllm/config/model.py (_verify_quantization), model_executor/layers/quantization (from_config
and override_quantization_method of each), compressed_tensors.py (_get_scheme_from_parts). vLLM
0.19.
Not modelled, and refused: layers of several kinds, a quantised head, 2:4 sparsity, transforms,
4-bit floats, 8-bit inputs of 4-bit weights.
"""

from collections.abc import Mapping
from typing import Any, Literal

from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import show
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.serving.mxfp4 import Mxfp4
from vrambudget.serving.quantised import EightBitWeights, IgnoredLayers, PackedWeights, Quantisation

USUAL: Mapping[str, Quantisation] = {
    "awq": PackedWeights("awq", bits=4, group=128, zeros=True, ordered=False, repacked=False),
    "awq_marlin": PackedWeights("awq", bits=4, group=128, zeros=True, ordered=False),
    "gptq": PackedWeights("gptq", bits=4, group=128, zeros=False, ordered=False, repacked=False),
    "gptq_marlin": PackedWeights("gptq", bits=4, group=128, zeros=False, ordered=False),
    "fp8": EightBitWeights("fp8", "tensor", while_loading=True),
    "compressed-tensors": EightBitWeights("fp8", "channel"),
}
"""What each method makes of a checkpoint without a quantization_config, or is assumed to be."""

_LEAST = {"compressed-tensors": (7, 0)}
_TURING = (7, 5)
_EIGHT = 8  # bits
_PACKED_GROUPS = frozenset({-1, 32, 64, 128})


def quantisation_of(
    values: Mapping[str, Any] | None, asked: str | None, gpu: Gpu, *, where: str
) -> Quantisation | None:
    """Return how weights are quantised; None: not at all.

    `values`: the quantization_config; `asked`: what `--quantization` says. Raises VramBudgetError.
    """
    if not values:
        found = USUAL[asked] if asked else None
        method = asked
    else:
        keys = _ConfigKeys(values, where)
        method = keys.text("quant_method")
        if method not in _READERS:
            raise NotModelledError(
                f"weights quantised by {show(method)} are not modelled",
                where=where,
                hint=f"there is {', '.join(_READERS)}; a configuration without"
                " quantization_config is that of 16-bit weights",
            )
        if asked is not None and asked.removesuffix("_marlin") != method:
            raise VramBudgetError(
                f"quantization is {asked!r}, and quant_method is {method!r}: servers refuse that",
                where=where,
                hint=f"leave --quantization away: it is {method!r} by itself",
            )
        found = _READERS[method](keys, asked)
    if found is not None and gpu.compute_capability < _LEAST.get(str(method), _TURING):
        raise VramBudgetError(f"vLLM has no {method} for {gpu.name}: its architecture is too old")
    return found


class _ConfigKeys:
    """A quantization_config, whose values are checked as they are read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values, self.where = values, where

    def text(self, key: str) -> str:
        """Return a text, in small letters."""
        found = self.values.get(key)
        if not isinstance(found, str):
            raise self.wrong(key, "a text")
        return found.lower()

    def number(self, key: str) -> int:
        """Return a whole number."""
        found = self.values.get(key)
        if not isinstance(found, int) or isinstance(found, bool):
            raise self.wrong(key, "a whole number")
        return found

    def flag(self, key: str, default: bool | None = None) -> bool:  # noqa: FBT001 - as dict.get has it
        """Return true or false."""
        found = self.values.get(key, default)
        if not isinstance(found, bool):
            raise self.wrong(key, "true or false")
        return found

    def names(self, *keys: str) -> tuple[str, ...]:
        """Return the list of names of the first key that has one."""
        for key in keys:
            found = self.values.get(key)
            if isinstance(found, list) and all(isinstance(name, str) for name in found):
                if found:
                    return tuple(found)
            elif found is not None:
                raise self.wrong(key, "a list of names")
        return ()

    def of(self, key: str) -> "_ConfigKeys":
        """Return an object within."""
        found = self.values.get(key)
        if not isinstance(found, dict):
            raise self.wrong(key, "an object")
        return _ConfigKeys(found, self.where)

    def wrong(self, key: str, what: str) -> VramBudgetError:
        """Return the error of a value that is none."""
        shown = show(self.values.get(key))
        return VramBudgetError(
            f"quantization_config.{key} is {shown}; it should be {what}", where=self.where
        )

    def refuse(self, what: str) -> NotModelledError:
        """Return the error of a checkpoint that no rule is for."""
        return NotModelledError(f"{what} is not modelled", where=self.where)

    def without(self, *keys: str) -> None:
        """Refuse what these keys ask for."""
        for key in keys:
            if self.values.get(key):
                raise self.refuse(f"quantization_config.{key} = {show(self.values[key])}")


def _awq(keys: _ConfigKeys, asked: str | None) -> Quantisation:
    keys.without("lm_head")
    if keys.number("bits") != 4:  # noqa: PLR2004
        raise keys.refuse(f"AWQ with {keys.number('bits')} bits")
    group, zeros = _group(keys, keys.number("group_size")), keys.flag("zero_point")
    if not zeros:
        raise keys.refuse("AWQ without zero points")
    ignored = IgnoredLayers(keys.names("modules_to_not_convert"), "within")
    return PackedWeights(
        "awq", 4, group, zeros=True, ordered=False, repacked=asked != "awq", ignored=ignored
    )


def _gptq(keys: _ConfigKeys, asked: str | None) -> Quantisation:
    keys.without("lm_head", "dynamic", "modules_in_block_to_quantize")
    bits, group = keys.number("bits"), _group(keys, keys.number("group_size"))
    if bits not in {4, 8}:
        raise keys.refuse(f"GPTQ with {bits} bits")
    ordered = keys.flag("desc_act") and group > 0
    repacked = asked != "gptq" and keys.flag("sym")
    return PackedWeights("gptq", bits, group, zeros=False, ordered=ordered, repacked=repacked)


def _group(keys: _ConfigKeys, group: int) -> int:
    if group not in _PACKED_GROUPS:
        raise keys.refuse(f"a group_size of {group}")
    return group


def _fp8(keys: _ConfigKeys, _: str | None) -> Quantisation:
    ignored = IgnoredLayers(keys.names("ignored_layers", "modules_to_not_convert"), "equal")
    static = keys.text("activation_scheme") == "static"
    if block := keys.values.get("weight_block_size"):
        if block != [128, 128]:
            raise keys.refuse(f"weight_block_size {show(block)}")
        return EightBitWeights("fp8", "block", ignored=ignored)
    return EightBitWeights("fp8", "tensor", static=static, ignored=ignored)


def _compressed(keys: _ConfigKeys, _: str | None) -> Quantisation:
    keys.without("transform_config")
    if keys.values.get("sparsity_config") and keys.of("sparsity_config").text("format") != "dense":
        raise keys.refuse("2:4 sparsity")
    groups = keys.of("config_groups")
    if len(groups.values) != 1:
        raise keys.refuse("a checkpoint of several config_groups")
    [name] = groups.values
    group = groups.of(name)
    if group.names("targets") != ("Linear",):
        raise keys.refuse(f"a config_group for {show(group.values.get('targets'))}")
    ignored = IgnoredLayers(keys.names("ignore"), "pattern")
    weights = group.of("weights")
    inputs = group.of("input_activations") if group.values.get("input_activations") else None
    kind, bits, strategy = (
        weights.text("type"),
        weights.number("num_bits"),
        weights.text("strategy"),
    )
    if inputs is None and kind == "int" and strategy in {"group", "channel"}:
        size = _group(keys, weights.number("group_size")) if strategy == "group" else -1
        zeros = not weights.flag("symmetric", default=True)
        if bits in {4, 8} and (bits, zeros) != (8, True):
            ordered = weights.values.get("actorder") == "group"
            return PackedWeights("wNa16", bits, size, zeros=zeros, ordered=ordered, ignored=ignored)
    elif bits == _EIGHT and (inputs is None or inputs.number("num_bits") == _EIGHT):
        scales = _SCALES.get(strategy)
        static = inputs is not None and not inputs.flag("dynamic", default=False)
        if scales and kind == "float":
            return EightBitWeights("fp8", scales, static=static, ignored=ignored)
        if scales and scales != "block" and kind == "int" and inputs is not None:
            odd = not inputs.flag("symmetric", default=True)
            return EightBitWeights("int8", scales, static=static, asymmetric=odd, ignored=ignored)
    raise keys.refuse(f"compressed-tensors' {kind} of {bits} bits by {strategy}")


_SCALES: Mapping[str, Literal["tensor", "channel", "block"]] = {
    "tensor": "tensor",
    "channel": "channel",
    "block": "block",
}


def _mxfp4(keys: _ConfigKeys, _: str | None) -> Quantisation:
    del keys
    return Mxfp4()


_READERS = {
    "awq": _awq,
    "gptq": _gptq,
    "fp8": _fp8,
    "compressed-tensors": _compressed,
    "mxfp4": _mxfp4,
}


def cache_in_fp8(values: Mapping[str, Any] | None) -> bool:
    """Whether the checkpoint says that keys and values are fp8, whatever --kv-cache-dtype says."""
    values = values or {}
    return values.get("quant_method") == "compressed-tensors" and bool(
        values.get("kv_cache_scheme")
    )
