"""Adafactor as Trainer has it (`optim="adafactor"`), which is transformers' own and not torch's.

    exp_avg_sq_row [..., R]   exp_avg_sq_col [..., C]   for a parameter [..., R, C], float32
    exp_avg_sq     [C]                                  for a vector
    RMS            []                                   of the parameter, a number on the GPU

`update` is made of the squared gradient, twice as large for a moment, and lives until the next
parameter's is there, as do float32 copies of a 16-bit gradient and parameter.

Source: transformers/optimization.py (Adafactor.step, _approx_sq_grad), 5.17;
transformers/trainer_optimizer.py, where scale_parameter and relative_step are off.
Not modelled: beta1, and scale_parameter, which reads RMS.
"""

from collections.abc import Sequence

from vrambudget.dtypes import float32
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.ops.creation import made
from vrambudget.tape.events import Purpose
from vrambudget.training.adafactor import mean, norm
from vrambudget.training.optimizer_base import Optimizer, new_state


class TransformersAdafactor(Optimizer):
    """transformers.optimization.Adafactor without a first moment, for parameters of all groups."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        super().__init__(parameters, "for-loop")
        self.variances: dict[Parameter, tuple[Tensor, ...]] = {}
        self.rms: dict[Parameter, Tensor] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        # Variables as in the loop of `step`: each holds its tensor until it is set again.
        grad: Tensor | None = None
        update: Tensor | None = None
        master: Tensor | None = None
        for parameter in parameters:
            grad = parameter.grad  # the copy of the one before is freed here
            assert grad is not None  # noqa: S101 - `step` leaves out those without
            grad = _in_float32(grad)
            if parameter not in self.variances:
                self.variances[parameter] = _new_variances(parameter)
            master = parameter
            master = _in_float32(master)
            with made_for(Purpose.OPTIMIZER_STATES):
                self.rms[parameter] = _root_mean_square(master)
            squared = made("pow", grad.shape, float32)
            update = made("add", grad.shape, float32)
            del squared
            if grad.ndim > 1:
                for dim in (-1, -2):
                    mean(update, dim)
                update = _approximate(*self.variances[parameter], shape=grad.shape)
            else:
                update = made("rsqrt", grad.shape, float32)
            _clip(update)
            negative = made("neg", update.shape, float32)
            del negative
        del grad, update, master


def _in_float32(x: Tensor) -> Tensor:
    return x if x.dtype is float32 else made("to_copy", x.shape, float32)


def _new_variances(parameter: Parameter) -> tuple[Tensor, ...]:
    *rows, columns = parameter.shape
    if not rows:
        return (new_state("adafactor.exp_avg_sq", parameter.shape, float32),)
    return (
        new_state("adafactor.exp_avg_sq_row", tuple(rows), float32),
        new_state("adafactor.exp_avg_sq_col", (*rows[:-1], columns), float32),
    )


def _root_mean_square(x: Tensor) -> Tensor:
    total = norm(x)
    result = made("div", (), float32)
    del total
    return result


def _approximate(row: Tensor, column: Tensor, *, shape: tuple[int, ...]) -> Tensor:
    """Return the product of the row's and the column's factors."""
    row_mean = mean(row, -1)
    row_factor = made("div", row.shape, float32)
    del row_mean
    column_factor = made("rsqrt", column.shape, float32)
    product = made("mul", shape, float32)
    del row_factor, column_factor
    return product


def _clip(update: Tensor) -> None:
    root = _root_mean_square(update)
    over = made("div", (), float32)
    del root, over
