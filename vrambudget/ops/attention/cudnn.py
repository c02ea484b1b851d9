"""cuDNN's fused attention: PyTorch's first choice on Hopper and Blackwell data-centre GPUs.

    q, k, v        [B, H or Hk, S, D or Dv]   kept
    bias           [1 or B, 1 or H, Sq, Sk]   kept: the mask, added to the scores
    seed, offset   an int64 each              kept, also without dropout
    out            [B, H, Sq, Dv]             kept; lies in memory as q does
    logsumexp      [B, H, Sq]                 float32, kept; not made if no gradient is required
    workspace      cuDNN's own                temporary
    backward:      dq, dk, dv as q, k, v lie; a copy of dout if its last dimension has a stride;
                   workspace, temporary, in one block with cuDNN's own:
                     dq_accum     [B, H, Sq, D]             float32
                     softmax_sum  [B, H, Sq]                float32
                     dk, dv       [B, H, Sk, D and Dv]      of all heads, where k and v have fewer

cuDNN's own part is what 9.19 answered, asked through PyTorch 2.11 for 110 shapes on H100, H200 and
B200 without a GPU: a block of fixed size on Hopper; on Blackwell mostly none, but bits of dropout,
and another dq_accum where queries or keys fill a single tile.

Source: aten/src/ATen/native/cudnn/MHA.cpp (run_cudnn_SDP_fprop, run_cudnn_SDP_bprop),
transformers/cuda/attention.cu (_scaled_dot_product_cudnn_attention_cuda), attention_backward.cu;
cudnn-frontend, node/scaled_dot_product_flash_attention.h (get_fe_workspace_size_node).
Not modelled: the workspace of a single query, whose keys are split over blocks: on H100 and B200 0
to 0.7 MB.
"""

from vrambudget.dtypes import DType, float32, int64
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.checkpoint import results_of
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Shape, Tensor, empty, empty_bytes, numel
from vrambudget.ops.attention.layout import Strided, dense_strides
from vrambudget.tape.events import Purpose

_BLACKWELL = (10, 0)
_HOPPERS_OWN = 256  # bytes
_BLACKWELLS_OWN = 128  # besides what is below
_TILE = 128  # queries or keys
_ROWS = 8  # queries are padded to multiples of these in the other dq_accum


def cudnn_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, dropout: float
) -> Tensor:
    """Return attention's output [B, H, Sq, Dv]."""
    inputs = (q, k, v, bias)
    wanted = any(x.requires_grad for x in (q, k, v))
    kept = tuple(keep(x, when=wanted) for x in inputs)
    records = wanted and context.grad_enabled
    results = results_of(
        "cudnn_attention",
        lambda: cudnn_forward(q, k, v, dropout, with_logsumexp=records),
    )
    kept += tuple(keep(x, when=wanted) for x in results)
    out = results[0]
    lies = tuple(Strided.of(x) for x in (q, k, v, out))

    def backward(dy: Tensor) -> tuple[Tensor | None, ...]:
        return *cudnn_backward(dy, *lies, dropout=dropout), None

    return record("cudnn_attention", out, inputs=inputs, saved=kept, backward=backward)


def cudnn_forward(
    q: Tensor, k: Tensor, v: Tensor, dropout: float, *, with_logsumexp: bool = True
) -> tuple[Tensor, ...]:
    """Return out [B, H, Sq, Dv], logsumexp [B, H, Sq, 1] if asked, seed and offset."""
    context.operation = "cudnn_attention"
    seed, offset = empty((), int64), empty((), int64)
    out = _like(q, (*q.shape[:3], v.shape[3]))
    logsumexp = [empty((*q.shape[:3], 1), float32)] if with_logsumexp else []
    forward_buffers(sizes_of(q.shape, k.shape, v.shape), dropout)
    return out, *logsumexp, seed, offset


def cudnn_backward(
    dy: Tensor, q: Strided, k: Strided, v: Strided, out: Strided, *, dropout: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, which lie as these."""
    dq, dk, dv = q.empty(), k.empty(), v.empty()
    dense = dy if dy.actual_strides()[-1] == 1 else out.empty()
    backward_buffers(sizes_of(q.shape, k.shape, v.shape), q.dtype, dropout)
    del dense
    return dq, dk, dv


def _like(q: Tensor, shape: Shape) -> Tensor:
    """Allocate a gap-free tensor of this shape with q's order of dimensions."""
    return empty(shape, q.dtype, dense_strides(shape, q.actual_strides()))


def sizes_of(q: Shape, k: Shape, v: Shape) -> Shape:
    """Return B, H, Sq, Hk, Sk, D, Dv."""
    return (*q[:3], k[1], k[2], q[3], v[3])


def forward_buffers(sizes: Shape, dropout: float) -> None:
    """Allocate and free what forward makes besides its results."""
    _workspace(_own_forward(sizes, dropout))


def backward_buffers(sizes: Shape, dtype: DType, dropout: float) -> None:
    """Allocate and free what backward makes besides gradients: one block."""
    B, H, Sq, Hk, Sk, D, Dv = sizes
    sums = B * H * Sq * (D + 1) * float32.itemsize
    expanded = B * H * Sk * (D + Dv) * dtype.itemsize if Hk != H else 0
    _workspace(sums + expanded + _own_backward(sizes, dropout))


def _workspace(nbytes: int) -> None:
    if nbytes:
        with made_for(Purpose.WORKSPACES):
            empty_bytes(nbytes)


def _own_forward(sizes: Shape, dropout: float) -> int:
    if sizes[2] == 1:
        return 0
    if context.platform.compute_capability < _BLACKWELL:
        return _HOPPERS_OWN
    return _BLACKWELLS_OWN + _dropout_bits(sizes) if dropout else 0


def _own_backward(sizes: Shape, dropout: float) -> int:
    if context.platform.compute_capability < _BLACKWELL:
        return _HOPPERS_OWN
    B, H, Sq, Hk, Sk, D, _ = sizes
    if dropout:
        return _BLACKWELLS_OWN + _dropout_bits(sizes)
    if Sq <= _TILE or Sk <= _TILE:
        rows = -(-Sq // _ROWS) * _ROWS
        elements: int = numel((B, H, rows, D))
        return _BLACKWELLS_OWN + elements * float32.itemsize
    return _BLACKWELLS_OWN if Hk != H else 0


def _dropout_bits(sizes: Shape) -> int:
    """Return the bytes of a bit for each score, tiles filled up."""
    B, H, Sq, _, Sk, *_ = sizes
    rows, columns = (-(-S // _TILE) * _TILE for S in (Sq, Sk))
    bits: int = numel((B, H, rows, columns))
    return bits // 8
