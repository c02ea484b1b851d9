"""The parts of a recorded decoder: a layer, and the norm behind the last one, as steps by sizes.

What all decoders share is one step each: attention, the cache of the pass that runs, experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

from vrambudget.dtypes import DType, float32
from vrambudget.engine.context import context
from vrambudget.models.parts.attention import (
    EagerAttention,
    attend,
    eager_attention,
    repeat_kv,
)
from vrambudget.models.parts.masks import causal_mask
from vrambudget.program.bound import Bound, Env, Step
from vrambudget.program.form import Program, Row, with_paths
from vrambudget.program.layers import ENDS, Forward, PlayState, steps_of
from vrambudget.program.rows import makes, reads
from vrambudget.program.values import Values


@dataclass(slots=True)
class Pass(PlayState):
    """What the parts of a layer share, and what the pass that runs is of."""

    number: int = 0  # of the layer
    sizes: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    dtype: DType = float32  # of the hidden states
    tables: DType = float32  # of cos and sin
    eager: EagerAttention = eager_attention
    values: DType | None = None  # the type of a cache's values, where a type's own code attends
    keeps: bool = False  # linear layers return their input's type, not autocast's


_COMPOSITE = {None, "Conv1D", "FalconLinear"}
"""Kinds of modules that call several operations; None for those that are a program's."""

_MOST = 100  # sizes whose steps are kept


class ProgramPart:
    """A run of a program's instructions: what it takes, what it returns, its steps by sizes.

    Instructions of a module that has weights of its own, a norm, are its part: hooks act on it.
    """

    def __init__(
        self,
        program: Program,
        rows: Sequence[Row],
        inputs: list[str],
        outputs: list[str],
        *,
        is_module: bool = False,
    ) -> None:
        self.inputs, self._outputs = inputs, outputs
        self._program = program
        self._kinds = {value[0]: value[1] for word, value in program.built if word == "module"}
        self._steps: dict[Any, tuple[Mapping[str, int], list[Step]]] = {}  # and a vector's owner
        ops = ((path, v) for path, (word, v) in with_paths(rows) if word == "op")
        routed = ((path, v[2]) for path, v in ops if v[0] == "experts")
        found: tuple[str, list[str]] = next(routed, ("", []))
        self.experts, self._routed = found
        self._ends = [value for word, value in rows if word == "del"]
        self.inner: dict[str, ProgramPart] = {}
        self._rows = rows if is_module else [*self._with_modules(rows)]
        bound = _LayerBound(program, Values({}, float32, None), self._kinds)
        self.fixed = [*bound.parameters(self._rows)]

    @property
    def is_layer_norm(self) -> bool:
        """Whether it is torch.nn.LayerNorm's: weight decay leaves such a module out."""
        return [v[0] for word, v in self._rows if word == "op"] == ["norm.layer_norm"]

    def _with_modules(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield rows, those of a module with weights of its own as a call of it."""
        own = {
            value[0].rpartition(".")[0] for word, value in self._program.built if word == "weight"
        }
        own -= {path.rpartition(".")[0] for path in self._kinds}  # GPT-OSS's attention has sinks
        for path, group in groupby(with_paths(rows), lambda row: row[0]):
            found = [row for _, row in group]
            if path in own and self._kinds.get(path) in _COMPOSITE:
                found = self._called(path, found)
            yield from found

    def _called(self, path: str, rows: list[Row]) -> list[Row]:
        made = {name: None for row in rows for name in makes(*row)}
        ends = ("given", "del")
        outside = [row for row in rows if row[0] in ends and row[1] not in made]
        inside = [row for row in rows if row not in outside]
        own = next((v for word, v in inside if word == "op" and v[0] == "experts"), None)
        if own is not None:
            return [("module", [path, own[2], own[1]]), *outside]
        given = {name for row in inside for name in reads(*row)} - made.keys()
        gone = {v if word == "del" else v[1] for word, v in inside if word in ENDS}
        left = [name for name in made if name not in gone]
        if path in self._kinds:
            return [("module", [path, [*given], left]), *outside]
        order = dict(zip(self._routed[1:], (2, 1), strict=False))  # of what a router returns
        left.sort(key=lambda name: order.get(name, 0))
        self.inner[path] = ProgramPart(self._program, inside, [*given], left, is_module=True)
        return [("module", [path, [*given], left]), *outside]

    @property
    def routes(self) -> bool:
        """Whether it is a router: it returns more than one tensor."""
        return len(self._outputs) > 1

    def run(self, env: Env, state: Pass, *, training: bool) -> Any:
        """Run the steps on an environment.

        Where a checkpoint has all that it needs, it ends the pass: what is left goes as it would
        have.
        """
        before = context.purpose, context.grad_enabled, context.autocast, context.tape.module
        autocast = None if before[2] is None or state.keeps else before[2].dtype
        sizes = (x if isinstance(x, int) else id(x) for x in state.sizes.values())
        key = *sizes, state.dtype, state.tables, autocast, *state.said.values(), training
        key = (*key, state.values)
        if key not in self._steps:
            if len(self._steps) >= _MOST:
                self._steps.clear()
            values = Values(state.sizes, state.dtype, autocast, state.said, state.tables)
            if by_operands := state.values is not None:
                values = values.with_type("C", state.values)
            bound = _LayerBound(self._program, values, self._kinds, by_operands=by_operands)
            rows = self._rows_for(state.said, training=training)
            self._steps[key] = state.sizes, [*steps_of(bound, rows)]
        outer, state.run = state.run, Forward(before[0], before[1], before[2], training)
        try:
            for step in self._steps[key][1]:
                step(env, state)
        except BaseException:
            for name in self._ends:
                env.pop(name, None)
            raise
        finally:
            context.purpose, context.grad_enabled, context.autocast, context.tape.module = before
            state.run = outer
        own: Any = env
        left = (*(env[name] for name in self._outputs), *own.get(_WEIGHTS, ()))
        return left if len(left) > 1 else left[0]

    def _rows_for(self, said: Mapping[str, Any], *, training: bool) -> Iterator[Row]:
        """Yield rows: what is `given` a rate is done in training, where the rate is above 0."""
        within = False
        for row in self._rows:
            if row[0] == "given":
                within = row[1] is not None and not (training and said[row[1]])
            elif not within:
                yield row


class Parts:
    """What a program has: a layer, its weights and modules, and the norm behind the last one."""

    def __init__(self, program: Program) -> None:
        at = next(i for i, (word, _) in enumerate(program.code) if word == "leave")
        self.built = program.built
        self.kinds = {value[0]: value[1] for word, value in program.built if word == "module"}
        (_, inputs), *layer = program.code[:at]
        (_, outputs), (_, given), *norm, (_, result) = program.code[at:]
        self.layer = ProgramPart(program, layer, inputs, outputs)
        self.norm = ProgramPart(program, norm, given, result, is_module=True)


_SDPA = "attention.scaled_dot_product_attention"
_WEIGHTS, _SCORES = "weights", "scores"
"""What a layer that calls sdpa itself has where it attends by single operations: what it returns,
and what it holds as long as its queries."""


def _masks(outs: list[str], args: list[str | None], *, skips: bool) -> Step:
    def step(env: Env, state: Any) -> None:
        given: list[Any] = [None if name is None else env[name] for name in args]
        x, padding, positions = given
        found: Any = causal_mask(x, positions, padding, state.cache, skips=skips)
        env[outs[0]] = found

    return step


def _tables(outs: list[str], args: list[str]) -> Step:
    def step(env: Env, state: Any) -> None:
        tables = state.modules["rotary_emb"](env[args[0]], state.dtype)
        env.update(zip(outs, tables, strict=True))

    return step


class _LayerBound(Bound):
    """Binds what all decoders share, too: attention, and the cache of the pass."""

    _queries: frozenset[str] = frozenset()  # of a layer that calls sdpa itself

    def step(self, word: str, value: Any, path: str) -> Step | None:
        """Return an instruction's step."""
        if word == "del" and value in self._queries:
            return _ends(value)
        return _calls(*value) if word == "module" else super().step(word, value, path)

    def _op(self, value: list[Any], path: str) -> Step:
        name, outs, args, options = value
        if name == _SDPA:
            self._queries |= {args[0]}
            return _attends_alone(outs, [*args, options["mask"]], super()._op(value, path))
        if name == "attention.attend":
            called = {v[0] for w, v in self._program.code if w == "at"}
            drops = (p for p, kind in self._kinds.items() if kind == "Dropout" and p not in called)
            own = next((p for p in drops if p.startswith(f"{path}.")), "")
            return _attends(own, outs, args, *map(self._values.of, options.values()))
        if name in _SHARED:
            shared: Step = _SHARED[name](outs, args, **options)
            return shared
        return super()._op(value, path)


def _calls(path: str, given: list[str], results: list[str]) -> Step:
    def step(env: Env, state: Any) -> None:
        left = state.modules[path](*[env[name] for name in given])
        env.update(zip(results, left if len(results) > 1 else (left,), strict=True))

    return step


def _attends(  # a loop may switch the module off whose rate it is
    drops: str, outs: list[str], args: list[str], rate: float, cap: float | None = None
) -> Step:
    capped = None if cap is None else partial(eager_attention, soft_caps=True)

    def step(env: Env, state: Any) -> None:
        eager = capped or state.eager
        given = [env[name] for name in args]
        own = vars(state.modules[drops]).get("p", rate) if drops else rate
        attended: Any = attend(*given, dropout_p=own if state.run.training else 0.0, eager=eager)
        env.update(zip(outs, attended, strict=True))

    return step


def _attends_alone(outs: str, args: list[str], sdpa: Step) -> Step:
    def step(env: Env, state: Any) -> None:
        if context.options.attention == "sdpa":
            sdpa(env, state)
            return
        held: Any = env
        env[outs], held[_WEIGHTS], held[_SCORES] = state.eager(*[env[name] for name in args])

    return step


def _ends(query: str) -> Step:
    def step(env: Env, _state: Any) -> None:
        env.pop(query)
        env.pop(_SCORES, None)

    return step


def _updates(outs: list[str], args: list[str]) -> Step:
    def step(env: Env, state: Any) -> None:
        key, value = (env[name] for name in args)
        if state.cache is not None:
            key, value = state.cache.update(key, value, state.number)
        env.update(zip(outs, (key, value), strict=True))

    return step


def _repeats(outs: list[str], args: list[str]) -> Step:
    def step(env: Env, state: Any) -> None:
        env[outs[0]] = repeat_kv(env[args[0]], state.sizes["heads_per_group"])

    return step


_SHARED: dict[str, Any] = {
    "cache.update": _updates,
    "mask": _masks,
    "rotary": _tables,
    "repeat_kv": _repeats,
}
"""What transformers has once for all decoders, besides attention and experts."""
