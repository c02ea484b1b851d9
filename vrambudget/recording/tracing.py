"""What listens around the tracer (vrambudget.traced) while a model is recorded."""

import functools
import importlib
import math
import pkgutil
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.recording import applied, general, models
from vrambudget.recording.listener import Listener
from vrambudget.recording.sized import Size, log2, report_to
from vrambudget.traced import (
    functions,
    live,
    mode,
    patches,
    rules,
)
from vrambudget.traced import (
    tensor as tensors,
)
from vrambudget.traced.rules import arithmetic, attributes
from vrambudget.traced.rules.table import getter

Patch = tuple[Any, str, Any]
_OPS = "vrambudget.ops."


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Let the next model that is traced inside be written down."""
    with ExitStack() as stack:
        for owner, name, new in (
            *general.patches(listener),
            *applied.patches(listener),
            *_of_operations(listener),
            *_of_wrappers(listener),
            *models.patches(listener),
        ):
            stack.enter_context(patch.object(owner, name, new))
        stack.enter_context(patch.dict(attributes.ATTRIBUTES, dict(_answers(listener))))
        stack.enter_context(patch.dict(rules.RULES, {torch.Tensor.type: _typed}))
        stack.enter_context(patch.object(math, "log2", log2))
        report_to(listener.compared)
        try:
            yield
        finally:
            report_to(None)


def _typed(x: Any, dtype: Any = None, **options: Any) -> Any:
    """Cast as `x.type(dtype)` does: like any other cast, which may be none."""
    if isinstance(dtype, torch.dtype) and not options:
        return arithmetic.convert(x, dtype)
    return NotImplemented


class _Operation:
    """A function of `ops` as a rule calls it: written down where it is the outermost."""

    def __init__(self, listener: Listener, name: str, function: Callable[..., Any]) -> None:
        self._listener, self._name, self._function = listener, name, function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        listener = self._listener
        if not listener.is_on or listener.depth or listener.effects is not None:
            return self._function(*args, **kwargs)
        listener.depth += 1
        try:
            result = self._function(*args, **kwargs)
        finally:
            listener.depth -= 1
        if result is not NotImplemented:
            listener.called(self._name, args, kwargs, result)
        return result


class _Operations:
    """A module of `ops` as a rule sees it."""

    def __init__(self, listener: Listener, home: types.ModuleType) -> None:
        self._listener, self._home = listener, home

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._home, name)
        if _is_operation(value) and name != "broadcast":
            value = _Operation(self._listener, _name_of(value), value)
        setattr(self, name, value)
        return value


def _is_operation(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and (
        value.__module__.startswith(_OPS) or value is to
    )


def _name_of(function: Any) -> str:
    """Return what a program calls an operation."""
    return (
        f"{function.__module__.removeprefix(_OPS).removeprefix('vrambudget.')}.{function.__name__}"
    )


def _of_operations(listener: Listener) -> Iterator[Patch]:
    for found in pkgutil.iter_modules(rules.__path__):
        importlib.import_module(f"{rules.__name__}.{found.name}")
    homes = [m for name, m in sys.modules.items() if name.startswith(rules.__name__ + ".")]
    for home in (*homes, mode):
        for name, value in list(vars(home).items()):
            if isinstance(value, types.ModuleType) and value.__name__.startswith(_OPS):
                yield home, name, _Operations(listener, value)
            elif _is_operation(value):
                yield home, name, _Operation(listener, _name_of(value), value)
            elif home is mode and name == "empty":
                yield home, name, _Operation(listener, "creation.empty", value)


def _of_wrappers(  # noqa: C901, PLR0915 - small functions side by side
    listener: Listener,
) -> Iterator[Patch]:
    make, call, handle = tensors.traced_tensor, mode.TracingMode._call, mode.TracingMode._handle  # noqa: SLF001
    handled = mode._Handled  # noqa: SLF001
    to_engine, handed, wrote = handled.to_engine, handled.handed, handled.wrote

    def wrapper(v: Tensor, known: Any = None, base: Any = None, remake: Any = None) -> Any:
        x = make(v, known, base, remake)
        if listener.is_on and v.dtype.is_floating_point:
            x.base = x.remake = None  # a base's wrapper is nobody's name
        if listener.is_on and context.thread != "autograd":
            listener.wrapped(x, v)
        return x

    def called(self: Any, *given: Any) -> Any:
        result = call(self, *given)
        if listener.is_on:
            listener.end_call()
        return result

    def handling(self: Any, func: Any, args: Any, kwargs: Any) -> Any:
        listener.given = {}
        try:
            return handle(self, func, args, kwargs)
        finally:
            listener.given = {}

    def taking(self: Any, value: Any) -> Any:
        if type(value) is Size:
            return int(value)
        v = to_engine(self, value)
        if listener.is_on and isinstance(v, Tensor):
            name = getattr(value, "named", None) if type(value) is tensors.TracedTensor else None
            if name is not None:
                listener.given[id(v)] = name
            else:
                listener.given.pop(id(v), None)
        return v

    def handing(self: Any, func: Any, result: Any, given: Any) -> Any:
        """Hand a result over; an argument that came back gets a wrapper of its own."""
        in_place = func.__name__.endswith("_") and not func.__name__.endswith("__")
        if listener.is_on and isinstance(result, Tensor) and not self.written and not in_place:
            x = self.found.get(id(result))
            if x is not None:
                name = listener.same.pop(id(result), None)
                if name is None:
                    name = listener.fresh()
                    listener.emit("alias", name, listener.of(result))
                y = make(result, x.known, x.base, x.remake)
                listener.hold(y, result, name)
                return y
        return handed(self, func, result, given)

    def writing(self: Any, v: Tensor, new: Tensor) -> None:
        if listener.is_on and new is not v:
            old = listener.temporaries.pop(id(new), None)
            name = listener.rewritten(self.found[id(v)], v, new)
            if old is not None and old[0] != name:
                listener.emit("write", name, old[0])
        wrote(self, v, new)

    for home in (mode, live, attributes, functions, patches):
        yield home, "traced_tensor", wrapper
    yield mode.TracingMode, "_call", called
    yield mode.TracingMode, "_handle", handling
    yield handled, "to_engine", taking
    yield handled, "handed", handing
    yield handled, "wrote", writing


_OF_POSITIONS = "transformers.masking_utils."
_OF_MASKS = "transformers.modeling_attn_mask_utils."
_WARNS = "transformers.modeling_utils.PreTrainedModel.warn_if_padding_and_no_attention_mask"
_LOOKS = "transformers.models.bart.modeling_bart.BartEncoderLayer.forward"
_HARMLESS = (_OF_POSITIONS, _OF_MASKS, _WARNS, _LOOKS)
"""Code that asks whether rows are packed, which positions of unpacked rows always answer the same
way, whether to warn of padding, whose answer changes nothing else, and whether states in 16 bit are
finite, as they are taken to be."""


def _caller() -> str:
    """Return the module and function whose code called torch."""
    frame: Any = sys._getframe(2)  # noqa: SLF001 - the only way to it
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if not name.startswith(("vrambudget.", "torch.", "unittest")):
            return f"{name}.{frame.f_code.co_qualname}"
        frame = frame.f_back
    return ""


def _answers(  # noqa: C901 - small functions side by side
    listener: Listener,
) -> Iterator[tuple[Any, Any]]:
    """Yield attributes that answer with sizes, or name what they return."""
    T = torch.Tensor

    def shape(_mode: Any, x: Any) -> Any:
        found = getter("shape")(x)
        return torch.Size(map(Size, found)) if listener.is_on else found

    def size(_mode: Any, x: Any, dim: int | None = None) -> Any:
        found = T.size(x) if dim is None else T.size(x, dim)
        if not listener.is_on:
            return found
        return Size(found) if isinstance(found, int) else torch.Size(map(Size, found))

    def sized(function: Any) -> Any:
        def answer(_mode: Any, x: Any, *args: Any) -> Any:
            return Size(function(x, *args)) if listener.is_on else function(x, *args)

        return answer

    again: Any = attributes

    def detach(_mode: Any, x: Any) -> Any:
        v = x.v.detach()
        if listener.is_on:
            name = listener.fresh()
            listener.emit("detach", name, listener.of(x.v))
            listener.temporaries[id(v)] = (name, v)
        if v.dtype.is_floating_point:
            return again.traced_tensor(v, x.known)
        base = x if x.base is None else x.base
        return again.traced_tensor(v, x.known, base, x.remake or (lambda value: value))

    def wanting(_mode: Any, x: Any, value: bool) -> None:  # noqa: FBT001 - torch's signature
        if listener.is_on and value:
            listener.emit("op", "creation.want_gradient", None, [x.named], {})
        x.v.requires_grad = value

    def read_back(name: str, answer: Any) -> Any:
        def answered(mode: Any, x: Any, *args: Any) -> Any:
            found = answer(mode, x, *args)
            if listener.is_on and isinstance(found, int) and not isinstance(found, bool):
                return Size(found)
            if listener.is_on and not (place := _caller()).startswith(_HARMLESS):
                listener.problem(f"{name} reads a value back in {place}: a branch may depend on it")
            return found

        return answered

    yield getter("shape"), shape
    yield T.size, size
    yield T.requires_grad.__set__, wanting  # type: ignore[attr-defined]
    function: Any
    for function in (T.numel, T.nelement, torch.numel):
        yield function, sized(function)
    for function in (getter("data"), T.detach, torch.detach):
        yield function, detach
    for name in ("item", "__int__", "__bool__"):
        function = getattr(T, name)
        yield function, read_back(name, attributes.ATTRIBUTES[function])
