"""Modules of recorded decoders whose instructions hooks act on: norms, and routers of experts.

Routers, shared experts and layers without experts are the program's. What experts do with their
rows a job decides, and not a type's code: models.parts.experts has it, grouped or one by one.
"""

from collections.abc import Callable
from typing import Any

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.layers import Norm
from vrambudget.models.parts.moe import Router
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.program.bound import Env
from vrambudget.program.decoder_parts import Pass, ProgramPart
from vrambudget.program.player import KINDS, WITH_BIAS

Weights = list[tuple[str, Callable[[], Tensor]]]
"""The weights and buffers of a module, each with what allocates it."""


class _ReadLate(Env):
    """Tensors by name; a weight, or what stands in for it, is made where it is read first.

    What is another module's is read there (MiniMax M2's correction of scores).
    """

    def __init__(self, owner: Parametrised, state: Pass) -> None:
        self._owner, self._others = owner, state.owners

    def __missing__(self, name: str) -> Tensor:
        if name in self._others:
            found: Tensor = getattr(*self._others[name])
            return found
        return self._owner.value(name.rpartition(".")[2])


class PlayedRouter(Router):
    """A router whose forward pass is a program's."""

    def __init__(self, part: ProgramPart, state: Pass) -> None:
        Parametrised.__init__(self)
        self.played = part, state

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        part, state = self.played
        env: Env = _ReadLate(self, state)
        env[part.inputs[0]] = hidden_states
        found: tuple[Tensor, Tensor, Tensor] = part.run(env, state, training=self.training)
        return found


class PlayedNorm(Norm):
    """A module of a few operations, a norm, whose forward pass is a program's."""

    def __init__(self, part: ProgramPart, state: Pass | None = None) -> None:
        self.played = part, state

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        part, state = self.played
        if state is None:
            batch, length, width = hidden_states.shape
            sizes = {"batch": batch, "length": length, "hidden_size": width}
            state = Pass(paths={"": self.path}, sizes=sizes, dtype=hidden_states.dtype)
        env: Env = {name: getattr(self, name[1:].rpartition(".")[2]) for name in part.fixed}
        env[part.inputs[0]] = hidden_states
        outer = state.dtype, state.keeps
        if hidden_states.dtype.is_floating_point:  # a norm returns what it is given
            state.dtype, state.keeps = hidden_states.dtype, True
        try:
            y: Tensor = part.run(env, state, training=self.training)
        finally:
            state.dtype, state.keeps = outer
        return y


class Laid(Module):
    """A module whose weights, and the modules that have them, a program names.

    `played`: the pass that runs, the configuration, and what the program has; `runs`: its code.
    """

    played: tuple[Pass, Any, Any]
    runs: list[ProgramPart]

    def lay(self, weights: Weights) -> None:
        """Allocate weights, each in its module."""
        state = self.played[0]
        fixed = {name for part in self.runs for name in part.fixed}
        for part in self.runs:
            for path, inner in part.inner.items():  # read here, or by one that has none such
                fixed |= {name for name in inner.fixed if name[1:].rpartition(".")[0] != path}
        for name, allocated in weights:
            path, _, last = name.rpartition(".")
            owner = self._module(path)
            setattr(owner, last, allocated())
            if f"@{name}" in fixed:  # others' modules may be replaced
                state.owners[f"@{name}"] = owner, last

    def lay_modules(self) -> None:
        """Make the modules that have no weights."""
        for path, kind in self.played[2].kinds.items():
            if kind == "Dropout":  # a loop may switch modules off
                self._module(path)
        for module in self.modules():
            if isinstance(module, WITH_BIAS) and "bias" not in vars(module):
                module.bias = None

    def _module(self, path: str) -> Any:
        """Return the module at a path, made where it is not there yet."""
        if not path:
            return self
        above, _, last = path.rpartition(".")
        owner = vars(self._module(above))
        if last not in owner:
            owner[last] = self._made(path)
        return owner[last]

    def _made(self, path: str) -> Module:
        state, config, parts = self.played
        for part in self.runs:
            inner = part.inner.get(path)
            if inner is not None:
                return PlayedRouter(inner, state) if inner.routes else PlayedNorm(inner, state)
            if path == part.experts:
                made: Module = config.experts_class(config.hidden_act)
                return made
        kind = KINDS.get(parts.kinds.get(path, ""))
        return config.inner(path) if kind is None else kind.__new__(kind)
