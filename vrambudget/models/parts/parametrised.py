"""Modules whose parameters something else may stand in for while they run.

A stand-in is a function of the parameter (a low-rank update added to it, say). It is computed once
at the first use and lives until the last stand-in of the module goes.

Source: torch/nn/utils/parametrize.py (register_parametrization, cached).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor

StandIn = Callable[[Parameter], Tensor]


class Parametrised(Module):
    """A module that reads its parameters by `value`."""

    def __init__(self) -> None:
        self.stand_ins: dict[str, StandIn] = {}
        self.computed: dict[str, Tensor] = {}

    def value(self, name: str) -> Tensor:
        """Return the parameter, or what stands in for it."""
        parameter: Parameter = getattr(self, name)
        stand_in = self.stand_ins.get(name)
        if stand_in is None:
            return parameter
        if name not in self.computed:
            self.computed[name] = stand_in(parameter)
        return self.computed[name]

    @contextmanager
    def parametrised(self, name: str, stand_in: StandIn) -> Iterator[None]:
        """Let `stand_in` stand in for a parameter; it is tried once, and the result dropped."""
        parameter: Parameter = getattr(self, name)
        stand_in(parameter)
        self.stand_ins[name] = stand_in
        try:
            yield
        finally:
            del self.stand_ins[name]
            if not self.stand_ins:
                self.computed.clear()
