"""What kernels of general calls allocate besides results, written down by their rule's name."""

from collections.abc import Iterator
from typing import Any

import torch

from vrambudget.engine.context import context
from vrambudget.ops.temporaries import BEFORE_RESULT
from vrambudget.recording.listener import RecordedPhase
from vrambudget.recording.raw import TensorLayout
from vrambudget.traced import kernels, tracer
from vrambudget.traced.products import PRODUCTS
from vrambudget.traced.tensor import dtype_of

Patch = tuple[Any, str, Any]


def patches() -> Iterator[Patch]:
    """Yield what is replaced while the listener listens: (owner, name, replacement)."""
    rule, dispatch = kernels.temporaries, tracer.Tracer.__torch_dispatch__
    early = kernels.beforehand
    running: list[RecordedPhase] = []

    def temporaries(func: Any, name: str, args: Any, result: Any) -> None:
        if not running:
            rule(func, name, args, result)
            return
        start = len(context.tape.events)
        rule(func, name, args, result)
        kind, given = _kernel(name, args)
        if kind is not None and len(context.tape.events) >= start:
            operands = [_layout(x) for x in given]
            running[-1].explained(start, ("kernel", kind, operands, _layout(result)))

    def beforehand(name: str, args: Any) -> Any:
        if not running:
            return early(name, args)
        if name in BEFORE_RESULT:
            row = ("kernel", name, [_layout(x) for x in args], None)
            running[-1].explained(len(context.tape.events), row)
        return None

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = getattr(self, "call", None)
        if call is None or not call.heard:
            return dispatch(self, func, types, args, kwargs)
        running.append(call.phase)
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            running.pop()

    yield kernels, "temporaries", temporaries
    yield kernels, "beforehand", beforehand
    yield tracer.Tracer, "__torch_dispatch__", dispatched


def _kernel(name: str, args: Any) -> tuple[str | None, tuple[Any, ...]]:
    """Return which rule of ops.temporaries says what a kernel allocates, and what it is given."""
    if name == "sort":
        return name, args
    if name in PRODUCTS:
        return "product", (name == "addmm",)
    return kernels.rule_of(name, args) or (None, ())


def _layout(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return TensorLayout(tuple(x.shape), dtype_of(x.dtype), tuple(x.stride()))
    if isinstance(x, list | tuple):
        return [_layout(item) for item in x]
    return x if isinstance(x, bool | int | float | str) or x is None else None
