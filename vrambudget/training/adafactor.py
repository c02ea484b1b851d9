"""Adafactor as torch.optim has it: variances of matrices are kept as a row and a column.

    row_var    [R, 1]   col_var [1, C]   for a parameter [R, C]
    variance   [C]                       for a vector

    for-loop   (default) the update is as large as the parameter, and lives until the next
               parameter's is made
    foreach    updates of all parameters of one type at once

Source: torch/optim/_adafactor.py.
Not modelled: maximize.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor, empty, empty_like
from vrambudget.errors import VramBudgetError
from vrambudget.ops.reduce import with_partial_sums
from vrambudget.ops.workspaces import bmm_workspace, cublas_workspace
from vrambudget.training.optimizer_base import Implementation, Optimizer, by_type, new_state


@dataclass(frozen=True, slots=True)
class Variances:
    """What Adafactor keeps for one parameter: a row and a column, or the whole."""

    factors: tuple[Tensor, Tensor] | None
    whole: Tensor | None


class Adafactor(Optimizer):
    """torch.optim.Adafactor. Raises VramBudgetError for "fused", which does not exist."""

    def __init__(self, parameters: Sequence[Parameter], implementation: Implementation) -> None:
        if implementation == "fused":
            raise VramBudgetError(
                "adafactor has no fused implementation",
                hint="use --optimizer-impl for-loop or foreach",
            )
        super().__init__(parameters, implementation)
        self.variances: dict[Parameter, Variances] = {}

    def _update(self, parameters: list[Parameter]) -> None:
        for parameter in parameters:
            if parameter not in self.variances:
                self.variances[parameter] = _new_variances(parameter)
        if self.implementation == "foreach":
            self._update_together(parameters)
        else:
            self._update_one_by_one(parameters)

    def _update_one_by_one(self, parameters: list[Parameter]) -> None:
        # Variables as in PyTorch's loop: each holds its tensor until it is set again.
        row_mean = column_mean = grad_squared = update = None
        for parameter in parameters:
            norm(parameter)
            factors = self.variances[parameter].factors
            if factors is not None:
                row_mean = norm(parameter, -1)
                column_mean = norm(parameter, -2)
                var_estimate = _outer_product(*factors)
                mean(factors[0], -2)
            else:
                grad_squared = _new("mul", parameter)
                var_estimate = _new("clone", parameter)
            update = var_estimate
            norm(update)
        del row_mean, column_mean, grad_squared, update

    def _update_together(self, parameters: list[Parameter]) -> None:
        updates: list[Tensor] = []
        for group in _by_type_and_rank(parameters):
            for parameter in group:
                norm(parameter)
            factors = [self.variances[p].factors for p in group]
            if factors[0] is not None:
                var_estimates = self._estimate_matrices(group)
            else:
                _new_list("_foreach_mul", group)
                var_estimates = _new_list("clone", group)
            updates = var_estimates
            for update in updates:
                norm(update)
        del updates

    def _estimate_matrices(self, group: list[Parameter]) -> list[Tensor]:
        for dim in (-1, -2):
            means = [norm(p, dim) for p in group]
            del means
        factors = [pair for p in group if (pair := self.variances[p].factors) is not None]
        estimates = [_outer_product(*pair) for pair in factors]
        row_var_means = [mean(row, -2) for row, _ in factors]
        del row_var_means
        return estimates


def _new_variances(parameter: Parameter) -> Variances:
    if parameter.ndim > 1:
        *batch, rows, columns = parameter.shape
        row = new_state("adafactor.row_var", (*batch, rows, 1), parameter.dtype)
        column = new_state("adafactor.col_var", (*batch, 1, columns), parameter.dtype)
        return Variances((row, column), None)
    return Variances(None, new_state("adafactor.variance", parameter.shape, parameter.dtype))


def _by_type_and_rank(parameters: list[Parameter]) -> Iterator[list[Parameter]]:
    """Yield matrices and vectors of one type apart, whichever is seen first."""
    for group in by_type(parameters):
        parts: dict[bool, list[Parameter]] = {}
        for parameter in group:
            parts.setdefault(parameter.ndim > 1, []).append(parameter)
        yield from parts.values()


def norm(x: Tensor, dim: int | None = None) -> Tensor:
    """Return the norm of all of x, or along one dimension that is kept as 1."""
    context.operation = "linalg_vector_norm"
    if dim is None:
        y = empty((), x.dtype)
        with_partial_sums(x, tuple(range(x.ndim)))
        return y
    return _reduced(x, dim)


def mean(x: Tensor, dim: int) -> Tensor:
    """Return the mean along one dimension, which is kept as 1."""
    context.operation = "mean"
    return _reduced(x, dim)


def _reduced(x: Tensor, dim: int) -> Tensor:
    shape = list(x.shape)
    shape[dim] = 1
    y = empty(tuple(shape), x.dtype)
    with_partial_sums(x, (dim,))
    return y


def _outer_product(row: Tensor, column: Tensor) -> Tensor:
    context.operation = "mm"
    y = empty((*row.shape[:-1], column.shape[-1]), row.dtype)
    if y.ndim > 2:  # noqa: PLR2004
        bmm_workspace(inner=1)
    else:
        cublas_workspace()
    return y


def _new(operation: str, like: Tensor) -> Tensor:
    context.operation = operation
    return empty_like(like)


def _new_list(operation: str, like: Sequence[Tensor]) -> list[Tensor]:
    context.operation = operation
    return [empty_like(x) for x in like]
