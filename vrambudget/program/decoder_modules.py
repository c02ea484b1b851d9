"""Modules of recorded decoders whose instructions hooks act on: norms, and routers of experts.

Routers, shared experts and layers without experts are the program's. What experts do with their
rows a job decides, and not a type's code: models.parts.experts has it, grouped or one by one.
"""

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.layers import Norm
from vrambudget.models.parts.moe import Router
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.program.bound import Env
from vrambudget.program.decoder_parts import Pass, ProgramPart


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
        state.dtype, state.keeps = hidden_states.dtype, True  # a norm returns what it is given
        try:
            y: Tensor = part.run(env, state, training=self.training)
        finally:
            state.dtype, state.keeps = outer
        return y
