"""A program at known sizes and types: each instruction a step that runs on tensors by name."""

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import VramBudgetError
from vrambudget.program.effects import General
from vrambudget.program.expressions import value as size_of
from vrambudget.program.form import TYPES, Program, Row, is_tensor
from vrambudget.program.unfold import makes, reads
from vrambudget.tape.events import Purpose

Env = dict[str, Tensor]
Step = Callable[[Env, Any], None]
_MODULE = re.compile(r"[a-z_]+(\.[a-z_]+)*\.[a-z]\w*")
_BESIDE: dict[str, Any] = {"engine.autocast.to": to, "creation.empty": empty}


def operation_of(found: Any) -> Callable[..., Any]:
    """Return what is known to be called."""
    called: Callable[..., Any] = found
    return called


@cache
def operation(name: str) -> Callable[..., Any]:
    """Return an operation of `ops` by its name. Raises VramBudgetError where there is none."""
    found: Any
    if name in _BESIDE:
        return operation_of(_BESIDE[name])
    if _MODULE.fullmatch(name):
        home, _, own = name.rpartition(".")
        try:
            found = getattr(import_module(f"vrambudget.ops.{home}"), own, None)
        except ImportError:
            found = None
        if isinstance(found, FunctionType) and found.__module__ == f"vrambudget.ops.{home}":
            return operation_of(found)
    raise VramBudgetError(f"{name[:60]!r} is no operation of this version")


class Values:
    """What sizes, types and layouts in a program stand for."""

    def __init__(self, sizes: Mapping[str, int], weights: DType, autocast: DType | None) -> None:
        self._sizes = sizes
        self._types = TYPES | {"W": weights, "C": autocast or weights}
        self._autocast = autocast
        self._known: dict[str, int] = {}

    def of_text(self, text: str) -> Any:
        """Return what a coded text is."""
        kind, rest = text[0], text[1:]
        if kind == "=":
            if rest not in self._known:
                self._known[rest] = size_of(rest, self._sizes)
            return self._known[rest]
        if kind == "~":
            return self._type(rest)
        if kind == "^":
            words = rest.split()
            number = words[1].lstrip("xdy")
            return (words[0], int(number), *map(int, words[2:]))
        return text

    def _type(self, name: str) -> DType:
        if name.startswith("A:"):
            return self._autocast or self._types[name[2:]]
        if name not in self._types:
            raise VramBudgetError(f"{name[:20]!r} is no type")
        return self._types[name]

    def of(self, value: Any, *, shapes: bool = False) -> Any:
        """Return a value; with `shapes`, lists of numbers are tuples."""
        if isinstance(value, str):
            return self.of_text(value) if value[:1] in "=~^" and value else value
        if isinstance(value, list):
            found = [self.of(x, shapes=shapes) for x in value]
            is_shape = shapes and all(type(x) is int for x in found)
            return tuple(found) if is_shape else found
        if isinstance(value, dict):
            ((kind, inner),) = value.items()
            shape, dtype, strides = inner
            del kind
            own = tuple(self.of(strides)) if strides is not None else None
            return tuple(self.of(shape)), self.of(dtype), own
        return value

    def effects(self, row: list[Any]) -> General:
        """Return a call by the general rule at these sizes."""
        return General([row[0], row[1], *(self.of(x, shapes=True) for x in row[2:])])


class Bound:
    """All steps of a program, and the layer that each belongs to."""

    def __init__(self, program: Program, values: Values, kinds: Mapping[str, str]) -> None:
        self._values, self._kinds = values, kinds
        self._effects: dict[int, General] = {}
        self._program = program

    def step(  # noqa: PLR0911 - one a kind of instruction
        self, word: str, value: Any, path: str
    ) -> Step | None:
        """Return an instruction's step; None for what only the recording needs."""
        if word == "op":
            return self._op(value, path)
        if word == "call":
            return self._call(value)
        if word == "at":
            return _at(*value)
        if word == "del":
            return _free(value)
        if word == "alias":
            return _alias(*value)
        if word == "detach":
            return _detach(*value)
        if word == "write":
            return _write(*value)
        return None

    def _call(self, value: list[Any]) -> Step:
        number, groups, names = value
        general = self._effects.get(number)
        if general is None:
            general = self._effects[number] = self._values.effects(self._program.effects[number])
        count = len(general.outs)
        if len(names) != count:
            raise VramBudgetError(f"effects {number} make {count} tensors, not {len(names)}")
        taken = _Taken(groups)

        def step(env: Env, _run: Any) -> None:
            for name, y in zip(names, general(taken(env)), strict=True):
                env[name] = y

        return step

    def _op(self, value: list[Any], path: str) -> Step:
        name, outs, args, options = value
        module = self._module_of(name, path, args)
        args = [self._argument(x) for x in args]
        options = {key: self._argument(x) for key, x in options.items()}
        if module is not None:
            return _of_module(path, args[module], outs)
        run = operation(name)
        taken = _Taken(args)
        if name == "dropout.dropout":
            return _dropout(run, taken, args, outs)
        if "dropout" in options and name.startswith("attention"):
            return _attention(run, taken, options, outs)
        given = _Taken(list(options.values())) if options else None
        keys = list(options)
        if isinstance(outs, str) and given is None:

            def simple(env: Env, _run: Any) -> None:
                env[outs] = run(*taken(env))

            return simple

        def step(env: Env, _run: Any) -> None:
            named = {} if given is None else dict(zip(keys, given(env), strict=True))
            _put(env, outs, run(*taken(env), **named))

        return step

    def _module_of(self, name: str, path: str, args: list[Any]) -> int | None:
        """Return which argument a module reads whose own call this is, None for others."""
        kind = self._kinds.get(path)
        if kind == "Linear" and name == "linear.linear" and args[1] == f"@{path}.weight":
            bias = args[2] if len(args) > 2 else None  # noqa: PLR2004
            return 0 if bias in {None, f"@{path}.bias"} else None
        if kind == "Embedding" and name == "embedding.embedding" and len(args) == 2:  # noqa: PLR2004
            return 0 if args[1] == f"@{path}.weight" else None
        return None

    def _argument(self, value: Any) -> Any:
        if isinstance(value, str):
            if value[:1] == "'":
                return _Text(value[1:])
            return value if value[:1] in {"@", "t"} else self._values.of_text(value)
        if isinstance(value, list):
            return [self._argument(x) for x in value]
        if isinstance(value, dict):
            ((kind, fields),) = value.items()
            return _thing(kind, [self._argument(x) for x in fields])
        return value


class _Text(str):
    """An argument that is text, not a tensor's name."""

    __slots__ = ()


def _thing(kind: str, fields: list[Any]) -> Any:
    """Return an argument that is an object."""
    if kind == "slice":
        return slice(*fields)
    if kind == "Geometry":
        from vrambudget.ops.convolution_kernels import Geometry  # noqa: PLC0415 - few have them

        parts: Any = [tuple(x) if isinstance(x, list) else x for x in fields]
        return Geometry(*parts)
    raise VramBudgetError(f"{kind[:30]!r} is no argument of an operation")


def _is_name(value: Any) -> bool:
    return type(value) is str and (value[:1] == "@" or is_tensor(value))


class _Taken:
    """A call's arguments, with the tensors of an environment in their names' place."""

    __slots__ = ("_fixed", "_names", "_nested")

    def __init__(self, args: list[Any]) -> None:
        self._fixed = [None if _is_name(x) else x for x in args]
        self._names = [(i, x) for i, x in enumerate(args) if _is_name(x)]
        self._nested = [
            (i, _Taken(x)) for i, x in enumerate(args) if isinstance(x, list) and _holds_name(x)
        ]

    def __call__(self, env: Env) -> list[Any]:
        found = self._fixed.copy()
        for i, name in self._names:
            found[i] = env[name]
        for i, inner in self._nested:
            found[i] = inner(env)
        return found


def _holds_name(values: list[Any]) -> bool:
    return any(_holds_name(x) if isinstance(x, list) else _is_name(x) for x in values)


def _put(env: Env, outs: Any, result: Any) -> None:
    if isinstance(outs, str):
        env[outs] = result
    elif isinstance(outs, list):
        for name, y in zip(outs, result, strict=True):
            _put(env, name, y)


def _of_module(path: str, x: str, outs: str) -> Step:
    def step(env: Env, run: Any) -> None:
        env[outs] = run.modules[path](env[x])

    return step


def _dropout(function: Callable[..., Any], taken: _Taken, args: list[Any], outs: str) -> Step:
    recorded = args[1]

    def step(env: Env, run: Any) -> None:
        env[outs] = function(taken(env)[0], run.rate(recorded), training=run.training)

    return step


def _attention(
    function: Callable[..., Any], taken: _Taken, options: dict[str, Any], outs: Any
) -> Step:
    recorded = options["dropout"]
    given = _Taken(list(options.values()))
    keys = list(options)

    def step(env: Env, run: Any) -> None:
        named = dict(zip(keys, given(env), strict=True))
        named["dropout"] = run.rate(recorded) if run.training else 0.0
        _put(env, outs, function(*taken(env), **named))

    return step


def _at(path: str, is_output: bool, grad: bool, autocast: bool) -> Step:  # noqa: FBT001 - a row
    def step(_env: Env, run: Any) -> None:
        context.tape.module = run.paths.get(path, 0)
        context.purpose = Purpose.LOGITS_AND_LOSS if is_output else run.purpose
        context.grad_enabled = run.grad if grad else False
        context.autocast = run.autocast if autocast else None

    return step


def _free(name: str) -> Step:
    def step(env: Env, _run: Any) -> None:
        env.pop(name, None)

    return step


def _alias(name: str, of: str) -> Step:
    def step(env: Env, _run: Any) -> None:
        env[name] = env[of]

    return step


def _detach(name: str, of: str) -> Step:
    def step(env: Env, _run: Any) -> None:
        env[name] = env[of].detach()

    return step


def _write(name: str, of: str) -> Step:
    def step(env: Env, _run: Any) -> None:
        env[name] = env.pop(of)

    return step


def names_read(rows: list[Row]) -> list[str]:
    """Return the tensors that a run of instructions takes from around it, each once."""
    made, found = set[str](), dict[str, None]()
    for word, value in rows:
        for name in reads(word, value):
            if name not in made:
                found[name] = None
        made.update(makes(word, value))
    return list(found)
