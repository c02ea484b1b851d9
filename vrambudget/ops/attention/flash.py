"""Flash attention (FlashAttention 2 as PyTorch ships it): no [S, S] matrix ever exists.

    q          [B, H, Sq, D]     kept, padded so that D is a multiple of 8; k, v likewise
    out        [B, H, Sq, D]     kept; laid out as q is
    logsumexp  [B, H, Sq]        kept, float32
    rng state  2 + 1 integers    kept, also without dropout; on the CPU in 2.6
    backward:  copies of dout and out that lie as [B, Sq, H, D], if they do not; dq, dk, dv;
               softmax_d  [B, H, Sq rounded up to 128]                     float32, temporary
               dq_accum   [B, Sq rounded up to 128, H, D rounded up]       float32, temporary
               dk and dv of all H query heads where k and v have fewer     temporary

Few queries and many keys (decoding): the keys are split over blocks, each with its own output.

Source: aten/src/ATen/native/transformers/attention.cpp (scaled_dot_product_attention),
cuda/flash_attn/flash_api.cpp (mha_fwd, mha_bwd, num_splits_heuristic), cuda/attention_backward.cu.
Not modelled: deterministic algorithms, nested tensors.
"""

import math
import sys
from collections.abc import Sequence
from typing import NamedTuple

from vrambudget.dtypes import DType, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context
from vrambudget.engine.sizes import pure
from vrambudget.engine.tensor import Shape, Tensor, empty
from vrambudget.engine.versions import torch_since
from vrambudget.ops.attention.layout import Strided, contiguous, heads_last, pad_last, slice_last

_ALIGNMENT = 8  # of the head dimension
_ROWS = 128  # queries are padded to blocks of these
_MAX_SPLITS = 128


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
    """Return attention's output [B, H, Sq, D]."""
    head_dim = q.shape[-1]
    missing = -head_dim % _ALIGNMENT
    if missing:
        q, k, v = pad_last(q, missing), pad_last(k, missing), pad_last(v, missing)
    out = _attend(q, k, v, dropout)
    return slice_last(out, head_dim) if missing else out


def _attend(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    kept = [keep(x, when=wanted) for x in (q, k, v)]
    results = results_of("flash_attention", lambda: flash_forward(q, k, v, dropout))
    kept += [keep(x, when=wanted) for x in results]
    out = results[0]
    lies = tuple(Strided.of(x) for x in (q, k, v, out))

    def backward(dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return flash_backward(dy, *lies)

    return record("flash_attention", out, inputs=(q, k, v), saved=kept, backward=backward)


def flash_forward(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> tuple[Tensor, ...]:
    """Return out [B, H, Sq, D], logsumexp [B, H, Sq], and the random state."""
    del v
    B, H, Sq, _ = q.shape
    context.operation = "flash_attention"
    out = heads_last(Strided.of(heads_last(q)).empty())
    logsumexp = empty((B, H, Sq), float32)
    accumulators = [] if dropout else split_accumulators(q.shape, k.shape)
    rng_state = _rng_state(dropout)
    del accumulators
    return out, logsumexp, *rng_state


def flash_backward(
    dy: Tensor, q: Strided, k: Strided, v: Strided, out: Strided
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, which lie as these."""
    dy = contiguous(heads_last(dy))
    out_by_rows = out.heads_last()
    out_copy = None if out_by_rows.is_contiguous else empty(out_by_rows.shape, out.dtype)
    dq, dk, dv = (x.heads_last().empty() for x in (q, k, v))
    backward_buffers(q.shape, (k.shape[1], k.shape[2]), k.dtype)
    del out_copy
    return heads_last(dq), heads_last(dk), heads_last(dv)


def backward_buffers(q: Shape, k: tuple[int, int], dtype: DType) -> None:
    """Allocate and free what backward makes besides gradients; k: its heads and its length."""
    (B, H, Sq, D), (Hk, Sk) = q, k
    rows = -(-Sq // _ROWS) * _ROWS
    softmax_d = empty((B, H, rows), float32)
    dq_accum = empty((B, rows, H, _rounded(D)), float32)
    if Hk != H:
        expanded = (B, Sk, H, D)
        dk_expanded, dv_expanded = empty(expanded, dtype), empty(expanded, dtype)
        del dk_expanded, dv_expanded
    del dq_accum, softmax_d


def _rng_state(dropout: float) -> list[Tensor]:
    """Return the state and a scalar that nothing uses; with dropout the state is made twice.

    They are on the GPU from 2.8 on.
    """
    if not torch_since(2, 8):
        return []
    rng_state, unused = empty((2,), int64), empty((), int64)
    if dropout:
        rng_state = empty((2,), int64)
    return [rng_state, unused]


def split_accumulators(q: Shape, k: Shape) -> list[Tensor]:
    """Return what the blocks that split the keys meet in."""
    (B, H, Sq, D), (_, Hk, Sk, _) = q, k
    if Sq == 1 and Hk < H:  # the query heads of a group are run as rows of one head
        H, Sq = Hk, H // Hk
    context.splits.add(split := KeySplit(B, H, Sq, Sk, D))
    return [empty(shape, float32) for shape in split.accumulators]


def _rounded(D: int) -> int:
    """Return the head dimension of the tiles that the kernels add up."""
    width = 32 if D <= 128 else 64  # noqa: PLR2004
    return -(-D // width) * width


class KeySplit(NamedTuple):
    """What decides over how many blocks keys are split."""

    B: int
    H: int
    Sq: int
    Sk: int
    D: int

    @property
    def tile(self) -> tuple[int, ...]:
        """Sizes of which a thread block works on one each."""
        return 1, 1, 64, 256 if self.D <= 64 else 128 if self.D <= 128 else 64, 1  # noqa: PLR2004

    @property
    def blocks(self) -> int:
        """Over how many: enough to fill the GPU's multiprocessors."""
        B, H, rows, keys, _ = (-(-size // of) for size, of in zip(self, self.tile, strict=True))
        return _split_count(B * H * rows, 2 * context.platform.multiprocessors, keys)

    def grown(self, times: int, growth: Sequence[int]) -> "KeySplit":
        """Return the sizes after they grew so many times."""
        return KeySplit(*(size + by * times for size, by in zip(self, growth, strict=True)))

    def steady(self, growth: Sequence[int]) -> int:
        """Return how often the sizes can grow before there may be another number of blocks."""
        each = zip(self, self.tile, growth, strict=True)
        return min((-size % of for size, of, by in each if by), default=sys.maxsize)

    @property
    def accumulators(self) -> list[Shape]:
        """The shapes of what the blocks that share a query row meet in."""
        rows = (self.blocks, self.B, self.H, self.Sq)
        return [] if self.blocks == 1 else [rows, (*rows, _rounded(self.D))]


@pure
def _split_count(blocks: int, slots: int, key_blocks: int) -> int:
    if blocks >= 0.8 * slots:
        return 1
    efficiency: dict[int, float] = {}
    for splits in range(1, min(_MAX_SPLITS, slots, key_blocks) + 1):
        per_split = -(-key_blocks // splits)
        if splits == 1 or per_split != -(-key_blocks // (splits - 1)):
            waves = blocks * splits / slots
            efficiency[splits] = waves / math.ceil(waves)
    good = 0.85 * max(efficiency.values())
    return min(splits for splits, share in efficiency.items() if share >= good)
