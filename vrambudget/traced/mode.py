"""Where each call of torch arrives while a model is traced, and which way it goes.

no traced tensor, nothing on the GPU    torch itself, on the CPU
an attribute                              answered
a call that `traced.rules` knows          the operation in `ops`
a function written in Python              its body, call by call
any other                                 the general rule (traced.meta_fallback)
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vrambudget.dtypes import int64
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError
from vrambudget.ops.creation import made
from vrambudget.ops.written import copied_into
from vrambudget.traced import casts, known, regions
from vrambudget.traced.hooks import LeafHooks
from vrambudget.traced.lines import own_line, stack
from vrambudget.traced.meta_fallback import TorchCall, mapped
from vrambudget.traced.rules import ATTRIBUTES, COUNTING, RULES, WRITING
from vrambudget.traced.tensor import GPU, TracedTensor, dtype_of, no_rule, traced_tensor

_WRITES = {"__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__iand__", "__ior__"}
_INDEXING = {"__getitem__", "__setitem__"}
_BY_MASK = _INDEXING | {"masked_select"}
_INITIALISERS = ("torch.nn.init", "transformers.initialization")  # write in place, make nothing


_OF_ITS_TYPE = {
    *(torch.Tensor.new_tensor, torch.Tensor.new_empty, torch.Tensor.new_full),
    *(torch.Tensor.new_zeros, torch.Tensor.new_ones),
}
"""What makes a tensor of another's type: with `device="cpu"` it is no tensor of the GPU."""


class TracingMode(TorchFunctionMode):
    """Hands calls to rules; `weights` are live tensors, by id, that count as traced.

    `shadows` are what the tape knows live modules by, by their ids.
    """

    def __init__(self, weights: dict[int, TracedTensor] | None = None) -> None:
        super().__init__()
        self.weights = {} if weights is None else weights
        self.shadows: dict[int, Module] = {}
        self.head = 0  # the id of the module that makes logits
        self.leaf_hooks = LeafHooks(self)
        self._held: list[torch.Tensor] = []
        self._bodies: list[Any] = []  # of the functions of torch that run now

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            return self._handle(func, args, kwargs or {})
        except NotModelledError as error:
            error.where = error.where or own_line(stack())
            raise

    def _handle(self, func: Any, args: Any, kwargs: Any) -> Any:
        answer = ATTRIBUTES.get(func)
        if answer is not None:
            x = self.traced_of(args[0])
            return func(*args, **kwargs) if x is None else answer(self, x, *args[1:], **kwargs)
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of a call of torch, by its rule or by the general one."""
        if func in _OF_ITS_TYPE and torch.device(kwargs.get("device") or GPU).type == "cpu":
            return func(torch.empty(0, dtype=args[0].dtype), *args[1:], **kwargs)
        call = _Handled(self)
        engine_args = call.to_engine(args), call.to_engine(kwargs)
        if not call.found and not _is_made_on_gpu(func, args, kwargs):
            return func(*args, **kwargs)
        regions.adopt()
        return self._call(call, func, engine_args, (args, kwargs))

    def _call(self, call: _Handled, func: Any, engine_args: Any, given: Any) -> Any:
        value = known.brought_to_host(func, given, self)
        if value is not None:
            return value
        if func is torch.Tensor.copy_ and call.copies_into_whole(*given[0][:2]):
            return call.handed(func, engine_args[0][0], given)
        rule = RULES.get(func)
        if rule is not None:
            own = engine_args[1]
            if func in COUNTING:
                own = {**own, "count": known.places(self.traced_of(given[0][0]))}
            result = rule(*engine_args[0], **own)
            if result is not NotImplemented:
                if func in WRITING:
                    call.wrote(engine_args[0][0], result)
                return call.handed(func, result, given)
        if isinstance(func, types.FunctionType):
            if func.__module__ in _INITIALISERS:
                return given[0][0] if given[0] else given[1]["tensor"]
            if func not in self._bodies:  # else a helper of its body looked for overrides for it
                del engine_args
                return self._run_body(func, *given)
        return call.handed(func, call.derived(func, *engine_args), given)

    def adopted(self, x: torch.Tensor) -> TracedTensor | None:
        """Count a live tensor that no module has as its own; None for one on the CPU."""
        if x.device.type not in (GPU.type, "meta"):
            return None
        context.operation = "attribute"
        found = self.weights[id(x)] = traced_tensor(empty(tuple(x.shape), dtype_of(x.dtype)))
        self._held.append(x)  # its id stays its own
        return found

    def _run_body(self, func: Any, args: Any, kwargs: Any) -> Any:
        self._bodies.append(func)
        try:
            with self:
                return body_of(func)(*args, **kwargs)
        finally:
            self._bodies.pop()

    def traced_of(self, x: Any) -> TracedTensor | None:
        """Return x as a traced tensor, None for what is on the CPU."""
        return x if type(x) is TracedTensor else self.weights.get(id(x))


class _Handled:
    """One call: its traced arguments, and the way back from the engine's tensors to them."""

    def __init__(self, mode: TracingMode) -> None:
        self.mode = mode
        self.found: dict[int, TracedTensor] = {}
        self.live: dict[int, torch.Tensor] = {}  # what code knows them by, if not as traced
        self.written: list[TracedTensor] = []

    def to_engine(self, value: Any) -> Any:
        """Return arguments with the engine's tensors in the place of traced ones."""
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self.to_engine(item) for item in value])
        if kind is dict:
            return {key: self.to_engine(item) for key, item in value.items()}
        if kind is TracedTensor:
            x = value
        elif isinstance(value, torch.Tensor):
            x = self.mode.weights.get(id(value))
            x = self.mode.adopted(value) if x is None else x
            if x is None:
                return value
            self.live[id(x.v)] = value
        else:
            return value
        self.found[id(x.v)] = x
        return x.v

    def derived(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result by the general rule."""
        name = func.__name__
        args, kwargs = casts.autocast_arguments(name, args, kwargs)
        in_place = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        if name == "__setitem__" and isinstance(args[2], int | float):
            args = (*args[:2], torch.tensor(args[2]))  # a number stays on the host
        if name in _INDEXING:
            args = (args[0], _index_on_gpu(args[1]), *args[2:])
        if name == "cuda":
            func, args, kwargs = torch.Tensor.to, (args[0], GPU), {}
        call = TorchCall(in_place=in_place)
        if name in _BY_MASK:
            self._count_places(args[1], call.tracer.counts)
        metas = mapped((args, kwargs), Tensor, call.meta)
        if "device" in metas[1] or any(_names_a_device(name, a) for a in metas[0]):
            metas = mapped(metas, (torch.device, str), _off_the_gpu)
            metas[1].update({"device": "meta"} if "device" in metas[1] else {})
        try:
            result = call.run(func, *metas)
        except (NotImplementedError, RuntimeError) as error:
            raise no_rule(name, error) from error
        engine_args, written = call.finish(result)
        for v, new in written.items():
            if v in self.found:
                self.wrote(self.found[v].v, new)
        return mapped(result, torch.Tensor, lambda meta: engine_args.get(id(meta), meta))

    def _count_places(self, index: Any, counts: dict[int, int]) -> None:
        """Note how many places of the masks in an index are true, where the host knows it."""
        for part in index if isinstance(index, tuple) else (index,):
            x = self.found.get(id(part))
            if x is None or x.dtype is not torch.bool:
                continue
            if (count := known.places(x, by_inputs=False)) is not None:
                counts[id(part.storage)] = count

    def copies_into_whole(self, part: TracedTensor, source: Any) -> bool:
        """Copy into a part of a tensor, whose whole has a gradient from now on (CopySlices)."""
        whole = None if part.whole is None else part.whole()
        v = self.to_engine(source)
        if whole is None or not isinstance(v, Tensor) or not v.requires_grad:
            return False
        self.found[id(whole.v)] = whole
        self.wrote(whole.v, copied_into(whole.v, v))
        self.written[-1] = part
        return True

    def wrote(self, v: Tensor, new: Tensor) -> None:
        """Let the traced tensor that was written into be the engine's `new` from now on."""
        x = self.found[id(new)] = self.found[id(v)]
        x.v = new
        self.written.append(x)

    def handed(self, func: Any, result: Any, given: Any) -> Any:
        """Return a rule's result as modelling code sees it."""
        value = known.of(func, given, self.mode) if self.found else known.made(func, given)
        value = value or known.if_finite(func, given)  # as a model's weights and states are
        for x in self.written:
            known.write(func, given, x, self.mode)

        def back(v: Tensor, item: Any, number: int | None = None) -> Any:
            x = self.found.get(id(v))
            if x is not None:
                return self.live.get(id(v), x)
            x = next((x for x in self.found.values() if x.v.storage is v.storage), None)
            if x is None:
                return traced_tensor(v, item)
            remake = known.remake(func, given, x, number, self.mode)
            return traced_tensor(v, item, x if x.base is None else x.base, remake)

        if isinstance(result, Tensor):
            return back(result, value)
        if isinstance(result, tuple | list):
            parts = [known.part(value, i) for i in range(len(result))]
            items = [
                back(v, part, number) if isinstance(v, Tensor) else v
                for number, (v, part) in enumerate(zip(result, parts, strict=True))
            ]
            kind: Any = type(result)
            return kind(*items) if hasattr(result, "_fields") else kind(items)
        return result


class _WithoutOverrides:
    """The module torch to a function that looks for overrides: there are none."""

    class overrides:  # noqa: N801 - torch's name
        """torch.overrides, as far as functions of torch ask it."""

        has_torch_function = staticmethod(lambda *_: False)
        has_torch_function_unary = staticmethod(lambda *_: False)
        has_torch_function_variadic = staticmethod(lambda *_: False)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@functools.cache
def body_of(function: types.FunctionType) -> Callable[..., Any]:
    """Return a function of torch's without its look for overrides, which would lead here again."""
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        function = wrapped
    if not isinstance(function, types.FunctionType):  # a method of C++ behind a decorator
        return function
    used = function.__code__.co_names
    names: dict[str, Any] = {
        name: (lambda *_: False) for name in used if name.startswith("has_torch_function")
    }
    if "overrides" in used:
        names["torch"] = _WithoutOverrides()
    if not names:
        return function
    body = types.FunctionType(
        function.__code__,
        {**function.__globals__, **names},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def _index_on_gpu(index: Any) -> Any:
    """Return an index with lists of numbers as tensors that were moved to the GPU.

    Source: torch/csrc/autograd/python_variable_indexing.cpp (sequenceToVariable), then
    aten/src/ATen/TensorIndexing.h (typeConvertIndices: to the tensor's device).
    """
    if isinstance(index, tuple):
        return tuple(_index_on_gpu(part) for part in index)
    if isinstance(index, list) and index and all(type(n) is int for n in index):
        return made("to_device", (len(index),), int64)
    if isinstance(index, torch.Tensor) and index.dim() and index.dtype is torch.long:
        return made("to_device", tuple(index.shape), int64)
    return index


def _is_made_on_gpu(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether a call without traced tensors makes one: torch.arange(n, device="cuda")."""
    device = kwargs.get("device")
    if device is None and func in (torch.Tensor.to, torch.Tensor.cuda):
        if func is torch.Tensor.cuda:
            return True
        device = next((a for a in args[1:2] if isinstance(a, str | torch.device)), None)
    return device is not None and torch.device(device).type == GPU.type


def _names_a_device(name: str, value: Any) -> bool:
    return isinstance(value, torch.device) or (name == "to" and isinstance(value, str))


def _off_the_gpu(value: Any) -> Any:
    """Return a device, or its name, as the one where nothing is computed; other words stay."""
    is_word = isinstance(value, str) and value.partition(":")[0] != GPU.type
    return value if is_word else torch.device("meta")
