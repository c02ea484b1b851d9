"""What TorchScript makes of functions that models script: it fuses, and frees after the last use.

A function's first call is profiled as it stands; from the second on, neighbouring operations on
what is on the device are one kernel (torch/csrc/jit/passes/tensorexpr_fuser.cpp).
"""

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.ops.creation import made

_LOG_BUCKETS = "make_log_bucket_position"


def log_buckets(relative_pos: Tensor) -> Tensor:
    """Return buckets [T, T] in float32: near distances as they are, far ones by their logarithm.

    DeBERTa's make_log_bucket_position, whose limit and divisor are numbers of the host: what lies
    between them is two kernels.

    Source: models/deberta_v2/modeling_deberta_v2.py (DisentangledSelfAttention), transformers 5.17.
    """
    shape = relative_pos.shape
    if _LOG_BUCKETS in context.scripts:
        return _fused(shape)
    context.scripts |= {_LOG_BUCKETS}
    sign = made("sign", shape, int64)
    below, above = made("lt", shape, bool_), made("gt", shape, bool_)
    is_near = made("bitwise_and", shape, bool_)
    del below, above
    limit = made("to_device", (), int64)
    magnitude = made("abs", shape, int64)
    abs_pos = made("where", shape, int64)
    del is_near, limit, magnitude
    log_pos = made("div", shape, float32)
    for operation in ("log", "div", "mul", "ceil", "add"):
        log_pos = made(operation, shape, float32)
    fits = made("le", shape, bool_)
    del abs_pos
    plain = made("to_dtype", shape, float32)
    far = made("mul", shape, float32)
    del log_pos, sign
    bucket_pos = made("where", shape, float32)
    del fits, plain, far
    return bucket_pos


def _fused(shape: Shape) -> Tensor:
    sign = made("sign", shape, int64)
    limit = made("to_device", (), int64)
    log, abs_pos = made("fused", shape, float32), made("fused", shape, int64)
    del limit
    log_pos = made("div", shape, float32)
    del log
    bucket_pos = made("fused", shape, float32)
    del log_pos, abs_pos, sign
    return bucket_pos
