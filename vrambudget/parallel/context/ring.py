"""Ring attention: a rank's queries meet the keys and values of one rank after another.

    q, k, v    [B, H or Hk, S, D]   kept; S: the rank's tokens, a part of the sequence's head and
                                    one of its tail, so that every rank has as much to compute
    out        [B, H, S, D]         merged in float32, then cast; kept
    logsumexp  [B, H, S]            float32, merged; kept
    others' k and v                 gathered or received, flat: in forward, and again in backward
    backward   dq, dk, dv in float32; dk and dv go round with the keys

At step i of a ring, rank r meets the keys of rank r - i: all of its own (causal, i = 0); of an
earlier rank the head (i <= r), with all its queries; of a later one both, with its queries' tail.

Local variables are those of the source: what they hold until they are assigned again is in the
peak.

Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py
(_templated_ring_attention, _templated_ring_attention_backward, _SDPAMerger, _partial_update), 2.11.
Not modelled: attention that is not causal, which load balancing refuses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import lower_precision
from vrambudget.engine.autograd import keep, record
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError
from vrambudget.ops.attention.layout import Strided, contiguous, dense_like
from vrambudget.ops.attention.select import select_kernel
from vrambudget.ops.shape import narrowed
from vrambudget.parallel.context.kernels import Fused, fused
from vrambudget.parallel.context.rotation import AllGather, AllToAll, Rotater
from vrambudget.parallel.group import Group

_ROWS = 2  # the dimension of tokens


@dataclass(frozen=True, slots=True)
class Ring:
    """A rank's place in its ring, and how keys and values come round."""

    group: Group
    rotate_method: str = "allgather"

    def rotater(self) -> Rotater:
        """Return what sends one kind of buffer round."""
        return AllToAll() if self.rotate_method == "alltoall" else AllGather(self.group.size)

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Return attention's output [B, H, S, D], in scaled_dot_product_attention's place."""
        if mask is not None or not is_causal:
            raise NotModelledError(
                "context_parallel takes causal attention without a mask alone",
                hint="rows that fill the block need no mask (--rows full, --attention-mask none)",
            )
        v, k, q = lower_precision(v), lower_precision(k), lower_precision(q)
        chosen = select_kernel(q, k, v, dropout=dropout, is_causal=True, enable_gqa=enable_gqa)
        kernel, wanted = fused(chosen, q, dropout), any(x.requires_grad for x in (q, k, v))
        kept = tuple(keep(x, when=wanted) for x in (q, k, v))
        results = _forward(self, kernel, q, k, v)
        kept += tuple(keep(x, when=wanted) for x in results)
        lies = tuple(Strided.of(x) for x in (q, k, v, *results[:2]))

        def backward(dy: Tensor) -> tuple[Tensor, ...]:
            return _backward(self, kernel, dy, [layout.placeholder() for layout in lies])

        return record("ring_attention", results[0], inputs=(q, k, v), saved=kept, backward=backward)


def _forward(ring: Ring, op: Fused, query: Tensor, key: Tensor, value: Tensor) -> Sequence[Tensor]:
    """_templated_ring_attention: out, logsumexp, and what else the last call returned."""
    rank, size = ring.group.rank, ring.group.size
    key = contiguous(key)
    value = contiguous(value)
    sdpa_merger = _Merger()
    rotater = ring.rotater()
    for i in range(size):
        if i > 0:
            next_kv = rotater.next_buffer()
            key = next_kv.viewed(key.shape, None)
            value = next_kv.viewed(value.shape, None)
        if i < size - 1:
            next_kv = _flat(key, value)
            rotater.exchange_buffers(next_kv)
            del next_kv
        if i == 0:
            q, k, v, partial = query, key, value, False
        elif i <= rank:
            q, k, v, partial = query, _half(key), _half(value), False
        else:
            q, k, v, partial = _half(query), key, value, True
        out, logsumexp, *rest = op.forward(q, k, v)
        sdpa_merger.step(out, logsumexp, partial=partial)
    return *sdpa_merger.results(), *rest


class _Merger:
    """_SDPAMerger: the results of the steps so far, in float32."""

    def __init__(self) -> None:
        self._out: Tensor | None = None
        self._lse: Tensor | None = None
        self._out_dtype = float32

    def step(self, out: Tensor, lse: Tensor, *, partial: bool) -> None:
        """Take a step's out and logsumexp in."""
        self._out_dtype = out.dtype
        out = _to(out, float32)
        self._merge_one(out, lse.viewed((*out.shape[:3], 1), None), partial=partial)

    def _merge_one(self, block_out: Tensor, block_lse: Tensor, *, partial: bool) -> None:
        if self._out is None or self._lse is None:
            self._lse = block_lse
            self._out = block_out
            return
        lse = _half(self._lse) if partial else self._lse
        out = _half(self._out) if partial else self._out
        out = _minus(out, _times(_sigmoid(_minus(block_lse, lse)), _minus(out, block_out)))
        lse = _minus(lse, _sigmoid(_minus(lse, block_lse)))  # its logarithm
        if partial:
            self._lse = _with_half_updated(self._lse)
            self._out = _with_half_updated(self._out)
        else:
            self._lse = lse
            self._out = out

    def results(self) -> tuple[Tensor, Tensor]:
        """Return out in its own type, and logsumexp [B, H, S, 1]."""
        assert self._out is not None  # noqa: S101 - after a step
        assert self._lse is not None  # noqa: S101
        return _to(self._out, self._out_dtype), self._lse


def _backward(
    ring: Ring, op: Fused, grad_out: Tensor, kept: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """_templated_ring_attention_backward; what is added in place makes nothing.

    `kept`: query, key, value, out and logsumexp, whose memory the graph holds.
    """
    rank, size = ring.group.rank, ring.group.size
    query, key, value, out, logsumexp = kept
    grad_query = dense_like(query, float32)
    grad_key = dense_like(key, float32)
    grad_value = dense_like(value, float32)
    key = contiguous(key)
    value = contiguous(value)
    kv_rotater = ring.rotater()
    dkv_rotater = AllToAll()
    for i in range(size):
        if i > 0:
            buffer = kv_rotater.next_buffer()
            key = buffer.viewed(key.shape, None)
            value = buffer.viewed(value.shape, None)
        if i != size - 1:
            next_kv = _flat(key, value)  # held to the end
            kv_rotater.exchange_buffers(next_kv)
        context.operation = "ring_attention_backward"
        if i == 0:
            q, k, v, out_, dout, lse = query, key, value, out, grad_out, logsumexp
        elif i <= rank:
            q, k, v, out_, dout, lse = query, _half(key), _half(value), out, grad_out, logsumexp
        else:
            q, k, v, out_, dout, lse = (
                *(_half(query), key, value, _half(out), _half(grad_out)),
                contiguous(_half(logsumexp)),
            )
        grad_query_, grad_key_, grad_value_ = op.backward(dout, q, k, v, out_)
        if i > 0:
            next_grad_kv = dkv_rotater.next_buffer()
            grad_key = next_grad_kv.viewed(grad_key.shape, None)
            grad_value = next_grad_kv.viewed(grad_value.shape, None)
            if i <= rank:
                grad_key = _with_half_updated(grad_key)
                grad_value = _with_half_updated(grad_value)
        next_grad_kv = _flat(grad_key, grad_value)
        dkv_rotater.exchange_buffers(next_grad_kv)
        if i > rank:
            grad_query = _with_half_updated(grad_query)
    grad_query = _to(grad_query, query.dtype)
    next_grad_kv = _to(dkv_rotater.next_buffer(), key.dtype)
    grad_key = next_grad_kv.viewed(grad_key.shape, None)
    grad_value = next_grad_kv.viewed(grad_value.shape, None)
    del next_kv, lse, grad_query_, grad_key_, grad_value_  # held until here
    return grad_query, grad_key, grad_value


def _half(x: Tensor) -> Tensor:
    """Return a view of the head or the tail of a rank's tokens: x.chunk(2, dim=2)[...]."""
    return narrowed(x, _ROWS, x.shape[_ROWS] // 2)


def _with_half_updated(x: Tensor) -> Tensor:
    """Return x with one half replaced, or added to in place: the halves, put together again."""
    context.operation = "cat"
    return empty(x.shape, x.dtype)


def _flat(key: Tensor, value: Tensor) -> Tensor:
    """Return torch.cat([key.flatten(), value.flatten()])."""
    context.operation = "flatten"
    parts = contiguous(key), contiguous(value)
    context.operation = "cat"
    return empty((sum(part.numel for part in parts),), key.dtype)


def _to(x: Tensor, dtype: DType) -> Tensor:
    context.operation = "to_dtype"
    return x if x.dtype is dtype else dense_like(x, dtype)


def _minus(x: Tensor, y: Tensor) -> Tensor:
    """Return x - y, both there until the result is."""
    return _elementwise("sub", x, y)


def _times(x: Tensor, y: Tensor) -> Tensor:
    """Return x * y."""
    return _elementwise("mul", y, x)


def _sigmoid(x: Tensor) -> Tensor:
    return _elementwise("sigmoid", x, x)


def _elementwise(operation: str, x: Tensor, y: Tensor) -> Tensor:
    """Return a result that lies as x, to whose shape y is expanded."""
    assert tuple(map(max, x.shape, y.shape)) == x.shape  # noqa: S101 - by its callers
    context.operation = operation
    return dense_like(x, float32)
