"""The tiles of the memory-efficient kernel's backward, and the workspace that they need.

A kernel works on tiles of `rows` queries by `columns` keys. PyTorch takes the first of a list that
supports the head dimension and fits the GPU's shared memory. Its thread blocks share a workspace:

    dq       a float32 tile and a lock for each [rows, columns] of [Sq, D]
    dk, dv   float32 [columns, D up to rows] each, for every split of the keys, if they are staged:
             16-bit tensors whose head dimension may be wider than `rows`

Each of the `heads` (batch x heads) has its own.

Source: aten/src/ATen/native/transformers/cuda/mem_eff_attention/kernels/cutlassB.h (the lists; of
kernels with the same tile one stands here), kernel_backward.h (Params, GradQTempStorage),
attention_backward.cu (launchKernel); CUDA C++ Programming Guide, technical specifications (shared
memory). What shared memory the kernels need was read from their launches, torch 2.11.
"""

from dataclasses import dataclass

from vrambudget.dtypes import DType, float32
from vrambudget.engine.context import Platform

_LOCK_BYTES = 16
_MOST_STAGED = 200  # thread blocks that stage dk and dv, over all heads
_LARGE_FLOAT32 = 121_344  # bytes of shared memory of the tile 128 x 64 in float32
_LARGE_16_BIT = 133_632  # of 128 x 128 in 16 bit
_LARGE_16_BIT_DROPOUT = 152_064


@dataclass(frozen=True, slots=True)
class Tile:
    """A kernel's tile, whether it stages dk and dv in memory, whether it computes delta itself."""

    rows: int
    columns: int
    stages_dkv: bool = False
    makes_delta: bool = True

    def splits(self, heads: int, Sk: int) -> int:
        """Return over how many thread blocks that stage dk and dv one head's keys go."""
        return max(1, min(-(-Sk // self.columns), _MOST_STAGED // heads))

    def workspace_bytes(self, heads: int, Sq: int, Sk: int, D: int, Dv: int) -> int:
        """Return the workspace of all heads."""
        tiles = -(-Sq // self.rows) * -(-D // self.columns)
        nbytes = tiles * (4 * self.rows * self.columns + _LOCK_BYTES)
        if self.stages_dkv:
            width = sum(-(-d // self.rows) * self.rows for d in (D, Dv))
            nbytes += 4 * self.splits(heads, Sk) * self.columns * width
        return heads * nbytes


def shared_memory(platform: Platform) -> int:
    """Return the bytes of shared memory that one thread block may ask for."""
    kib = {
        (7, 0): 96,
        (7, 5): 64,
        (8, 0): 163,
        (8, 7): 163,
        (9, 0): 227,
        (10, 0): 227,
        (10, 3): 227,
    }
    return 1024 * kib.get(platform.compute_capability, 99)


def backward_tile(platform: Platform, dtype: DType, head_dim: int, *, dropout: bool) -> Tile:
    """Return the tile that PyTorch takes for these tensors on this GPU."""
    if dtype is float32:
        return _float32_tile(platform, head_dim)
    if head_dim <= 64:  # noqa: PLR2004
        return Tile(64, 64)
    capability = platform.compute_capability
    if head_dim > 128:  # noqa: PLR2004
        return Tile(128, 64, stages_dkv=True, makes_delta=capability != (7, 0))
    if capability < (8, 0) or (
        capability in {(8, 6), (8, 9)} and head_dim <= 96 and not dropout  # noqa: PLR2004
    ):
        return Tile(128, 64)
    if shared_memory(platform) >= (_LARGE_16_BIT_DROPOUT if dropout else _LARGE_16_BIT):
        return Tile(128, 128)
    return Tile(64, 64, stages_dkv=True)


def _float32_tile(platform: Platform, head_dim: int) -> Tile:
    ampere = platform.compute_capability >= (8, 0)
    large = head_dim > 64 and ampere and shared_memory(platform) >= _LARGE_FLOAT32  # noqa: PLR2004
    return Tile(128 if large else 64, 64, makes_delta=False)
