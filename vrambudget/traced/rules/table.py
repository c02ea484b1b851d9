"""The table of rules, and how a rule says which calls are its own."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Rule = TypeVar("Rule", bound=Callable[..., Any])

RULES: dict[Any, Callable[..., Any]] = {}
"""By function of torch, method of its tensors, or getter of an attribute."""

WRITING: set[Any] = set()
"""The functions among them that write into their first argument."""

COUNTING: set[Any] = {torch.nonzero, torch.Tensor.nonzero}
"""The functions whose rules take how many places of their argument are set, None if unknown."""

_HOMES: tuple[Any, ...] = (
    torch.Tensor,
    torch,
    torch.nn.functional,
    torch._C._nn,  # noqa: SLF001 - where torch keeps what functional calls
)


def on(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of what has one of `names`: in torch, functional or a tensor."""

    def registered(rule: Rule) -> Rule:
        found = [getattr(home, name) for name in names for home in _HOMES if hasattr(home, name)]
        assert found, names  # noqa: S101 - a slip in the table
        for function in found:
            RULES[function] = rule
        return rule

    return registered


def writes(*names: str) -> Callable[[Rule], Rule]:
    """Make a function the rule of methods that write into their tensor.

    It returns the engine's tensor of the same storage that the tensor is from then on.
    """

    def registered(rule: Rule) -> Rule:
        WRITING.update(getattr(torch.Tensor, name) for name in names)
        return on(*names)(rule)

    return registered


def getter(name: str) -> Any:
    """Return what torch calls to read an attribute of a tensor."""
    return getattr(torch.Tensor, name).__get__
