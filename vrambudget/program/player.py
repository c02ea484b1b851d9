"""Plays a program on the engine: no torch, no modelling code.

`Played` is the model: its parameters, allocated in their order, in a tree of modules, so that
freezing, LoRA and paths act on it as on any other; `forward` runs the program's steps.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from vrambudget import dtypes
from vrambudget.config.job import Job
from vrambudget.engine.checkpoint import CheckpointFrame
from vrambudget.engine.context import Autocast, context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, numel
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.layers import Conv1D, Dropout, Embedding, Linear
from vrambudget.models.parts.outputs import Outputs
from vrambudget.program.bound import Bound, Env, Step, Values, names_read
from vrambudget.program.form import Program, Row
from vrambudget.program.guards import check_guards, derive
from vrambudget.program.unfold import unfolded
from vrambudget.tape.events import Purpose, Storage

_KINDS: dict[str, type[Module]] = {
    "Linear": Linear,
    "Embedding": Embedding,
    "Conv1D": Conv1D,
    "Dropout": Dropout,
}
_ADAPTED = "base_model.model."


class _Held:
    """Buffers, where walks over modules do not take them for parameters."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}


@dataclass(slots=True)
class _Run:
    """What one forward pass runs in."""

    paths: dict[str, int]
    modules: dict[str, Module]
    purpose: Purpose
    grad: bool
    autocast: Autocast | None
    training: bool
    rate: Callable[[float], float]


class Played(Module):
    """The model that a program is of."""

    def __init__(self, program: Program, sizes: dict[str, int], job: Job | None) -> None:
        self._program, self._given, self._job = program, sizes, job
        self._rows = unfolded(program, sizes)
        self._held = _Held()
        self._named: _Held = _Held()
        self._bound: dict[Any, list[_Segment]] = {}
        values = self._values(sizes)
        with made_for(Purpose.WEIGHTS):
            self._lay(values)
        source = program.source
        self.accepts_loss_kwargs = bool(source.get("accepts_loss_kwargs"))
        self.is_named_for_causal_lm = bool(source.get("is_named_for_causal_lm"))

    def _values(self, sizes: dict[str, int]) -> Values:
        autocast = None if context.autocast is None else context.autocast.dtype
        return Values(sizes, context.options.dtype, autocast)

    def _lay(self, values: Values) -> None:
        """Allocate parameters and buffers as the recorded model did, and make its modules."""
        storages: dict[str, Storage] = {}
        named: dict[str, Parameter] = {}
        shared: dict[str, Parameter] = {}
        modules: dict[str, Module] = {"": self}
        self._kinds: dict[str, str] = {}
        for word, value in self._rows.built:
            if word == "new":
                label, shape, dtype, operation = value
                storages[label] = _storage(values, shape, dtype, operation)
            elif word == "free":
                storages.pop(value, None)
            elif word == "module":
                self._kinds[value[0]] = value[1]
            elif word == "weight":
                name, label, shape, dtype, wants = value
                if label not in shared:
                    shared[label] = _parameter(values, storages.get(label), shape, dtype, wants)
                named[name] = shared[label]
            else:
                name, label, shape, dtype = value
                storage = storages.get(label) or _storage(values, [0], dtype, "empty")
                own = Tensor(tuple(values.of(shape)), values.of(dtype), storage)
                self._held.tensors["@" + name] = own
        for path, kind in self._kinds.items():
            _module(modules, path, kind)
        for name, p in named.items():
            above, _, last = name.rpartition(".")
            setattr(_module(modules, above, self._kinds.get(above)), last, p)
            self._held.tensors["@" + name] = p

    def forward(self, **batch: Tensor) -> Outputs:
        """Run the program on a batch."""
        program = self._program
        wanted = {name: shape for name, shape, _ in program.inputs}
        if set(wanted) != set(batch):
            raise NotModelledError(
                f"the program takes {', '.join(wanted)}, and the job feeds {', '.join(batch)}",
                hint="pip install 'vrambudget[torch]' traces the model itself",
            )
        sizes = self._sizes_of(wanted, batch)
        segments = self._segments(sizes)
        names = {name: f"t{place}" for place, name in enumerate(wanted, 1)}
        env: Env = {**self._held.tensors, **{names[name]: x for name, x in batch.items()}}
        del batch
        run = self._run()
        before = context.purpose, context.grad_enabled, context.autocast, context.tape.module
        try:
            for segment in segments:
                segment(env, run)
        finally:
            context.purpose, context.grad_enabled, context.autocast, context.tape.module = before
        result = program.result
        (logits,) = self._rows.held([result["logits"]])
        loss = self._rows.held([result["loss"]]) if result["loss"] else [logits]
        others = tuple(env[name] for name in self._rows.held(result["others"]))
        return Outputs(env[loss[0]], env[logits], others)

    def _sizes_of(self, wanted: dict[str, Any], batch: dict[str, Tensor]) -> dict[str, int]:
        """Return all sizes: the model's own, and those that the batch has."""
        sizes = dict(self._given)
        for name, shape in wanted.items():
            for text, size in zip(shape, batch[name].shape, strict=True):
                free = text[1:] if isinstance(text, str) else None
                if free in self._program.sizes:
                    if not isinstance(size, int):
                        raise NotModelledError(
                            "a program is played at one size at a time",
                            hint="sweep without --by requested",
                        )
                    sizes[free] = size
        derive(self._program, sizes)
        check_guards(self._program, sizes)
        return sizes

    def _run(self) -> _Run:
        at = {prefix[:-1]: module for prefix, module in self.named_modules()}
        modules = {path.removeprefix(_ADAPTED): module for path, module in at.items()}
        rate = self._job.dropout if self._job is not None else None
        return _Run(
            {path: module.path for path, module in modules.items()},
            modules,
            context.purpose,
            context.grad_enabled,
            context.autocast,
            self.training,
            (lambda p: p) if rate is None else (lambda p: rate if p else p),
        )

    def _segments(self, sizes: dict[str, int]) -> list["_Segment"]:
        """Return the steps at these sizes: runs of instructions, each of a layer or of none."""
        autocast = None if context.autocast is None else context.autocast.dtype
        key = tuple(sizes.values()), autocast
        if key not in self._bound:
            bound = Bound(self._program, self._values(sizes), self._kinds)
            result = self._program.result
            kept = {
                n
                for v in result.values()
                for n in self._rows.held(v if isinstance(v, list) else [v])
            }
            self._bound[key] = [
                _Segment(layer, rows, bound, kept, self) for layer, rows in self._runs()
            ]
        return self._bound[key]

    def _runs(self) -> list[tuple[str | None, list[Row]]]:
        runs: list[tuple[str | None, list[Row]]] = []
        stacks = [stack.path for stack in self._rows.stacks]
        at: Row | None = None
        for row in self._rows.code:
            word, value = row
            if word == "at":
                at = row
                layer = _layer_of(value[0], stacks)
                if not runs or runs[-1][0] != layer:
                    runs.append((layer, []))
            elif not runs:
                runs.append((None, []))
            runs[-1][1].append(row)
        del at
        return runs


def _layer_of(path: str, stacks: list[str]) -> str | None:
    for stack in stacks:
        if path.startswith(stack + "."):
            return f"{stack}.{path[len(stack) + 1 :].partition('.')[0]}"
    return None


def _storage(values: Values, shape: list[Any], dtype: str | None, operation: str) -> Storage:
    own = values.of(dtype) if dtype else dtypes.uint8
    sizes = tuple(values.of(shape))
    context.operation = operation
    content = (sizes, own)
    return Storage(context.tape, numel(sizes) * own.itemsize, context.purpose, operation, content)


def _parameter(
    values: Values,
    storage: Storage | None,
    shape: list[Any],
    dtype: str,
    wants: bool,  # noqa: FBT001
) -> Parameter:
    p = Parameter.__new__(Parameter)
    own = storage or _storage(values, [0], dtype, "empty")
    Tensor.__init__(p, tuple(values.of(shape)), values.of(dtype), own)
    p.requires_grad = wants
    return p


def _module(modules: dict[str, Module], path: str, kind: str | None = None) -> Module:
    """Return the module at a path, made with those above it where there is none."""
    if path not in modules:
        above, _, last = path.rpartition(".")
        outer = _module(modules, above)
        made = _KINDS.get(kind or "", Module)
        module = modules[path] = made.__new__(made)
        if made in {Linear, Conv1D}:
            module.bias = None  # type: ignore[attr-defined]
        if last in vars(outer):
            raise VramBudgetError(f"{path} stands twice in the program")
        setattr(outer, last, module)
    return modules[path]


class _Segment:
    """A run of instructions; a layer's may be checkpointed."""

    def __init__(
        self, layer: str | None, rows: list[Row], bound: Bound, kept: set[str], model: Played
    ) -> None:
        self._layer = layer
        self._steps: list[Step] = []
        self._reads = names_read(rows)
        path = ""
        for word, value in rows:
            path = value[0] if word == "at" else path
            if word == "del" and value in kept:
                continue
            step = bound.step(word, value, path)
            if step is not None:
                self._steps.append(step)
        del model

    def __call__(self, env: Env, run: _Run) -> None:
        if self._layer is None or not (context.options.checkpointing and run.training and run.grad):
            self._do(env, run)
            return
        inputs = {name: env[name] for name in self._reads}
        fixed = {name: x for name, x in env.items() if name[0] == "@"}
        state = context.purpose, context.tape.module
        outer = run.autocast
        calm = _Run(run.paths, run.modules, run.purpose, True, None, run.training, run.rate)  # noqa: FBT003
        del outer

        def again() -> None:
            before = context.purpose, context.tape.module, context.grad_enabled, context.autocast
            context.purpose, context.tape.module = state
            calm.autocast = context.autocast
            try:
                self._do({**fixed, **inputs}, calm)
            finally:
                calm.autocast = None
                (
                    context.purpose,
                    context.tape.module,
                    context.grad_enabled,
                    context.autocast,
                ) = before

        before, context.frame = context.frame, CheckpointFrame(again)
        try:
            self._do(env, run)
        finally:
            context.frame = before

    def _do(self, env: Env, run: _Run) -> None:
        for step in self._steps:
            step(env, run)
