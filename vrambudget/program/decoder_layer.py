"""A layer of a recorded decoder, which hooks, checkpoints and copies act on as on any other."""

from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.latent import cached
from vrambudget.models.parts.layers import CheckpointedLayer
from vrambudget.models.parts.rotary import Rotary
from vrambudget.program.bound import Env
from vrambudget.program.decoder_modules import Laid, Weights
from vrambudget.program.decoder_parts import Parts, Pass


class PlayedDecoderLayer(Laid, CheckpointedLayer):
    """A layer whose forward pass is the program's."""

    def __init__(self, config: Any, number: int, parts: Parts, weights: Weights) -> None:
        state = Pass(number=number, said=config.said)
        self.played = state, config, parts
        self.runs = [parts.layer, *config.eager_parts]
        self.form = id(parts)  # layers of several kinds are not identical
        self.lay(weights)
        self.lay_modules()

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary | tuple[()],
        mask: Tensor | tuple[Tensor | None, ...] | None,  # or all that it takes
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        state, config, parts = self.played
        state.prepare(self)
        state.cache = past_key_values
        state.dtype, state.eager = hidden_states.dtype, config.eager(self)
        state.tables = rotary[0].dtype if rotary else float32
        sizes = config.sizes_of(hidden_states, rotary, self.ranks)
        if "cached" in config.program.sizes:
            sizes["cached"] = cached(past_key_values, state.number, sizes["length"])
        state.sizes = sizes
        state.keeps = any(hasattr(module, "quantised") for module in self.modules())
        part = parts.layer
        env: Env = state.parameters(part.fixed)
        given: Any = hidden_states, *rotary, mask  # without a mask its name is None's
        if config.bodies:
            assert isinstance(mask, tuple)  # noqa: S101 - its body is a program
            given = hidden_states, *mask
        elif config.reads_positions:
            given = *given, position_ids
        env.update(zip(part.inputs, given, strict=True))
        try:
            y: Tensor = part.run(env, state, training=self.training)
        finally:
            state.cache = None
        return y
