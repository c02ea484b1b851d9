"""A program at known sizes and types: each instruction a step that runs on tensors by name."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import VramBudgetError
from vrambudget.program.effects import General
from vrambudget.program.form import Program, Row, is_tensor
from vrambudget.program.operand_types import TypedByOperands
from vrambudget.program.rows import makes, reads
from vrambudget.program.values import Values
from vrambudget.tape.events import Purpose

Env = dict[str, Tensor]
Step = Callable[[Env, Any], None]


class Bound:
    """All steps of a program, and the layer that each belongs to."""

    def __init__(
        self,
        program: Program,
        values: Values,
        kinds: Mapping[str, str],
        *,
        by_operands: bool = False,
    ) -> None:
        self._values, self._kinds, self._by_operands = values, kinds, by_operands
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
        if word == "round":
            self._values, self._effects = self._values.at(round=value), {}
        return None

    def parameters(self, rows: Iterable[Row]) -> dict[str, None]:
        """Return the parameters and buffers that instructions read themselves, each once."""
        found: dict[str, None] = {}
        path = ""
        for word, value in rows:
            path = value[0] if word == "at" else path
            of = self._module_of(value[0], path, value[2]) if word == "op" else None
            read = value if of is None else value[2][of]  # its module reads its own
            found |= dict.fromkeys(_parameters_in(word, read))
        return found

    def _call(self, value: list[Any]) -> Step:
        number, groups, names = value
        general = self._effects.get(number)
        if general is None:
            general = self._effects[number] = self._values.effects(self._program.effects[number])
        count = len(general.outs)
        if len(names) != count:
            raise VramBudgetError(f"effects {number} make {count} tensors, not {len(names)}")
        arguments, effects = _Arguments(groups), self._program.effects[number]
        run = TypedByOperands(general, effects, self._values) if self._by_operands else general

        def step(env: Env, _run: Any) -> None:
            for name, y in zip(names, run(arguments(env)), strict=True):
                env[name] = y

        return step

    def _op(self, value: list[Any], path: str) -> Step:
        name, outs, args, options = value
        module = self._module_of(name, path, args)
        args = [self._argument(x) for x in args]
        options = {key: self._argument(x) for key, x in options.items()}
        if module is not None:
            return _of_module(path, args[module], outs)
        if name.startswith("cache."):
            return _cached(name, path, outs, args)
        run = self._values.function(name)
        arguments = _Arguments(args)
        if name == "dropout.dropout":
            return _dropout(run, arguments, args, outs, path)
        if "dropout" in options and name.startswith("attention"):
            return _attention(run, arguments, options, outs)
        given = _Arguments(list(options.values())) if options else None
        keys = list(options)
        if isinstance(outs, str) and given is None:

            def simple(env: Env, _run: Any) -> None:
                env[outs] = run(*arguments(env))

            return simple

        def step(env: Env, _run: Any) -> None:
            named = {} if given is None else dict(zip(keys, given(env), strict=True))
            _put(env, outs, run(*arguments(env), **named))

        return step

    def _module_of(self, name: str, path: str, args: list[Any]) -> int | None:
        """Return which argument a module reads whose own call this is, None for others."""
        kind = self._kinds.get(path)
        if kind == "LayerNorm" and name == "norm.layer_norm" and args[1] == f"@{path}.weight":
            return 0 if len(args) == 3 and args[2] in {None, f"@{path}.bias"} else None  # noqa: PLR2004
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


class _Arguments:
    """A call's arguments, with the tensors of an environment in their names' place."""

    __slots__ = ("_fixed", "_names", "_nested")

    def __init__(self, args: list[Any]) -> None:
        self._fixed = [None if _is_name(x) else x for x in args]
        self._names = [(i, x) for i, x in enumerate(args) if _is_name(x)]
        self._nested = [
            (i, _Arguments(x)) for i, x in enumerate(args) if isinstance(x, list) and _holds_name(x)
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
    def step(env: Env, state: Any) -> None:
        env[outs] = state.modules[path](env[x])

    return step


def _dropout(
    function: Callable[..., Any], arguments: _Arguments, args: list[Any], outs: str, path: str
) -> Step:
    rate = args[1]

    def step(env: Env, state: Any) -> None:
        module = state.modules.get(path)  # one that a loop switched off has a rate of its own
        own = rate if module is None else vars(module).get("p", rate)
        env[outs] = function(arguments(env)[0], own, training=state.run.training)

    return step


def _attention(
    function: Callable[..., Any], arguments: _Arguments, options: dict[str, Any], outs: Any
) -> Step:
    rate = options["dropout"]
    given = _Arguments(list(options.values()))
    keys = list(options)

    def step(env: Env, state: Any) -> None:
        named = dict(zip(keys, given(env), strict=True))
        named["dropout"] = rate if state.run.training else 0.0
        _put(env, outs, function(*arguments(env), **named))

    return step


def _cached(name: str, path: str, outs: list[str], args: list[str]) -> Step:
    """Bind a step of an encoder-decoder's cache (recording.generation), of the layer that runs."""
    number = next((int(part) for part in path.split(".") if part.isdigit()), 0)

    def step(env: Env, state: Any) -> None:
        is_cross = name in {"cache.update_cross", "cache.read"}
        cache = state.cache.cross_attention if is_cross else state.cache.self_attention
        layer = cache.layers[number]
        if name == "cache.length":
            env[outs[0]] = layer.cumulative_length
            return
        found = layer.update(*[env[x] for x in args]) if args else (layer.keys, layer.values)
        env.update(zip(outs, found, strict=True))

    return step


def _at(path: str, is_output: bool, grad: bool, autocast: bool) -> Step:  # noqa: FBT001 - a row
    def step(_env: Env, state: Any) -> None:
        run = state.run
        if state.entered is not None:
            state.entered(path)
        paths = state.paths  # an activation is of the module that calls it
        context.tape.module = paths.get(path) or paths.get(path.rpartition(".")[0], 0)
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


def _parameters_in(word: str, value: Any) -> list[str]:
    """Return the parameters and buffers that an instruction reads."""
    if word not in {"op", "call", "alias", "detach", "write"}:
        return []
    found: list[str] = []
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            found += [item] if item[:1] == "@" else []
        elif isinstance(item, list):
            stack += item
        elif isinstance(item, dict):
            stack += item.values()
    return found
