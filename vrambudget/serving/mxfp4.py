"""gpt-oss's experts in mxfp4 as vLLM holds them: weights K N / 2, a scale of each 32 in 8 bits.

Source: vllm/model_executor/layers/fused_moe/oracle/mxfp4.py, third_party/triton_kernels/
tensor_details/layout_details (hopper_value.py, hopper_scale.py). vLLM 0.19 to 0.33.

Groups of scales are padded by layers/quantization/utils/mxfp4_utils.py (_swizzle_mxfp4).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from vrambudget.config.gpus import Gpu
from vrambudget.serving.linear import ServedLinear
from vrambudget.serving.quantised import BLACKWELL, HOPPER, ITEMSIZE, IgnoredLayers, WeightPart
from vrambudget.serving.vllm_versions import OLDEST
from vrambudget.units import round_up

_ALL_BUT_EXPERTS = IgnoredLayers((), "dense")
_WORKSTATION = (11, 0)  # from here on GPUs without the data centre's kernels


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """gpt-oss's experts in 4-bit floats, padded as the GPU's kernel takes them.

    Hopper: triton_kernels' values, before 0.22 in tiles of 64 x 64 bytes, and scales in 256 outputs
    and 2 groups, from 0.26 on 4, before 0.25 beside the loaded ones; B200: FlashInfer's, with
    biases in float32; others: Marlin's. `minor`: of vLLM's version.
    """

    ignored: IgnoredLayers = _ALL_BUT_EXPERTS
    minor: int = OLDEST

    while_loading = False
    description = "mxfp4 experts, 4 bits in groups of 32"

    def parts(self, linear: ServedLinear, gpu: Gpu) -> Iterator[WeightPart]:
        """Yield weights, scales and biases of all experts."""
        E, is_gate = linear.experts, len(linear.outputs) > 1
        of_inner, of_hidden = self._multiples(gpu)
        K = round_up(linear.inputs, of_hidden if is_gate else of_inner)
        N = sum(round_up(n, of_inner if is_gate else of_hidden) for n in linear.outputs)
        loaded, scales = E * N * K // 2, E * N * K // 32
        if gpu.compute_capability == HOPPER:
            tiles, groups = 64 if self.minor < 22 else 1, 4 if self.minor >= 26 else 2  # noqa: PLR2004
            yield loaded, E * round_up(K // 2, tiles) * round_up(N, tiles)
            yield scales, None if self.minor < 25 else 0  # noqa: PLR2004
            yield 0, E * round_up(N, 256) * round_up(K // 32, groups)
        else:
            yield loaded, loaded
            yield scales, scales
        wide = gpu.compute_capability >= HOPPER and gpu.compute_capability < _WORKSTATION
        yield ITEMSIZE * E * N, (4 if wide else ITEMSIZE) * E * N

    def workspace_columns(self, inner: int, width: int, gpu: Gpu) -> int:
        """Return the columns of Marlin's two workspaces; others keep none."""
        if HOPPER <= gpu.compute_capability < _WORKSTATION:
            return 0
        of_inner, of_hidden = self._multiples(gpu)
        I, C = round_up(inner, of_inner), round_up(width, of_hidden)
        return max(I, C) + max(2 * I, C)

    def _multiples(self, gpu: Gpu) -> tuple[int, int]:
        """Return what the experts' inner width and the hidden width are multiples of."""
        if gpu.compute_capability == HOPPER:
            return 64, 1
        is_blackwell = BLACKWELL <= gpu.compute_capability < _WORKSTATION
        return (256, 256) if is_blackwell else (128, 256)
