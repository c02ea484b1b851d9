"""A decoding step of a deep model, from a trace over few of its layers, which are alike in turns.

    traced    the first two layers and the last two; of kinds that take turns (Gemma 3), the first
              turn and what is over behind whole ones; once for each pattern, all of them, too
    found     the storages of each layer between, or turn, are those of the one before

A step that does over few layers what an earlier one did there does the same over all of them, with
sizes of its own. Where the earlier one's storages over all layers are not those of the few with a
part repeated (offloaded caches look ahead), each step is traced over all.
"""

from collections.abc import Callable
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
    """A step over all layers: what it does, and which part of the few layers' is repeated."""

    pattern: Pattern
    stop: int  # storages up to the end of the part
    length: int  # of the part
    times: int

    def all_of(self, few: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what all layers' storages have, by those of the few."""
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
    module, name, layers, turn = stack
    first = max(turn, _ENDS)
    times = (len(layers) - first - _ENDS) // turn
    few = layers[:first] + layers[first + times * turn :]
    known: dict[Pattern, _Repeated | None] = {}

    def trace_few(step: int) -> TracedStep:
        setattr(module, name, few)
        try:
            short = trace(step)
        finally:
            setattr(module, name, layers)
        if short.pattern not in known:
            known[short.pattern] = _repeated(short, trace(step), times)
        found = known[short.pattern]
        if found is None:
            return trace(step)
        return TracedStep(found.pattern, found.all_of(short.sizes))

    return trace_few


def _stack_of(model: Module) -> tuple[Module, str, list[Layer], int] | None:
    """Return a model's one stack of layers: its module, name, layers, and how many are a turn."""
    found = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, list) and value and isinstance(value[0], Layer)
    ]
    if len(found) != 1 or len(found[0][2]) < _FEWEST:
        return None
    layers = found[0][2]
    kinds = [] if layers[0].stack is None else layers[0].stack.kinds
    turns = (n for n in range(1, len(kinds) // 2) if kinds[n:] == kinds[:-n])
    return next(((*found[0], n) for n in turns), None)


def _repeated(few: TracedStep, every: TracedStep, times: int) -> _Repeated | None:
    """Return how one step's storages over all layers come of those over few; None: they do not."""
    length, rest = divmod(len(every.sizes) - len(few.sizes), times)
    ours = [*zip(few.pattern.operations, few.sizes, strict=True)]
    theirs = [*zip(every.pattern.operations, every.sizes, strict=True)]
    differs = (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b)
    stop = next(differs, len(ours))
    found = _Repeated(every.pattern, stop, length, times)
    if rest or not 0 < length <= stop or found.all_of(tuple(ours)) != tuple(theirs):
        return None
    return found
