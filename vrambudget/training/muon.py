"""Muon as torch.optim has it: each matrix's update is orthonormalised.

    momentum_buffer   [R, C]            in the parameter's type
    update            [R, C]            gradient and momentum mixed: a new tensor
    ortho             [R, C] bfloat16   the update (itself, if it is bfloat16 already)
    gram, and its polynomial            [m, m] bfloat16, m the shorter side; five rounds

One matrix after another; the last result lives until the next update is made.

Muon takes matrices only. Its authors and torch's documentation leave the embeddings, the head and
all vectors to AdamW: `MuonAndAdamW` steps Muon, then AdamW.

Source: torch/optim/_muon.py; torch 2.9 and later, read in 2.11.
Not modelled: parameters of more dimensions, reshaped to matrices by some users.
"""

from collections.abc import Callable, Collection, Sequence

from vrambudget.dtypes import bfloat16
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.models.parts.layers import Embedding, Linear
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.workspaces import addmm_workspace, cublas_workspace
from vrambudget.training.optimizer_base import Optimizer, new_state

AdamWMaker = Callable[[Sequence[Parameter]], Optimizer]

_ROUNDS = 5  # ns_steps
_HEADS = ("lm_head", "decoder", "vocab_projector")  # get_output_embeddings of the families


class Muon(Optimizer):
    """torch.optim.Muon; it has one implementation."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, "for-loop")
        self.momentum_buffers: dict[Parameter, Tensor] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.momentum_buffers:
                self.momentum_buffers[parameter] = new_state(
                    "muon.momentum_buffer", parameter.shape, parameter.dtype
                )
        update: Tensor | None = None
        for parameter in parameters:
            context.operation = "lerp"
            update = empty_like(parameter)
            update = _orthogonalised(update)
        del update


def _orthogonalised(update: Tensor) -> Tensor:
    """_zeropower_via_newtonschulz; a tall matrix is transposed, which is a view."""
    shorter, longer = sorted(update.shape)
    context.operation = "to_dtype"
    ortho = update if update.dtype is bfloat16 else empty(update.shape, bfloat16)
    _scale_to_norm_one(ortho)
    gram = polynomial = None
    # cuBLASLt adds to what is contiguous, and a tall matrix's transpose is not.
    added = cublas_workspace if update.shape[0] > update.shape[1] else addmm_workspace
    for _ in range(_ROUNDS):
        gram = _product("mm", shorter, shorter, cublas_workspace)
        polynomial = _product("addmm", shorter, shorter, addmm_workspace)
        ortho = _product("addmm", shorter, longer, added)
        added = addmm_workspace
    del gram, polynomial
    return ortho


def _scale_to_norm_one(x: Tensor) -> None:
    context.operation = "linalg_vector_norm"
    norm = empty((), x.dtype)
    with_partial_sums(x, (0, 1))
    context.operation = "clamp"
    clamped = empty((), x.dtype)
    del norm, clamped


def _product(operation: str, rows: int, columns: int, workspace: Callable[[], None]) -> Tensor:
    context.operation = operation
    y = empty((rows, columns), bfloat16)
    workspace()
    return y


class MuonAndAdamW(Optimizer):
    """Muon for the hidden layers' matrices, AdamW for the rest, stepped one after the other."""

    def __init__(
        self, parameters: Sequence[Parameter], outer: Collection[Parameter], rest: AdamWMaker
    ) -> None:
        """Make both; `outer` are the embeddings and the head."""
        outside = set(outer)
        hidden = [p for p in parameters if p.ndim == 2 and p not in outside]  # noqa: PLR2004
        known = set(hidden)
        self.muon = Muon(hidden)
        self.adamw = rest([p for p in parameters if p not in known])
        super().__init__(parameters, self.adamw.implementation)

    def step(self) -> None:
        """Step both."""
        self.muon.step()
        self.adamw.step()


def embeddings_and_head(model: Module) -> list[Parameter]:
    """Return the matrices that Muon leaves to AdamW."""
    return [
        child.weight
        for module in model.modules()
        for name, child in vars(module).items()
        if isinstance(child, Embedding) or (name in _HEADS and isinstance(child, Linear))
    ]
