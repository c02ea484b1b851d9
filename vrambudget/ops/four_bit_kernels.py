"""Which products with a 4-bit weight bitsandbytes computes without dequantising the weight.

Its own kernel reads the packed weight; past some number of rows a temporary weight in 16 bit and
cuBLAS are faster. Where that is depends on the GPU's generation, on its waves (tiles of 64 outputs
over multiprocessors) and on the weight's form.

Source: bitsandbytes 0.50.2, backends/cuda/ops.py (gemm_4bit, _gemm_4bit_use_custom_cuda).
"""

# ruff: noqa: PLR2004 - thresholds that its authors measured

from collections.abc import Callable
from dataclasses import dataclass

from vrambudget.dtypes import DType, float16, float32

_BLOCK = 64
_ALWAYS, _NEVER_ABOVE = 4, 1536  # rows
_FEW = 7  # rows: below its tensor core kernel's
_SMALL_WEIGHT = 4 * 2**20  # elements

_T4, _A100, _A10, _ORIN, _H100 = (7, 5), (8, 0), (8, 6), (8, 7), (9, 0)
_RTX_5090, _SPARK = (12, 0), (12, 1)
_HOPPER, _B200, _THOR = 9, 10, 11  # major versions


@dataclass(frozen=True, slots=True)
class FourBitWeight:
    """A weight [outputs, inputs] on a GPU with so many multiprocessors."""

    outputs: int
    inputs: int
    multiprocessors: int

    @property
    def tiles(self) -> int:
        """Blocks of outputs that the kernel gives to multiprocessors."""
        return -(-self.outputs // _BLOCK)

    @property
    def is_wide(self) -> bool:
        """Whether it has more outputs than inputs."""
        return self.inputs < self.outputs

    @property
    def is_tall(self) -> bool:
        """Whether it has more than twice as many inputs as outputs."""
        return self.inputs > 2 * self.outputs

    def fills(self, waves: int, parts: int = 1) -> bool:
        """Whether its tiles are so many waves, or `waves` / `parts` of one."""
        return self.tiles * parts >= self.multiprocessors * waves


def reads_packed(
    rows: int, outputs: int, inputs: int, dtype: DType, gpu: tuple[tuple[int, int], int]
) -> bool:
    """Whether x [rows, inputs] @ weight.T is computed from the packed weight [outputs, inputs].

    `gpu`: compute capability and multiprocessors.
    """
    if inputs % _BLOCK or rows > _NEVER_ABOVE:
        return False
    capability, weight = gpu[0], FourBitWeight(outputs, inputs, gpu[1])
    has_half = capability > _T4 or (capability == _T4 and dtype is float16)
    if rows <= (_ALWAYS if has_half and dtype is not float32 else _FEW):
        return True
    return has_half and dtype is not float32 and _is_faster(rows, weight, capability)


def _is_faster(rows: int, weight: FourBitWeight, capability: tuple[int, int]) -> bool:
    """Whether more than four rows in 16 bit are read packed: tensor cores multiply them."""
    major = capability[0]
    if capability == _ORIN or major == _THOR:
        return False
    if major == _B200:
        return rows <= _most(weight, ((3, 1, 32, 32), (1, 1, 8, 0)))
    generation = _H100 if major == _HOPPER else capability
    if weight.outputs * weight.inputs < _SMALL_WEIGHT:
        return _reads_small(rows, weight, generation)
    if rows <= _FEW:
        return rows < _FEW - 1 or not _dequantises_few(weight, generation)
    return rows <= _MOST_ROWS.get(generation, _of_others)(weight)


def _most(weight: FourBitWeight, tiers: tuple[tuple[int, int, int, int], ...]) -> int:
    """Return the most rows by the first tier that it fills.

    A tier: waves, parts of one, the most rows of a wide weight, and of another.
    """
    for waves, parts, wide, other in tiers:
        if weight.fills(waves, parts):
            return wide if weight.is_wide else other
    return 0


def _reads_small(rows: int, weight: FourBitWeight, generation: tuple[int, int]) -> bool:
    """Whether a weight of less than 4M elements is read packed."""
    if 2 * weight.inputs < weight.outputs:
        return rows <= _most_of_short(weight, generation)
    if generation == _A100 and weight.tiles * 4 <= weight.multiprocessors:
        few = 32 if weight.tiles * 8 <= weight.multiprocessors else 128
        return rows <= (384 if weight.is_wide else few)
    if generation == _T4 and not weight.fills(1) and rows > _FEW + 1:
        return rows <= 64
    if weight.tiles * 4 <= weight.multiprocessors:
        return rows <= (32 if weight.is_wide or generation in {_A100, _H100} else 23)
    return rows <= (16 if weight.tiles * 2 <= weight.multiprocessors else 0)


def _most_of_short(weight: FourBitWeight, generation: tuple[int, int]) -> int:
    """Return the most rows of a small weight with less than half as many inputs as outputs."""
    if generation in {_A100, _H100}:
        is_few = weight.tiles * 3 < weight.multiprocessors
        return {(_A100, True): 1536, (_A100, False): 512, (_H100, True): 512}.get(
            (generation, is_few), 320
        )
    if generation == _T4:
        by_depth = ((1024, 64), (704, 96), (0, 320))
        most = next(most for inputs, most in by_depth if weight.inputs >= inputs)
        return 320 if weight.fills(3) else most
    is_busy = weight.tiles * weight.inputs > weight.multiprocessors * 320
    return 192 if is_busy and not weight.fills(1) else 320


def _dequantises_few(weight: FourBitWeight, generation: tuple[int, int]) -> bool:
    """Whether 6 or 7 rows are faster with a dequantised weight: some shapes on A100 and H100."""
    least = {_A100: 48, _H100: 36}.get(generation)
    if least is None or weight.tiles < least:
        return False
    if weight.inputs != weight.outputs:
        return not weight.is_wide and not weight.fills(3, 4)
    if generation == _A100:
        return not weight.fills(3, 5)
    return weight.fills(3, 5) and not weight.fills(3, 4)


def _of_t4(weight: FourBitWeight) -> int:
    return _most(weight, ((3, 1, 128, 64), (1, 2, 64, 64), (0, 1, 32, 32)))


def _of_a10(weight: FourBitWeight) -> int:
    return _most(weight, ((1, 1, 128, 128), (1, 2, 64, 64), (0, 1, 16, 16)))


def _of_h100(weight: FourBitWeight) -> int:
    tiers = ((3, 1, 64, 64), (2, 1, 48, 48), (1, 1, 32, 32), (3, 4, 16, 16), (1, 2, 16, 0))
    return _most(weight, tiers)


def _of_a100(weight: FourBitWeight) -> int:
    if weight.fills(1):
        return _most(weight, ((3, 1, 128, 128), (1, 1, 64, 32)))
    if weight.inputs >= 3 * weight.outputs and weight.tiles * 4 > weight.multiprocessors:
        return 0
    is_square = weight.inputs == weight.outputs
    if is_square and weight.tiles >= 48 and not weight.fills(3, 5):
        return 0
    if weight.fills(1, 2):
        return 128 if weight.is_wide else 16
    if weight.is_wide or is_square:
        return 128
    return 0 if weight.fills(1, 3) else 16


def _of_rtx_5090(weight: FourBitWeight) -> int:
    if weight.fills(4, 5):
        return _most(weight, ((3, 1, 256, 256), (2, 1, 128, 128), (0, 1, 64, 96)))
    if weight.fills(1, 2):
        return 64 if weight.inputs * 2 >= weight.outputs and weight.tiles >= 128 else 8
    return 16 if weight.is_tall and weight.tiles > 64 else 8


def _of_spark(weight: FourBitWeight) -> int:
    return 256 if weight.fills(1) else _of_others(weight)


def _of_others(weight: FourBitWeight) -> int:
    """Return the most rows on an RTX 4090, an L40S, an L4, and GPUs that it does not know."""
    tiles = weight.tiles
    if weight.fills(2):
        return 256 if weight.fills(3) else 128
    if weight.fills(4, 5):
        square = 128 if weight.multiprocessors >= 60 else 32
        other = 64 if weight.is_wide else square
        return 128 if weight.is_tall or tiles >= 200 else other
    if weight.fills(1, 2):
        return 64 if weight.is_tall else 8 if tiles >= 64 else 32
    if weight.inputs > weight.outputs and tiles <= 48:
        return 12 if weight.inputs >= 3 * weight.outputs else 10
    return 16 if weight.is_tall or tiles < 48 else 8


_MOST_ROWS: dict[tuple[int, int], Callable[[FourBitWeight], int]] = {
    _T4: _of_t4,
    _A100: _of_a100,
    _A10: _of_a10,
    _H100: _of_h100,
    _RTX_5090: _of_rtx_5090,
    _SPARK: _of_spark,
}
