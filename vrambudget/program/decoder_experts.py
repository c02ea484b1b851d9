"""Recorded decoders with experts: which layers have them, and the modules that do the routing.

Routers, shared experts and layers without experts are the program's. What experts do with their
rows a job decides, and not a type's code: models.parts.experts has it, grouped or one by one.
"""

from typing import Any, ClassVar

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.experts import Experts
from vrambudget.models.parts.moe import MoeConfig, Router
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.elementwise import ACTIVATIONS
from vrambudget.program.bound import Env
from vrambudget.program.decoder_parts import Part, Pass


class _ReadLate(Env):
    """Tensors by name; a weight, or what stands in for it, is made where it is read first."""

    def __init__(self, owner: Parametrised) -> None:
        self._owner = owner

    def __missing__(self, name: str) -> Tensor:
        return self._owner.value(name.rpartition(".")[2])


class PlayedRouter(Router):
    """A router whose forward pass is a program's."""

    def __init__(self, part: Part, state: Pass) -> None:
        Parametrised.__init__(self)
        self.played = part, state

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        part, state = self.played
        env: Env = _ReadLate(self)
        env[part.inputs[0]] = hidden_states
        found: tuple[Tensor, Tensor, Tensor] = part.run(env, state, training=self.training)
        return found


class PlayedExperts(Experts):
    """Experts whose weights are a program's."""

    def __init__(self, hidden_act: str) -> None:
        Parametrised.__init__(self)
        self.act_fn = ACTIVATIONS[hidden_act]


class PlayedMoeConfig(MoeConfig):
    """A configuration of layers with experts, some of which may have none."""

    experts_class: ClassVar[Any] = PlayedExperts
    """Made of the activation's name."""

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        found: int = getattr(self, "num_local_experts", None) or vars(self)["num_experts"]
        return found

    def is_dense(self, number: int) -> bool:
        """Return whether a layer has no experts."""
        own = vars(self)
        dense, step = own.get("mlp_only_layers") or (), own.get("decoder_sparse_step", 1)
        first = own.get("first_k_dense_replace", 0)
        return number < first or number in dense or (number + 1) % step != 0
