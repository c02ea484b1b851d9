"""Which kernel scaled_dot_product_attention selects: the first of these that takes a call.

    cudnn       compute capability 9 or 10, with the cuDNN that PyTorch's CUDA 13 wheels have since
                2.11 (see `prefers_cudnn`); float16 or bfloat16; head dimensions a multiple of 8, up
                to 256 on 9.0, up to 128 or 192 with values of 128 on 10; more than one key; no
                dropout for a single query; a mask of 2 or 4 dimensions that wants no gradient
    flash       no mask; float16 or bfloat16; compute capability 8.0 or newer; head dimension up to
                256 (on 8.6, 8.9 and 12.x training: up to 192, or above 224 without dropout); with
                is_causal as many queries as keys
    efficient   head dimensions that tensor cores can load (a multiple of 8 in 16 bit, 4 in float32,
                any in float32 before 8.0); bfloat16 from 8.0 on; no grouped heads
    all         the last dimension contiguous, in the mask too; equal batch; equal heads, but for
                cudnn and flash with enable_gqa
    math        everything else, among it one key head for all query heads without enable_gqa

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp (select_sdp_backend, can_use_*,
check_prefer_cudnn_attention), sdp_utils_cpp.h. Torch 2.11; what cuDNN takes was asked of
torch._fused_sdp_choice with cuDNN 9.19.
Not modelled: deterministic algorithms, which cuDNN's kernel does not take.
"""

from typing import Literal

from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.context import Platform, context
from vrambudget.engine.tensor import ShapeError, Tensor

Kernel = Literal["cudnn", "flash", "efficient", "math"]

_AMPERE = (8, 0)
_HOPPER, _BLACKWELL = 9, 10  # compute capabilities, major
_FLASH_WIDEST = 256
_CUDNN_WIDEST = {_HOPPER: 256, _BLACKWELL: 128}
_CUDNN_WIDER = (192, 128)  # of q and k, and of v
_MASK_DIMENSIONS = (2, 4)


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
    if prefers_cudnn(context.platform) and _cudnn_takes(q, k, v, mask, dropout):
        return "cudnn"
    if mask is None and _flash_takes(q, k, v, dropout, is_causal=is_causal):
        return "flash"
    return "efficient" if same_heads and _efficient_takes(q, v) else "math"


def prefers_cudnn(platform: Platform) -> bool:
    """Whether PyTorch asks cuDNN's kernel first on this GPU.

    It does where cuDNN is newer than 9.15: PyPI's wheels have 9.10 up to PyTorch 2.10 and 9.19 in
    2.11 (their metadata), those of CUDA 12 an older one (sdp_utils.cpp; pytorch/pytorch#169849).
    """
    major, _ = platform.compute_capability
    is_new = platform.torch >= (2, 11) and platform.cuda >= (13, 0)
    return platform.cudnn_attention and is_new and major in _CUDNN_WIDEST


def _cudnn_takes(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> bool:
    """Whether cuDNN's kernel does, on a GPU where it is asked."""
    (*_, Sq, D), Dv = q.shape, v.shape[3]
    if q.dtype not in {float16, bfloat16} or k.shape[2] == 1 or (Sq == 1 and dropout):
        return False
    if mask is not None and (mask.requires_grad or mask.ndim not in _MASK_DIMENSIONS):
        return False
    widest = _CUDNN_WIDEST[context.platform.compute_capability[0]]
    fits = max(D, Dv) <= widest or (D, Dv) == _CUDNN_WIDER
    return fits and not D % 8 and not Dv % 8


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
