"""FullyShardedDataParallel.clip_grad_norm_: one norm after another, in float32.

Source: torch/distributed/fsdp/fully_sharded_data_parallel.py (clip_grad_norm_, _get_grad_norm).
"""

from collections.abc import Sequence

from vrambudget.dtypes import float32
from vrambudget.engine.context import no_grad
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.reduce import with_partial_sums


class Clip:
    """Clips the gradients of the rank's parts; keeps a zero from its first call on."""

    def __init__(self) -> None:
        self._zero: Tensor | None = None

    def __call__(self, parameters: Sequence[Tensor]) -> None:
        """Clip the gradients of the rank's parts."""
        self._zero = self._zero or made("tensor", (), float32)
        with no_grad():
            _clip(parameters)


def _clip(parameters: Sequence[Tensor]) -> None:
    norms = [_norm(p.grad) for p in parameters if p.grad is not None]
    stacked = made("stack", (len(norms),), float32)
    del norms
    local = _norm(stacked)
    del stacked
    squared = made("pow", (), float32)
    total = made("pow", (), float32)
    del squared
    raised = made("add", (), float32)
    reciprocal = made("reciprocal", (), float32)
    coefficient = made("mul", (), float32)
    del raised, reciprocal
    clamped = made("clamp", (), float32)
    del clamped, coefficient, total, local


def _norm(x: Tensor) -> Tensor:
    norm = made("linalg_vector_norm", (), float32)
    with_partial_sums(x, (0,), float32)
    return norm
