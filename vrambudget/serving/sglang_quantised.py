"""Quantised linear layers of SGLang: where they are not those of vLLM.

    awq, gptq   tensors as in vLLM, and Marlin is the only kernel that takes them in its order
    fp8         weight K N; a scale for each output in float32, whatever the checkpoint has, or one
                for each block of 128 x 128; 16-bit weights are all loaded before any is quantised.
                Before compute capability 8.9 Marlin takes them: scales in 16 bit, and no others

Source: sglang 0.5.9: srt/layers/quantization/awq.py (AWQMarlinLinearMethod), gptq.py
(GPTQMarlinLinearMethod), fp8.py (Fp8LinearMethod), fp8_utils.py (cutlass_fp8_supported),
marlin_utils_fp8.py (prepare_fp8_layer_for_marlin), model_loader/loader.py (load_weights_and_
postprocess).
Held against no log: none was found that names a quantised dense model and this version.
Not modelled, and refused: compressed-tensors, bitsandbytes, experts, latent attention, GPUs before
compute capability 8.0, fp8 in blocks on Blackwell.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.serving.linear import Linear
from vrambudget.serving.quantised import NOTHING, EightBit, Ignored, Packed, Part, Quantisation
from vrambudget.serving.quantization_config import quantisation_of

_AMPERE, _ADA, _BLACKWELL = (8, 0), (8, 9), (10, 0)
_BLOCK = 128
_METHODS = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin", "fp8"})


@dataclass(frozen=True, slots=True)
class Fp8:
    """Weights of 8 bits."""

    scales: Literal["tensor", "block"]
    from_16_bit: bool  # quantised once they are loaded
    static: bool = False  # the scales of what comes in, too
    ignored: Ignored = NOTHING

    while_loading = False

    @property
    def description(self) -> str:
        """What it is, in a few words."""
        if self.from_16_bit:
            return "fp8, quantised once they are loaded"
        return "fp8, a scale for each " + ("block" if self.scales == "block" else "output")

    def parts(self, linear: Linear, gpu: Gpu) -> Iterator[Part]:
        """Yield weights and scales."""
        K, N, shards = linear.inputs, linear.width, len(linear.outputs)
        by_marlin = gpu.compute_capability < _ADA
        if self.scales == "block" and gpu.compute_capability >= _BLACKWELL:
            raise NotModelledError(
                "the scales of fp8 blocks as DeepGEMM lays them out on Blackwell are not modelled",
                hint="an H100 or H200 has rules for them",
            )
        if self.from_16_bit:
            yield 2 * linear.elements, linear.elements
        else:
            yield linear.elements, linear.elements if by_marlin else None
        if self.scales == "block":
            blocks = sum(-(-n // _BLOCK) for n in linear.outputs) * -(-K // _BLOCK)
            yield 4 * blocks, 2 * (K // _BLOCK) * N if by_marlin else None
        else:
            loaded = 0 if self.from_16_bit else 4 * shards
            yield loaded, (2 if by_marlin else 4) * N
        if by_marlin:
            yield 0, 4 * gpu.multiprocessors
        if self.static:
            yield 4 * shards, 0 if by_marlin else 4


def sglang_quantisation(
    values: Mapping[str, Any] | None,
    asked: str | None,
    gpu: Gpu,
    config: DecoderConfig,
    *,
    where: str,
) -> Quantisation | None:
    """Return how weights are quantised; None: not at all. Raises VramBudgetError.

    `values`: the quantization_config; `asked`: what `--quantization` says.
    """
    if not values and asked is None:
        return None
    method = str(values.get("quant_method")).lower() if values else asked
    if method not in _METHODS:
        raise NotModelledError(
            f"weights quantised by {method} are not modelled as SGLang loads them",
            where=where,
            hint="awq, gptq and fp8 are; --engine vllm has rules for more",
        )
    if gpu.compute_capability < _AMPERE or isinstance(config, MoeConfig | LatentConfig):
        raise NotModelledError(
            f"quantised weights of {config.model_type} on {gpu.name} are not modelled as SGLang"
            " loads them",
            where=where,
            hint="dense models from compute capability 8.0 on are; a configuration without"
            " quantization_config is that of 16-bit weights",
        )
    found = quantisation_of(values, asked, gpu, where=where)
    if isinstance(found, Packed):
        return replace(found, marlin_alone=True)
    if isinstance(found, EightBit):
        scales: Literal["tensor", "block"] = "block" if found.scales == "block" else "tensor"
        return Fp8(scales, found.while_loading, found.static, found.ignored)
    return found
