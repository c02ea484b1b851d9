"""A decoding step of a deep model, from a trace over four of its layers that are alike.

    traced    the first two layers and the last two; once for each pattern, all of them, too
    found     the storages of each layer between are those of the second one

A step that does over four layers what an earlier one did there does the same over all of them, with
sizes of its own. Where the earlier one's storages over all layers are not those of the four with a
part repeated (offloaded caches look ahead), each step is traced over all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.module import Module
from vrambudget.inference.skipping import TracedStep
from vrambudget.tape.steps import Pattern

_FEWEST = 8  # layers
_ENDS = 2  # layers that are traced at each end


@dataclass(frozen=True, slots=True)
class _Repeated:
    """A step over all layers: what it does, and which part of the four layers' is repeated."""

    pattern: Pattern
    stop: int  # storages up to the end of the part
    length: int  # of the part
    times: int

    def all_of(self, few: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what all layers' storages have, by those of the four."""
        part = few[self.stop - self.length : self.stop]
        return few[: self.stop] + self.times * part + few[self.stop :]


def tracer(
    model: Module, trace: Callable[[int], TracedStep], steps: int
) -> Callable[[int], TracedStep]:
    """Return what traces a step by its number, as `trace` does, over few layers where it can.

    `steps`: how many there are; few of them are traced over all layers.
    """
    stack = _stack_of(model)
    if stack is None or steps < _FEWEST:
        return trace
    module, name, layers = stack
    known: dict[Pattern, _Repeated | None] = {}

    def trace_few(step: int) -> TracedStep:
        with _shortened(module, name, layers):
            few = trace(step)
        if few.pattern not in known:
            every = trace(step)
            known[few.pattern] = _repeated(few, every, len(layers) - 2 * _ENDS)
            return every
        found = known[few.pattern]
        return trace(step) if found is None else TracedStep(found.pattern, found.all_of(few.sizes))

    return trace_few


def _stack_of(model: Module) -> tuple[Module, str, list[Layer]] | None:
    """Return the module, the name and the layers of a model's one stack of layers all alike."""
    found = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, list) and value and isinstance(value[0], Layer)
    ]
    if len(found) != 1 or len(found[0][2]) < _FEWEST:
        return None
    stack = found[0][2][0].stack
    return found[0] if stack is not None and len({*stack.kinds}) == 1 else None


@contextmanager
def _shortened(module: Module, name: str, layers: list[Layer]) -> Iterator[None]:
    setattr(module, name, layers[:_ENDS] + layers[-_ENDS:])
    try:
        yield
    finally:
        setattr(module, name, layers)


def _repeated(few: TracedStep, every: TracedStep, times: int) -> _Repeated | None:
    """Return how one step's storages over all layers come of those over four; None: they do not."""
    length, rest = divmod(len(every.sizes) - len(few.sizes), times)
    ours = [*zip(few.pattern.operations, few.sizes, strict=True)]
    theirs = [*zip(every.pattern.operations, every.sizes, strict=True)]
    differs = (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    stop = next(differs, len(ours))
    found = _Repeated(every.pattern, stop, length, times)
    if rest or not 0 < length <= stop or found.all_of(tuple(ours)) != tuple(theirs):
        return None
    return found
