"""The fused kernels that ring attention calls, for tensors [B, H, S, D] that autograd ignores.

    forward     q, k, v -> out, logsumexp [B, H, Sq] (cuDNN's: [B, H, Sq, 1]), random state
    backward    dout, and how q, k, v and out lie -> dq, dk, dv

Not modelled: heads whose width is no multiple of 8 in flash attention, which are padded.
"""

from typing import NamedTuple, Protocol

from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.ops.attention.cudnn import cudnn_backward, cudnn_forward
from vrambudget.ops.attention.efficient import efficient_backward, efficient_forward
from vrambudget.ops.attention.flash import flash_backward, flash_forward
from vrambudget.ops.attention.layout import Strided
from vrambudget.ops.attention.select import Kernel

_FLASH_ALIGNMENT = 8
_LOGSUMEXP_ALIGNMENT = 32


class Fused(Protocol):
    """One kernel."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        """Return out, logsumexp and the rest."""

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Return the gradients of q, k and v."""


class _Flash(NamedTuple):
    dropout: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return flash_forward(q, k, v, self.dropout)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> tuple[Tensor | None, ...]:
        return flash_backward(dout, *(Strided.of(x) for x in (q, k, v, out)))


class _Efficient(NamedTuple):
    dropout: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return efficient_forward(q, k, v, self.dropout)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> tuple[Tensor | None, ...]:
        del out
        return efficient_backward(dout, (q.shape, k.shape, v.shape), q.dtype, self.dropout)[:3]


class _Cudnn(NamedTuple):
    dropout: float

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return cudnn_forward(q, k, v, self.dropout)

    def backward(
        self, dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor
    ) -> tuple[Tensor | None, ...]:
        return cudnn_backward(dout, *(Strided.of(x) for x in (q, k, v, out)), dropout=self.dropout)


def fused(kernel: Kernel, q: Tensor, dropout: float) -> Fused:
    """Return the kernel that PyTorch selected for a rank's queries [B, H, S, D].

    Raises NotModelledError for one that ring attention does not have, and for lengths whose
    logsumexp the efficient kernel pads: PyTorch fails to merge those.
    """
    if kernel == "math":
        raise NotModelledError(
            "context_parallel has no attention but PyTorch's fused kernels, which do not take this",
            hint="use bfloat16 or float16, or float32 with as many key heads as query heads",
        )
    if kernel == "cudnn":
        return _Cudnn(dropout)
    if kernel == "flash":
        if q.shape[3] % _FLASH_ALIGNMENT:
            raise NotModelledError(f"heads of {q.shape[3]} under context_parallel are not modelled")
        return _Flash(dropout)
    if q.shape[2] % (2 * _LOGSUMEXP_ALIGNMENT):
        raise NotModelledError(
            f"{q.shape[2]} tokens of each rank fail in PyTorch: the efficient kernel's logsumexp is"
            f" padded to a multiple of {_LOGSUMEXP_ALIGNMENT}",
            hint=f"choose a block that is a multiple of {2 * _LOGSUMEXP_ALIGNMENT} on each rank",
        )
    return _Efficient(dropout)
