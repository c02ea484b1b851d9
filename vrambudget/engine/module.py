"""Modules: a tree of parameters, registered in the order in which the real class registers them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter
from vrambudget.tape.events import Tape


class Hooks(Protocol):
    """What runs in a module's `forward`'s place: before it, `forward` itself, and after it."""

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the call returns."""


class Module:
    """What torch.nn.Module is to a model: attributes that are modules or tensors form a tree.

    Calling passes arguments through `*args` as torch's `_call_impl` does: the caller's tuple keeps
    them alive until `forward` returns, which decides when intermediates die.
    """

    training = True  # a model that was just built trains, as torch's does
    hooks: Hooks | None = None  # what else a call does
    path = 0  # the number that a tape knows this module's path by; see register

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run `forward`; what it makes is this module's."""
        tape = context.tape
        outer = tape.module
        tape.module = self.path or outer
        try:
            if self.hooks is not None:
                return self.hooks.call(self, args, kwargs)
            return self.forward(*args, **kwargs)
        finally:
            tape.module = outer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute; each module says how."""
        raise NotImplementedError

    def train(self, *, mode: bool = True) -> None:
        """Let this module and all below it train: drop out, checkpoint."""
        for module in self.modules():
            module.training = mode

    def eval(self) -> None:
        """Let this module and all below it evaluate."""
        self.train(mode=False)

    def children(self) -> Iterator[Module]:
        """Submodules, in order of registration."""
        for value in self.__dict__.values():
            if isinstance(value, Module):
                yield value
            elif isinstance(value, list):
                yield from (item for item in value if isinstance(item, Module))

    def modules(self) -> Iterator[Module]:
        """Return this module and all below it, depth first."""
        stack: list[Module] = [self]
        while stack:
            module = stack.pop()
            yield module
            stack += reversed([*module.children()])

    def parameters(self) -> list[Parameter]:
        """Parameters in the order of torch's `parameters()`, shared ones once."""
        values = (value for module in self.modules() for value in module.__dict__.values())
        return list(dict.fromkeys(value for value in values if isinstance(value, Parameter)))

    def named_parameters(self) -> dict[str, Parameter]:
        """Parameters by their first name: "transformer.h.0.ln_1.weight"."""
        found: dict[int, tuple[str, Parameter]] = {}
        for prefix, module in self.named_modules():
            for name, value in module.__dict__.items():
                if isinstance(value, Parameter):
                    found.setdefault(id(value), (prefix + name, value))
        return dict(found.values())

    def named_modules(self, prefix: str = "") -> list[tuple[str, Module]]:
        """Return this module and all below it, each with what its parameters' names begin with."""
        found = [(prefix, self)]
        for name, value in self.__dict__.items():
            if isinstance(value, Module):
                found += value.named_modules(f"{prefix}{name}.")
            elif value.__class__ is list:
                for i, item in enumerate(value):
                    if isinstance(item, Module):
                        found += item.named_modules(f"{prefix}{name}.{i}.")
        return found


def register(model: Module, tape: Tape) -> list[Parameter]:
    """Let what a model's modules make, and have made, carry their paths; return the parameters.

    One traversal serves both: on a large model it takes a hundredth of an estimate.
    """
    paths, modules = tape.paths, tape.modules
    parameters: dict[int, Parameter] = {}
    for prefix, module in model.named_modules():
        if prefix and not module.path:
            module.path = len(paths)
            paths.append(prefix[:-1])
        for value in module.__dict__.values():
            if isinstance(value, Parameter) and id(value) not in parameters:
                parameters[id(value)] = value
                if value.storage.tape is tape:  # not empty, and not in main memory
                    modules[value.storage.index] = module.path
    return list(parameters.values())
