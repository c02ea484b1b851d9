"""What a quantised linear layer of vLLM holds: the tensors of its checkpoint, and those after it.

    K inputs, N outputs, G groups of K; S projections; 4 or 8 bits, packed into int32
    awq         qweight K N, zeros G N packed; scales [G, N]
    gptq        qweight, scales and zeros likewise, g_idx [K] int32
    wNa16       compressed-tensors' packed weights, scales [N, G], their shape; zeros, g_idx
    fp8, int8   weight K N; a scale of each projection, output or block of 128 x 128, in float32

Once they are loaded a kernel takes them in its own order, layer by layer, the old tensor beside the
new one: Machete on Hopper, AllSpark for 8 bits on Ampere, Marlin elsewhere, which takes fp8 too
where the GPU has no such products (before 8.9).

Source: vllm/model_executor/layers/quantization (awq_marlin.py, awq.py, gptq_marlin.py, gptq.py,
fp8.py, compressed_tensors/schemes, utils/marlin_utils_fp8.py),
kernels/linear/__init__.py (choose_mp_linear_kernel), kernels/linear/mixed_precision. vLLM 0.19.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError
from vrambudget.serving.linear import ServedLinear

WeightPart = tuple[int, int | None]
"""Bytes of a tensor as it is made, 0 for none, and of the one in its place; None: it stays."""

ITEMSIZE = 2  # of scales that have the model's type
HOPPER, BLACKWELL = (9, 0), (10, 0)
_ADA, _AMPERE = (8, 9), (8, 0)
_BLOCK = 128
_LATENT = ".kv_b_proj"


@dataclass(frozen=True, slots=True)
class IgnoredLayers:
    """Layers that stay in 16 bit, by the names that a checkpoint says, each method in its way."""

    names: tuple[str, ...]
    way: Literal["equal", "within", "pattern", "dense"]

    def has(self, linear: ServedLinear) -> bool:
        """Whether the layer is one of them; dense: all but experts."""
        if self.way == "dense":
            return not linear.experts
        return any(self._matches(name) for name in linear.parts)

    def _matches(self, name: str) -> bool:
        if self.way == "within":
            return any(word in name for word in self.names)
        if self.way == "pattern":
            import re  # noqa: PLC0415 - few checkpoints have patterns

            patterns = (word[3:] for word in self.names if word.startswith("re:"))
            if any(re.match(pattern, name) for pattern in patterns):
                return True
        return name in self.names


def no_rule_for_experts(description: str) -> NotModelledError:
    """Return the error for experts that a method quantises."""
    return NotModelledError(
        f"experts in {description}, are not modelled",
        hint="fp8 in blocks has a rule from compute capability 8.9 on, and gpt-oss's mxfp4",
    )


NOTHING = IgnoredLayers((), "equal")


class Quantisation(Protocol):
    """A way in which linear layers are quantised."""

    @property
    def while_loading(self) -> bool:
        """Whether layers come in 16 bit, one by one, and are quantised as they come."""

    @property
    def description(self) -> str:
        """What it is, in a few words."""

    @property
    def ignored(self) -> IgnoredLayers:
        """The layers that stay as they are."""

    def parts(self, linear: ServedLinear, gpu: Gpu) -> Iterator[WeightPart]:
        """Yield the tensors of a layer, without its bias. Raises NotModelledError."""


@dataclass(frozen=True, slots=True)
class PackedWeights:
    """Integers of 4 or 8 bits in groups along the inputs; `group` -1: one group."""

    source: Literal["awq", "gptq", "wNa16"]
    bits: int
    group: int
    zeros: bool
    ordered: bool  # columns in an order of their own: desc_act, actorder
    repacked: bool = True  # for Machete, AllSpark or Marlin
    ignored: IgnoredLayers = NOTHING

    while_loading = False

    @property
    def description(self) -> str:
        """What it is, in a few words."""
        groups = "channels" if self.group < 0 else f"groups of {self.group}"
        return f"{self.source}, {self.bits} bits in {groups}"

    def parts(self, linear: ServedLinear, gpu: Gpu) -> Iterator[WeightPart]:
        """Yield weights, scales, zeros and the order of columns."""
        if linear.experts:
            raise no_rule_for_experts(self.description)
        K, N, packed = linear.inputs, linear.width, linear.elements * self.bits // 8
        group = linear.whole_inputs if self.group < 0 else self.group
        is_row = linear.whole_inputs != K
        whole = self.source != "awq" and (self.ordered or (self.group < 0 and is_row))
        G = (linear.whole_inputs if whole else K) // group
        scales, zeros = G * N * ITEMSIZE, G * N * self.bits // 8
        kernel = self._kernel(linear, gpu)
        again = packed if kernel else None
        yield packed, again
        marlin = kernel == "marlin"
        yield scales, scales if marlin or (kernel and self.source == "wNa16") else None
        if self.zeros or self.source == "gptq":
            yield zeros, self._zeros(scales, zeros, kernel)
        if self.source == "wNa16":
            yield 16, None  # weight_shape [2] int64
        if self.ordered or self.source == "gptq":
            order = 4 * K
            yield order, (order * self.ordered if marlin or kernel is None else None)
            if self.ordered and kernel:
                yield 0, order  # where each column comes from
        if marlin:
            yield 0, 4 * gpu.multiprocessors

    def _zeros(self, scales: int, zeros: int, kernel: str | None) -> int | None:
        if self.zeros:
            return {"machete": scales, "marlin": zeros}.get(kernel or "")
        return 0 if kernel == "marlin" else None

    def _kernel(self, linear: ServedLinear, gpu: Gpu) -> str | None:
        """Return which kernel takes the layer; None: as the checkpoint has it."""
        if not self.repacked:
            return None
        if other := self._other_kernel(linear, gpu):
            return other
        K, N = linear.inputs, linear.width
        if N % 64 == 0 and K % 128 == 0 and (self.group < 0 or K % self.group == 0):
            return "marlin"
        if self.source == "awq":
            return None
        raise NotModelledError(
            f"{linear.name} [{N}, {K}] in {self.description} has no kernel that is modelled",
            hint="Marlin takes multiples of 64 outputs and 128 inputs: fewer ranks",
        )

    def _other_kernel(self, linear: ServedLinear, gpu: Gpu) -> str | None:
        """Return the kernel that goes before Marlin, if one takes the layer."""
        K, N, is_row = linear.inputs, linear.width, linear.inputs != linear.whole_inputs
        if (
            gpu.compute_capability == HOPPER
            and not (self.ordered and is_row)
            and self.group in {-1, 64, 128}
            and K % 64 == 0
            and N % 128 == 0
        ):
            return "machete"
        if (
            _AMPERE <= gpu.compute_capability < HOPPER
            and self.group < 0
            and self.bits == 8  # noqa: PLR2004
            and not self.ordered
            and not self.zeros
            and K % 16 == N % 32 == 0
        ):
            return "allspark"
        return None


@dataclass(frozen=True, slots=True)
class EightBitWeights:
    """Weights of 8 bits: fp8 or int8, with scales of projections, of outputs or of blocks."""

    kind: Literal["fp8", "int8"]
    scales: Literal["tensor", "channel", "block"]
    static: bool = False  # the scales of what comes in, too
    asymmetric: bool = False  # what comes in, of int8
    while_loading: bool = False
    ignored: IgnoredLayers = NOTHING

    @property
    def description(self) -> str:
        """What it is, in a few words."""
        how = (
            "quantised as they are loaded"
            if self.while_loading
            else f"a scale for each {self.scales}"
        )
        return f"{self.kind}, {how}"

    def parts(self, linear: ServedLinear, gpu: Gpu) -> Iterator[WeightPart]:
        """Yield weights and scales."""
        K, N, weight, shards = linear.inputs, linear.width, linear.elements, len(linear.outputs)
        by_marlin = self.kind == "fp8" and gpu.compute_capability < _ADA
        if linear.experts and (self.scales != "block" or by_marlin or self.while_loading):
            raise no_rule_for_experts(self.description)
        if self.scales == "block" and gpu.compute_capability >= BLACKWELL:
            raise NotModelledError(
                "the scales of fp8 blocks as DeepGEMM lays them out on Blackwell are not modelled",
                hint="an H100 or H200 has rules for them",
            )
        if self.while_loading:
            yield weight * ITEMSIZE, weight
            scale: WeightPart = 0, 4
        elif self.scales == "block":
            yield weight, weight if by_marlin else None
            blocks = sum(-(-n // _BLOCK) for n in linear.outputs) * -(-K // _BLOCK)
            scale = 4 * max(1, linear.experts) * blocks, None
        else:
            yield weight, weight if by_marlin else None
            of_tensors = self.scales == "tensor"
            kept = {"fp8": 4, "int8": 4 * N if shards > 1 else None}[self.kind]
            scale = (4 * shards, kept) if of_tensors else (4 * N, None)
        if by_marlin:
            groups = K // _BLOCK if self.scales == "block" else 1
            scale = scale[0], groups * N * ITEMSIZE
            yield 0, 4 * gpu.multiprocessors
        yield scale
        if linear.name.endswith(_LATENT):
            yield 0, ITEMSIZE * weight  # its halves are multiplied in 16 bit
        if self.static:
            yield 4 * (1 if self.kind == "int8" else shards), 4
        if self.asymmetric:
            yield 0, 4 * N  # azp_adj
            if self.static:
                yield 1, 4
