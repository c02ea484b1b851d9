"""bitsandbytes' optimizers: AdamW with states of 8 bits, paged or not, and Lion with 32 or 8.

    AdamW   two states, Lion one, each as large as the parameter
    8 bits  uint8 for parameters of at least 4,096 elements, with a float32 absmax for each block of
            256 (2,048 in 0.26, with PyTorch 1.10); smaller ones keep float32 states
    qmap    the 256 values that a code stands for, float32: one table of signed values and, where
            there are two states, one of unsigned values, shared by all parameters
    paged   states of at least 100,000 elements are in managed memory, which moves between GPU and
            main memory page by page, so it never runs out. PyTorch's allocator does not know it
            and it is not on the tape: `paged_bytes` returns its size

States are float32 or uint8 whatever the parameter's type is. Kernels work in place: no temporaries.

Source: bitsandbytes/optim/{optimizer,adamw,lion}.py, functional.py (get_paged), 0.50.2.
Not modelled: `max_unorm`; GlobalOptimManager's overrides (the Hugging Face
Trainer keeps the states of embeddings in 32 bits where the others have 8).
"""

from collections.abc import Sequence
from typing import NamedTuple

from vrambudget.dtypes import float32, uint8
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.engine.versions import torch_since
from vrambudget.training.optimizer_base import Optimizer, new_state

_SMALLEST_8BIT = 4096  # min_8bit_size
_SMALLEST_PAGED = 100_000
_CODES = 256


class StateKind(NamedTuple):
    """How many states, how wide, and where."""

    states: int
    bits: int
    paged: bool = False


KINDS = {
    "lion": StateKind(states=1, bits=32),
    "lion-8bit": StateKind(states=1, bits=8),
    "adamw-8bit": StateKind(states=2, bits=8),
    "paged-adamw-8bit": StateKind(states=2, bits=8, paged=True),
}
"""By the names that a job has for them."""


class BitsAndBytes(Optimizer):
    """AdamW (two states) or Lion (one)."""

    def __init__(self, parameters: Sequence[Parameter], kind: StateKind) -> None:
        super().__init__(parameters, "for-loop")
        self.kind = kind
        self.states: dict[Parameter, list[Tensor]] = {}
        self.qmaps: list[Tensor] = []

    def _update(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.states:
                self.states[parameter] = self._new_states(parameter)

    def _new_states(self, parameter: Parameter) -> list[Tensor]:
        compact = self.kind.bits == 8 and parameter.numel >= _SMALLEST_8BIT  # noqa: PLR2004 - bits
        if compact and not self.qmaps:
            self.qmaps = [new_state("qmap", (_CODES,), float32) for _ in range(self.kind.states)]
        dtype = uint8 if compact else float32
        found = []
        numbers = range(1, self.kind.states + 1)
        if not _is_paged(self.kind, parameter):
            found += [new_state(f"state{i}", parameter.shape, dtype) for i in numbers]
        if compact:
            blocks = -(-parameter.numel // (256 if torch_since(2, 6) else 2048))
            found += [new_state(f"absmax{i}", (blocks,), float32) for i in numbers]
        return found


def paged_bytes(name: str, parameters: Sequence[Parameter]) -> int:
    """Return how many bytes of an optimizer's states lie in managed memory."""
    kind = KINDS.get(name)
    if kind is None:
        return 0
    return sum(
        kind.states * parameter.numel * kind.bits // 8
        for parameter in parameters
        if _is_paged(kind, parameter)
    )


def _is_paged(kind: StateKind, parameter: Parameter) -> bool:
    return kind.paged and parameter.numel >= _SMALLEST_PAGED
