"""Runs of a program's instructions: layers, which are called as modules, and what is between them.

A block takes the tensors that its instructions read, runs them, and leaves what it returns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.checkpoint import Recomputation
from vrambudget.engine.context import Autocast, context
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.layer_state import FilledByLayers, LayerPart
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.program.bound import Bound, Env, Step, names_read
from vrambudget.program.form import Row, with_paths
from vrambudget.program.rows import makes
from vrambudget.tape.events import Purpose


@dataclass(slots=True)
class Forward:
    """What one forward pass runs in."""

    purpose: Purpose
    grad: bool
    autocast: Autocast | None
    training: bool


class _LayerOutputs(LayerPart):
    """What a layer leaves besides hidden states: keys and values, each under its place."""

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield its tensors by name."""
        yield from vars(self).items()


class FurtherOutputs(FilledByLayers):
    """What the layers of a pass leave besides hidden states, until the pass has it."""

    def __init__(self) -> None:
        self.layers = defaultdict(_LayerOutputs)

    def put(self, layer: Layer, tensors: Iterable[Tensor]) -> None:
        """Take what a layer leaves."""
        vars(self.layers[layer.number]).update((f"x{n}", x) for n, x in enumerate(tensors))

    def of(self, layer: Any) -> list[Tensor]:
        """Return what a layer left, once."""
        return [*vars(self.layers.pop(layer.number)).values()]


@dataclass(slots=True)
class PlayState:
    """What a played model's blocks share: whose parameters they read, and the pass that runs."""

    owners: dict[str, tuple[Module, str]] = field(default_factory=dict)
    modules: dict[str, Module] = field(default_factory=dict)
    paths: dict[str, int] = field(default_factory=dict)
    blocks: dict[str, LayerBlock] = field(default_factory=dict)  # of layers, by path
    run: Forward | None = None
    kept: FurtherOutputs = field(default_factory=FurtherOutputs)
    cache: Any = None  # of the pass
    is_quantised: bool = False
    weights: DType | None = None  # of what is not quantised, where the rest is
    entered: Callable[[str], None] | None = None  # hears whose instructions follow

    def prepare(self, model: Module) -> None:
        """Find the modules as they are now: with adapters, and copies that are trained."""
        if self.modules:
            return
        for prefix, module in model.named_modules():
            parts = prefix[:-1].split(".")
            path = ".".join(part for part in parts if part not in _WRAPPERS)
            self.paths.setdefault(path, module.path)
            if parts[-1] not in {"base_layer", "original_module"}:
                self.modules.setdefault(path, module)
            if hasattr(module, "quantised"):
                self.is_quantised = True
            elif self.weights is None:
                own = (x for x in vars(module).values() if isinstance(x, Parameter))
                self.weights = next((p.dtype for p in own), None)

    def parameters(self, names: Sequence[str]) -> Env:
        """Return parameters and buffers by name, as they are now."""
        for path in (name[1:].rpartition(".")[0] for name in names if self.is_quantised):
            if hasattr(self.modules.get(path), "quantised"):
                raise NotModelledError(
                    f"{path} is quantised, and the recorded code reads its weight itself",
                    hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script",
                )
        return {name: getattr(*self.owners[name]) for name in names}


_WRAPPERS = {"modules_to_save"}
ENDS = {"del", "write"}


class BlockCode:
    """A run of instructions between layers, or a layer's, and the tensors that cross its ends.

    Of what it takes first what the layer before returned (`below`); what it returns as it took it
    (T5's position bias) is not returned.
    """

    def __init__(
        self, rows: Sequence[Row], layer: str | None = None, below: Sequence[str] = ()
    ) -> None:
        self.rows, self.layer = rows, layer
        read = names_read(list(rows))
        entered = [name for word, value in rows if word == "enter" for name in value]
        given = dict.fromkeys([*entered, *read])
        self.inputs = list(dict.fromkeys([*(n for n in below if n in given), *given]))
        made = dict.fromkeys(name for row in rows for name in makes(*row))
        gone = {value if word == "del" else value[1] for word, value in rows if word in ENDS}
        left = [name for word, value in rows if word == "leave" for name in value]
        stays = [name for name in made if name not in gone and name not in left]
        left = left[:1] + [name for name in left[1:] if name not in given]
        self.outputs: list[str] = left or stays
        self.kept: list[str] = stays if left else []

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Iterator[BlockCode]:
        """Yield the blocks of a program's code."""
        own: list[Row] = []
        below: list[str] = []
        at: Row | None = None
        layer: str | None = None
        for row in rows:
            if row[0] == "enter":
                layer = state_path(at)
                yield cls(own[:-1] if own and own[-1] is at else own)
                own = [at] if at is not None else []
            own.append(row)
            at = row if row[0] == "at" else at
            if row[0] == "leave":
                block = cls(own, layer, below)
                yield block
                below = block.outputs
                own, layer = [at] if at is not None else [], None
        yield cls(own)


class LayerBlock:
    """A block of a program at known sizes and types."""

    def __init__(self, code: BlockCode, bound: Bound, state: PlayState) -> None:
        self._rows, self.layer = code.rows, code.layer
        self.inputs, self.outputs, self.kept = code.inputs, code.outputs, code.kept
        self._bound, self._state = bound, state

    @cached_property
    def fixed(self) -> list[str]:
        """The parameters and buffers that its instructions read."""
        return [*self._bound.parameters(self._rows)]

    @cached_property
    def steps(self) -> list[Step]:
        """What its instructions do: of a layer that is copied nobody asks."""
        return [*steps_of(self._bound, self._rows)]

    def run(self, env: Env) -> None:
        """Run the block on the tensors of the pass."""
        if self.layer is None:
            env |= self._state.parameters(self.fixed)
            for step in self.steps:
                step(env, self._state)
            return
        module, run = self._state.modules[self.layer], self._state.run
        assert run is not None  # noqa: S101 - a pass runs
        self._state.blocks[self.layer] = self
        context.grad_enabled, context.autocast = run.grad, run.autocast  # as its caller has them
        given: list[Any] = [env[name] for name in self.inputs]
        result = module(*given, **({"kept": self._state.kept} if self.kept else {}))
        if len(self.outputs) == 1:
            env[self.outputs[0]] = result
        else:
            env.update(zip(self.outputs, result, strict=True))
        if self.kept:
            env.update(zip(self.kept, self._state.kept.of(module), strict=True))


def steps_of(bound: Bound, rows: Iterable[Row]) -> Iterator[Step]:
    """Yield what instructions do."""
    for path, (word, value) in with_paths(rows):
        step = bound.step(word, value, path)
        if step is not None:
            yield step


def state_path(at: Row | None) -> str:
    """Return the module that an `at` names."""
    return "" if at is None else str(at[1][0])


class PlayedLayer(CheckpointedLayer):
    """A layer of a played model: its block's instructions."""

    def __init__(self, state: PlayState, name: str, form: int, *, checkpoints: bool) -> None:
        self.played = state, name
        self.form, self.checkpoints = form, checkpoints

    @property
    def is_stacked(self) -> bool:  # type: ignore[override]
        """Whether it is a layer of a stack whose instructions are its own."""
        return self.form >= 0

    @property
    def states(self) -> int:  # type: ignore[override]
        """How many tensors it returns."""
        state, name = self.played
        return len(state.blocks[name].outputs)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        """Run forward, checkpointed where transformers checkpoints this layer."""
        if self.checkpoints:
            return super().trace(*args, **kwargs)
        return Layer.trace(self, *args, **kwargs)

    def forward(self, *inputs: Tensor, kept: FurtherOutputs | None = None) -> Any:
        """Run the layer's instructions on what it is called with."""
        state, name = self.played
        block, run = state.blocks[name], state.run
        assert run is not None  # noqa: S101 - a pass runs
        before = context.purpose, context.grad_enabled, context.autocast
        if isinstance(context.frame, Recomputation):
            state.run = Forward(run.purpose, True, context.autocast, run.training)  # noqa: FBT003
        env = state.parameters(block.fixed)
        env.update(zip(block.inputs, inputs, strict=True))
        try:
            for step in block.steps:
                step(env, state)
        finally:
            context.purpose, context.grad_enabled, context.autocast = before
            state.run = run
        if kept is not None:
            kept.put(self, [env[name] for name in block.kept])
        if len(block.outputs) == 1:
            return env[block.outputs[0]]
        return tuple(env[name] for name in block.outputs)
