"""The modules that do the routing in recorded decoders with experts.

Routers, shared experts and layers without experts are the program's. What experts do with their
rows a job decides, and not a type's code: models.parts.experts has it, grouped or one by one.
"""

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.moe import Router
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.program.bound import Env
from vrambudget.program.decoder_parts import Pass, ProgramPart


class _ReadLate(Env):
    """Tensors by name; a weight, or what stands in for it, is made where it is read first."""

    def __init__(self, owner: Parametrised) -> None:
        self._owner = owner

    def __missing__(self, name: str) -> Tensor:
        return self._owner.value(name.rpartition(".")[2])


class PlayedRouter(Router):
    """A router whose forward pass is a program's."""

    def __init__(self, part: ProgramPart, state: Pass) -> None:
        Parametrised.__init__(self)
        self.played = part, state

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        part, state = self.played
        env: Env = _ReadLate(self)
        env[part.inputs[0]] = hidden_states
        found: tuple[Tensor, Tensor, Tensor] = part.run(env, state, training=self.training)
        return found
