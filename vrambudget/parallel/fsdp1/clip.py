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
    """Clips the gradients of the rank's parts; keeps a zero from its first call on.

    `has_others`: the model has parameters besides flat ones, whose norm is that zero. bitsandbytes
    makes each view of a 4-bit weight one (nn/modules.py, fix_4bit_weight_quant_state_from_module).
    """

    def __init__(self, *, has_others: bool = False, offload: bool = False) -> None:
        self._zero: Tensor | None = None
        self._has_others, self._offload = has_others, offload

    def __call__(self, parameters: Sequence[Tensor]) -> Tensor | None:
        """Clip the gradients of the rank's parts, and return their norm."""
        self._zero = self._zero or made("tensor", (), float32)
        with no_grad():
            if self._offload:  # gradients lie in main memory
                _total(made("to_device", (), float32), has_others=self._has_others)
                return None
            return _clip(parameters, has_others=self._has_others)


def _clip(parameters: Sequence[Tensor], *, has_others: bool) -> Tensor:
    norms = [_norm(p.grad) for p in parameters if p.grad is not None]
    stacked = made("stack", (len(norms),), float32)
    del norms
    local = _norm(stacked)
    del stacked
    total = _total(local, has_others=has_others)
    raised = made("add", (), float32)
    reciprocal = made("reciprocal", (), float32)
    coefficient = made("mul", (), float32)
    del raised, reciprocal
    clamped = made("clamp", (), float32)
    del clamped, coefficient
    return total


def _total(local: Tensor, *, has_others: bool) -> Tensor:
    """Return the norm over all ranks, from this rank's."""
    squared = made("pow", (), float32)
    if has_others:
        made("pow", (), float32)
    total = made("pow", (), float32)
    del squared, local
    return total


def _norm(x: Tensor) -> Tensor:
    norm = made("linalg_vector_norm", (), float32)
    with_partial_sums(x, (0,), float32)
    return norm
