"""What a step of January 2022 allocates: transformers' optimizers, clipping, one tensor at a time.

    AdamW       exp_avg, exp_avg_sq   as large as the parameter; `denom`, the square root, lives
                                      until the next parameter's is there
    Adafactor   a row and a column of a matrix; `update` is made of the squared gradient, twice as
                large for a moment, and lives until the next parameter's is there
    clipping    a norm for each gradient, stacked

Source: transformers/optimization.py (AdamW.step, Adafactor.step, _approx_sq_grad) of 4.16.2;
torch/nn/utils/clip_grad.py of 1.10.0.
Not modelled: Adafactor's beta1; matrices of more than two dimensions are factored by their last.
"""

from collections.abc import Sequence

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.training.optimizer_base import Optimizer, new_state


class AdamW(Optimizer):
    """transformers.AdamW, Trainer's default then (`optim="adamw_hf"`)."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, "for-loop")
        self.moments: dict[Parameter, tuple[Tensor, Tensor]] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        denom: Tensor | None = None
        for parameter in parameters:
            if parameter not in self.moments:
                exp_avg, exp_avg_sq = (
                    new_state(f"adam.{name}", parameter.shape, parameter.dtype)
                    for name in ("exp_avg", "exp_avg_sq")
                )
                self.moments[parameter] = exp_avg, exp_avg_sq
                del exp_avg, exp_avg_sq
            denom = _new("sqrt", parameter)  # the one of the parameter before is freed here
        del denom


class Adafactor416(Optimizer):
    """transformers.Adafactor without a first moment."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, "for-loop")
        self.variances: dict[Parameter, tuple[Tensor, ...]] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        update: Tensor | None = None
        for parameter in parameters:
            if parameter not in self.variances:
                self.variances[parameter] = _new_variances(parameter)
            norm_of(parameter)
            squared = _new("pow", parameter)
            update = _new("add", squared)
            del squared
            if parameter.ndim > 1:
                _means(parameter)
                update = _new("mul", parameter)  # of a row and a column
            else:
                update = _new("rsqrt", parameter)
            norm_of(parameter)
            negative = _new("neg", parameter)
            del negative
        del update


def _new_variances(parameter: Parameter) -> tuple[Tensor, ...]:
    *rows, columns = parameter.shape
    if not rows:
        return (new_state("adafactor.exp_avg_sq", parameter.shape, parameter.dtype),)
    return (
        new_state("adafactor.exp_avg_sq_row", tuple(rows), parameter.dtype),
        new_state("adafactor.exp_avg_sq_col", (*rows[:-1], columns), parameter.dtype),
    )


def _means(parameter: Parameter) -> None:
    """Of the squared gradient, along each of its two dimensions."""
    for dim in (-1, -2):
        context.operation = "mean"
        shape = list(parameter.shape)
        del shape[dim]
        mean = empty(tuple(shape), parameter.dtype)
        with_partial_sums(parameter, (dim,))
        del mean


def _new(operation: str, like: Tensor) -> Tensor:
    context.operation = operation
    return empty_like(like)


def norm_of(x: Tensor) -> Tensor:
    """torch.norm(x): a number on the GPU."""
    context.operation = "norm"
    y = empty((), x.dtype)
    with_partial_sums(x, tuple(range(x.ndim)))
    return y


def total_norm(parameters: Sequence[Parameter]) -> Tensor:
    """Return the norm of all gradients: one for each, stacked."""
    norms = [norm_of(parameter.grad) for parameter in parameters if parameter.grad is not None]
    context.operation = "stack"
    return norm_of(empty((len(norms),), norms[0].dtype))
