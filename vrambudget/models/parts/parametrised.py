"""Modules whose parameters something else may stand in for while they run.

A stand-in is a function of the parameter (a low-rank update added to it, say). It is computed once
at the first use and lives until the last replacement of the module goes.

Source: torch/nn/utils/parametrize.py (register_parametrization, cached).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor

Replacement = Callable[[Parameter], Tensor]


class Parametrised(Module):
    """A module that reads its parameters by `value`."""

    def __init__(self) -> None:
        self.replacements: dict[str, Replacement] = {}
        self.computed: dict[str, Tensor] = {}

    def value(self, name: str) -> Tensor:
        """Return the parameter, or what stands in for it."""
        parameter: Parameter = getattr(self, name)
        replacement = self.replacements.get(name)
        if replacement is None:
            return parameter
        if name not in self.computed:
            self.computed[name] = replacement(parameter)
        return self.computed[name]

    @contextmanager
    def parametrised(self, name: str, replacement: Replacement) -> Iterator[None]:
        """Let `replacement` stand in for a parameter; it is tried once, and the result dropped."""
        parameter: Parameter = getattr(self, name)
        replacement(parameter)
        self.replacements[name] = replacement
        try:
            yield
        finally:
            del self.replacements[name]
            if not self.replacements:
                self.computed.clear()
