"""Optimizers as torch.optim runs them: states made at the first step, temporaries of every step.

    AdamW, Adam    exp_avg, exp_avg_sq   as large as the parameter, in its type
                   step                  fused: a float32 scalar on the GPU; else in main memory
    SGD            momentum_buffer       with momentum, made at the first step

    foreach        PyTorch's default: one operation over all parameters of one type. Adam's square
                   roots are one more copy of all parameters until the step is over
    fused          one kernel, no temporaries
    for-loop       one parameter after another: up to three copies of a parameter

Parameters without a gradient get no states and no update.

Source: torch/optim/{adam,adamw,sgd,optimizer}.py (_init_group, _multi_tensor_*, _single_tensor_*,
_fused_*, _default_to_fused_or_foreach).
Not modelled: amsgrad, maximize, capturable, differentiable, nesterov, and the weight decay of Adam
and SGD, which makes a copy of the gradients (AdamW's does not).
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from vrambudget.dtypes import float32
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor, empty_like
from vrambudget.engine.versions import torch_since
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.parallel.dtensor import redistributed
from vrambudget.training.optimizer_base import Implementation, Optimizer, by_type, new_state


class Moments(NamedTuple):
    """What Adam keeps for one parameter."""

    step: Tensor | None
    exp_avg: Tensor
    exp_avg_sq: Tensor


class Adam(Optimizer):
    """torch.optim.Adam and AdamW: what they allocate is the same (but for Adam's weight decay)."""

    def __init__(self, parameters: Sequence[Parameter], implementation: Implementation) -> None:
        super().__init__(parameters, implementation)
        self.moments: dict[Parameter, Moments] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.moments:
                self.moments[parameter] = self._new_moments(parameter)
        if self.implementation == "foreach":
            self._update_together(parameters)
        elif self.implementation == "for-loop":
            self._update_one_by_one(parameters)
        else:
            redistributed(parameters)  # those of the kernel's inputs that lie elsewhere

    def _new_moments(self, parameter: Parameter) -> Moments:
        on_gpu = self.implementation == "fused"
        return Moments(
            new_state("adam.step", (), float32) if on_gpu else None,
            new_state("adam.exp_avg", parameter.shape, parameter.dtype),
            new_state("adam.exp_avg_sq", parameter.shape, parameter.dtype),
        )

    def _update_together(self, parameters: list[Parameter]) -> None:
        exp_avg_sq_sqrt: list[Tensor] = []
        for group in by_type(parameters):
            _read_gradients(group)
            context.operation = "_foreach_sqrt"
            # Those of the group before die when the variable is set, so after these are made.
            exp_avg_sq_sqrt = [empty_like(self.moments[p].exp_avg_sq) for p in group]
        del exp_avg_sq_sqrt

    def _update_one_by_one(self, parameters: list[Parameter]) -> None:
        denom: Tensor | None = None
        for parameter in parameters:
            _read_gradients([parameter])
            context.operation = "sqrt"
            square_root = empty_like(self.moments[parameter].exp_avg_sq)
            context.operation = "div"
            quotient = empty_like(square_root)
            del square_root
            denom = quotient  # the one of the parameter before is freed here
            del quotient
        del denom


def _read_gradients(parameters: list[Parameter]) -> None:
    """Read the gradients as parameters lie: lerp once, addcmul twice at a time."""
    redistributed(parameters)
    twice = [redistributed(parameters) for _ in range(2)]
    del twice


class SGD(Optimizer):
    """torch.optim.SGD; without momentum it allocates nothing."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        implementation: Implementation,
        *,
        momentum: bool = False,
    ) -> None:
        super().__init__(parameters, implementation)
        self.momentum = momentum
        self.momentum_buffers: dict[Parameter, Tensor] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        if self.momentum:
            self._make_buffers(parameters)
        redistributed(parameters)  # add_ to the parameters

    def _make_buffers(self, parameters: list[Parameter]) -> None:
        together = self.implementation == "foreach"
        for group in by_type(parameters) if together else (parameters,):
            for parameter in group:
                if parameter not in self.momentum_buffers and parameter.grad is not None:
                    grad = parameter.grad  # its copy, which lies as it does
                    buffer = new_state("sgd.momentum_buffer", grad.shape, grad.dtype)
                    self.momentum_buffers[parameter] = buffer


def _adamw(parameters: Sequence[Parameter], implementation: Implementation) -> Optimizer:
    if torch_since(2, 6):
        return Adam(parameters, implementation)
    from vrambudget.training.transformers_4_16 import AdamW  # noqa: PLC0415 - few jobs are so old

    return AdamW(parameters)


def _adafactor(parameters: Sequence[Parameter], implementation: Implementation) -> Optimizer:
    if torch_since(2, 6):
        from vrambudget.training.adafactor import Adafactor  # noqa: PLC0415 - few jobs have it

        return Adafactor(parameters, implementation)
    from vrambudget.training.transformers_4_16 import Adafactor416  # noqa: PLC0415

    return Adafactor416(parameters)


def make_optimizer(
    name: str,
    implementation: str | None,
    parameters: Sequence[Parameter],
    outer: Collection[Parameter] = (),
) -> Optimizer | None:
    """Return the optimizer of that name, None for "none".

    `outer`: the embeddings and the head, which Muon leaves to AdamW.

    Without an implementation PyTorch uses foreach for all but Adafactor, which uses its for-loop.
    Raises VramBudgetError for unknown names and combinations.
    """
    if implementation not in {None, "foreach", "fused", "for-loop"}:
        raise VramBudgetError(
            f"optimizer implementation {implementation!r} is not known",
            hint="PyTorch has 'foreach', 'fused' and 'for-loop'",
        )
    chosen: Implementation = implementation or "foreach"  # type: ignore[assignment]
    match name:
        case "adamw" | "adam":
            return _adamw(parameters, chosen)
        case "sgd" | "sgd-momentum":
            return SGD(parameters, chosen, momentum=name == "sgd-momentum")
        case "adafactor":
            return _adafactor(parameters, chosen if implementation else "for-loop")
        case "none":
            return None
        case "muon":
            from vrambudget.training.muon import MuonAndAdamW  # noqa: PLC0415 - few have it

            return MuonAndAdamW(parameters, outer, lambda rest: Adam(rest, chosen))
    from vrambudget.training.bitsandbytes import KINDS, BitsAndBytes  # noqa: PLC0415

    if name in KINDS:
        return BitsAndBytes(parameters, KINDS[name])
    known = ("adamw", "adam", "sgd", "sgd-momentum", "adafactor", "muon", *KINDS, "none")
    raise VramBudgetError(
        f"optimizer {name!r} is not known",
        hint=did_you_mean(name, known) or f"choose one of {', '.join(known)}",
    )
