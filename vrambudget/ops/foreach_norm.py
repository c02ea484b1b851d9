"""torch._foreach_norm: one norm for each of several tensors of one type.

    partial   float32 [tensors x chunks of the largest], a chunk is 65,536 elements
              since 2.15 [chunks of all], and where each tensor's begin
    norms     one scalar for each tensor, in its type

Source: aten/src/ATen/native/cuda/ForeachReduceOp.cu (foreach_tensor_norm_cuda).
Not modelled: norms other than 1, 2 and infinity, which take another way.
"""

from collections.abc import Sequence

from vrambudget.dtypes import float32, int64
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.engine.versions import torch_since

_CHUNK = 65536  # kChunkSize


def foreach_norm(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return a scalar for each tensor."""
    context.operation = "_foreach_norm"
    chunks = [-(-x.numel // _CHUNK) for x in tensors]
    compact = torch_since(2, 15)
    begins = empty((len(tensors) + 1,), int64) if compact else None
    partial = empty((sum(chunks) if compact else len(tensors) * max(chunks),), float32)
    norms = [empty((), x.dtype) for x in tensors]
    del partial, begins
    return norms
