"""Memory-efficient attention (CUTLASS kernels): accepts a mask, float32 and older GPUs.

    q, k, v    [B, H, S, D]          kept
    bias       [B, H, Sq, Sk]        kept: the mask, as `mask.py` makes it, expanded without a copy
    out        [B, H, Sq, Dv]        kept; lies in memory as [B, Sq, H, Dv] whatever q's layout
    logsumexp  [B, H, Sq up to 32]   float32, kept; not made if no gradient is required
    rng state  2 integers            kept; from 2.14 on, without dropout
    accumulator of out, float32      temporary, for 16-bit tensors of Dv > 128
    backward:  a copy of dout if it does not lie as [B, Sq, H, Dv]; dq, dk, dv, contiguous as
               [B, S, H, D]; the bias' gradient, rows rounded up to 16;
               delta  [B, H, Sq]     float32, temporary
               workspace             float32 tiles in which blocks add up dq, dk and dv, temporary

The workspace depends on the kernel's tiles: see `tiles.py`.

Source: aten/src/ATen/native/transformers/cuda/attention.cu (_efficient_attention_forward),
attention_backward.cu (_efficient_attention_backward), mem_eff_attention/kernel_backward.h (Params).
The random state was on the CPU before 2.14, and is with dropout.
Not modelled: batches of more than 65535, deterministic algorithms, nested tensors.
"""

from vrambudget.dtypes import DType, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes
from vrambudget.engine.versions import torch_since
from vrambudget.ops.attention.layout import contiguous, heads_last
from vrambudget.ops.attention.tiles import backward_tile
from vrambudget.ops.reduce import with_partial_sums

_LOGSUMEXP_ALIGNMENT = 32
_BIAS_GRADIENT_ALIGNMENT = 16
_WIDEST_IN_REGISTERS = 128  # a head dimension up to this needs no accumulator in memory


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, dropout: float
) -> Tensor:
    """Return attention's output [B, H, Sq, Dv]."""
    inputs = (q, k, v, bias)
    wanted = any(x is not None and x.requires_grad for x in inputs)
    kept = tuple(keep(x, when=wanted) for x in inputs)
    records = context.grad_enabled and (q.requires_grad or k.requires_grad or v.requires_grad)
    results = results_of(
        "efficient_attention",
        lambda: efficient_forward(q, k, v, dropout, with_logsumexp=records),
    )
    kept += tuple(keep(x, when=wanted) for x in results)
    out = results[0]
    shapes, dtype = (q.shape, k.shape, v.shape), q.dtype
    bias_shape = bias.shape if bias is not None and bias.requires_grad else None

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        return efficient_backward(dy, shapes, dtype, dropout, bias_shape)

    return record("efficient_attention", out, inputs=inputs, saved=kept, backward=backward)


def efficient_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, *, with_logsumexp: bool = True
) -> tuple[Tensor, ...]:
    """Return out [B, H, Sq, Dv], logsumexp [B, H, Sq up to 32] if asked, and the random state."""
    del k
    B, H, Sq, _ = q.shape
    context.operation = "efficient_attention"
    rng_state = _rng_state(dropout)
    out = heads_last(empty((B, Sq, H, v.shape[3]), q.dtype))
    logsumexp = []
    if with_logsumexp:
        rows = -(-Sq // _LOGSUMEXP_ALIGNMENT) * _LOGSUMEXP_ALIGNMENT
        logsumexp.append(empty((B, H, rows), float32))
    forward_buffers(q.shape, v.shape[3], q.dtype)
    return out, *logsumexp, *rng_state


def efficient_backward(
    dy: Tensor,
    shapes: tuple[Shape, Shape, Shape],
    dtype: DType,
    dropout: float,
    bias_shape: Shape | None = None,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of q, k and v of these shapes, and that of the bias."""
    dy = contiguous(heads_last(dy))
    q, k, v = shapes
    by_rows = ((B, S, H, D) for B, H, S, D in shapes)
    dq, dk, dv = (heads_last(empty(shape, dtype)) for shape in by_rows)
    dbias = None if bias_shape is None else _bias_gradient(bias_shape, dtype)
    backward_buffers(q, k[2], v[3], dtype, dropout)
    return dq, dk, dv, dbias


def forward_buffers(q: Shape, Dv: int, dtype: DType) -> None:
    """Allocate and free what forward makes besides its results."""
    B, H, Sq, D = q
    if dtype is not float32 and max(D, Dv) > _WIDEST_IN_REGISTERS:
        accumulator = empty((B, Sq, H, Dv), float32)
        del accumulator


def _rng_state(dropout: float) -> list[Tensor]:
    """Return seed and offset; until 2.13 they are not on the GPU."""
    if dropout or not torch_since(2, 14):
        return []
    return [empty((), int64), empty((), int64)]


def _bias_gradient(shape: Shape, dtype: DType) -> Tensor:
    *lead, length = shape
    row = -(-length // _BIAS_GRADIENT_ALIGNMENT) * _BIAS_GRADIENT_ALIGNMENT
    whole = empty((*lead, row), dtype)
    return Tensor(shape, dtype, whole.storage, whole.actual_strides())


def backward_buffers(q: Shape, Sk: int, Dv: int, dtype: DType, dropout: float) -> None:
    """Allocate and free what backward makes besides gradients."""
    B, H, Sq, D = q
    tile = backward_tile(context.platform, dtype, max(D, Dv), dropout=bool(dropout))
    delta = empty((B, H, Sq), float32) if tile.makes_delta else _delta(B, H, Sq, Dv, dtype)
    workspace = empty_bytes(tile.workspace_bytes(B * H, Sq, Sk, D, Dv))
    del workspace, delta


def _delta(B: int, H: int, Sq: int, Dv: int, dtype: DType) -> Tensor:
    """(dout.float() * out.float()).sum(-1), transposed to [B, H, Sq] and made contiguous."""
    shape = (B, Sq, H, Dv)
    casts = [empty(shape, float32) for _ in range(2)] if dtype is not float32 else []
    product = empty(shape, float32)
    summed = empty((B, Sq, H), float32)
    with_partial_sums(product, (-1,))
    delta = summed if H == 1 or Sq == 1 else empty((B, H, Sq), float32)
    del summed, product, casts
    return delta
