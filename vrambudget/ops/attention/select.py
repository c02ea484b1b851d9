"""Which kernel scaled_dot_product_attention selects: flash, else memory-efficient, else math.

    flash       no mask; float16 or bfloat16; compute capability 8.0 or newer; head dimension up to
                256 (on 8.6, 8.9 and 12.x training: up to 192, or above 224 without dropout); with
                is_causal as many queries as keys
    efficient   head dimensions that tensor cores can load (a multiple of 8 in 16 bit, 4 in float32,
                any in float32 before 8.0); bfloat16 from 8.0 on; no grouped heads
    both        the last dimension contiguous, in the mask too; equal batch; equal heads, but for
                flash with enable_gqa
    math        everything else, among it one key head for all query heads without enable_gqa

cuDNN's kernel comes first on Hopper and Blackwell data-centre GPUs (see `prefers_cudnn`). It is not
modelled: flash is used there, as PyTorch does with TORCH_CUDNN_SDPA_DEPRIORITIZED=1.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend, can_use_*),
sdp_utils_cpp.h. Torch 2.11.
"""

from typing import Literal

from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.context import Platform, context
from vrambudget.engine.tensor import ShapeError, Tensor

Kernel = Literal["flash", "efficient", "math"]

_AMPERE = (8, 0)
_FLASH_WIDEST = 256


def select_kernel(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    dropout: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Kernel:
    """Return the kernel that PyTorch selects on the current GPU for q, k, v [B, H, S, D].

    Raises ShapeError if PyTorch would refuse them.
    """
    _check(q, k, v, mask, enable_gqa=enable_gqa)
    if any(x.actual_strides()[-1] != 1 for x in (q, k, v, mask) if x is not None):
        return "math"
    same_heads = q.shape[1] == k.shape[1]
    if not (same_heads or enable_gqa):  # one key head for all queries: its products broadcast
        return "math"
    if mask is None and _flash_takes(q, k, v, dropout, is_causal=is_causal):
        return "flash"
    return "efficient" if same_heads and _efficient_takes(q, v) else "math"


def prefers_cudnn(platform: Platform) -> bool:
    """Whether PyTorch's default on this GPU, in 16 bit, is cuDNN's kernel: not modelled."""
    return platform.compute_capability[0] in {9, 10}


def _check(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, *, enable_gqa: bool) -> None:
    shapes = f"attention of q {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:  # noqa: PLR2004
        raise ShapeError(f"{shapes}: expected [batch, heads, length, head_dim]")
    if q.shape[3] != k.shape[3] or q.shape[0] != k.shape[0] or k.shape[:3] != v.shape[:3]:
        raise ShapeError(f"{shapes} does not fit together")
    groups = q.shape[1] // k.shape[1]
    if q.shape[1] % k.shape[1] or (k.shape[1] != 1 and groups != 1 and not enable_gqa):
        raise ShapeError(
            f"{shapes}: query heads must be as many as key heads, or with enable_gqa a multiple"
        )
    if not q.dtype is k.dtype is v.dtype:
        raise ShapeError(f"{shapes} with dtypes {q.dtype}, {k.dtype}, {v.dtype}")
    if mask is None:
        return
    scores = (*q.shape[:3], k.shape[2])
    fits = zip(reversed(mask.shape), reversed(scores), strict=False)
    if mask.ndim > len(scores) or not all(have in {1, want} for have, want in fits):
        raise ShapeError(f"an attention mask {list(mask.shape)} for scores {list(scores)}")


def _flash_takes(q: Tensor, k: Tensor, v: Tensor, dropout: float, *, is_causal: bool) -> bool:
    capability = context.platform.compute_capability
    head_dim = q.shape[3]
    if q.dtype not in {float16, bfloat16} or capability < _AMPERE or head_dim > _FLASH_WIDEST:
        return False
    if head_dim != v.shape[3] or (is_causal and q.shape[2] != k.shape[2]):
        return False
    wants_grad = context.grad_enabled and any(x.requires_grad for x in (q, k, v))
    small_shared_memory = (8, 6) <= capability <= (8, 9) or capability[0] == 12  # noqa: PLR2004
    if wants_grad and small_shared_memory:
        return head_dim <= 192 or (not dropout and head_dim > 224)  # noqa: PLR2004
    return True


def _efficient_takes(q: Tensor, v: Tensor) -> bool:
    ampere = context.platform.compute_capability >= _AMPERE
    alignment = (4 if ampere else 1) if q.dtype is float32 else 8
    if q.dtype is bfloat16 and not ampere:
        return False
    return not q.shape[3] % alignment and not v.shape[3] % alignment
