"""Shadows of a torch module: a tree of the engine's modules with the same names.

What visits such a tree (paths on the tape, freezing, counting) finds the names of torch's.
"""

from collections.abc import Callable

import torch

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor


def shadow(
    own: Module, module: torch.nn.Module, parameter_of: Callable[[torch.Tensor], Parameter | None]
) -> dict[int, Module]:
    """Let `own` have what a module has, down to its parameters; return the shadows by id."""
    numbers: dict[int, Module] = {}
    _shadow(own, module, parameter_of, numbers)
    return numbers


def _shadow(
    own: Module,
    module: torch.nn.Module,
    parameter_of: Callable[[torch.Tensor], Parameter | None],
    numbers: dict[int, Module],
) -> None:
    numbers[id(module)] = own
    for name, weight in module._parameters.items():  # noqa: SLF001 - their order, shared ones too
        parameter = None if weight is None else parameter_of(weight)
        if parameter is not None:
            setattr(own, name, parameter)
    for name, child in module.named_children():
        below = Module()
        setattr(own, name, below)
        _shadow(below, child, parameter_of, numbers)


def as_parameter(v: Tensor) -> Parameter:
    """Return a tensor as one that the engine knows as a parameter."""
    if isinstance(v, Parameter):
        return v
    parameter = Parameter.__new__(Parameter)
    Tensor.__init__(parameter, v.shape, v.dtype, v.storage, v.strides)
    parameter.requires_grad = v.requires_grad
    return parameter
