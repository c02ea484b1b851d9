"""What stands around a recorded decoder's layers, where it is not Llama's: a program, too.

    begin   embeddings, positions and masks: what the first layer is called with
    end     what is behind the last layer: a norm, a projection

There is one for each way of calling the model: with a tokenizer's mask, with positions.
"""

from typing import Any

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import Model
from vrambudget.models.parts.masks import PREPARED
from vrambudget.program.bound import Env
from vrambudget.program.decoder_modules import Laid
from vrambudget.program.decoder_parts import Pass, ProgramPart
from vrambudget.program.form import Program
from vrambudget.program.rows import reads

LAYERS = "layers"
"""Stands for all layers where a program says how the model is built."""


class BodyParts:
    """What a program has of what stands before the layers, and behind them."""

    def __init__(self, program: Program) -> None:
        at = next(i for i, (word, _) in enumerate(program.code) if word == "leave")
        (_, inputs), *begin, (_, outputs) = program.code[: at + 1]
        (_, given), *end, (_, result) = program.code[at + 1 :]
        self.begin = ProgramPart(program, begin, inputs, outputs)
        self.end = ProgramPart(program, end, given, result)
        self.built = program.built
        self.kinds = {v[0]: v[1] for word, v in program.built if word == "module"}
        self.first = outputs[0]
        self.holds_first = ("del", outputs[0]) in end
        tables = [v[1] for word, v in begin if word == "op" and v[0] == "rotary"]
        self.tables = [outputs.index(name) for name in tables[0]] if tables else []
        others = (row for row in begin if row[0] != "op" or row[1][0] != "mask")
        read = {name for row in others for name in reads(*row)}
        self.counts_tokens = not read.isdisjoint(inputs[1:2])  # of a mask, whose place that is


class PlayedModel(Laid, Model):
    """A decoder's model, all of it a program's."""

    def __init__(self, config: Any) -> None:
        self.config, self.input_embeddings = config, config.called("embed_tokens")
        parts: BodyParts = config.body_parts(padded=False, placed=False)
        self.played = Pass(said=config.said), config, parts
        self.runs = [parts.begin, parts.end]
        at = next(i for i, (_, v) in enumerate(parts.built) if v[1] == LAYERS)
        self.lay(config.weights(parts.built[:at]))
        setattr(self, config.called("layers"), config.make_layers())
        self.lay(config.weights(parts.built[at:]))
        self.lay_modules()
        if config.program.source["tables"] is not None:
            self.rotary_emb = config.rotary()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Any = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        del inputs_embeds
        state, config, _ = self.played
        called = {"padded": attention_mask is not None, "placed": position_ids is not None}
        parts: BodyParts = config.body_parts(**called)
        state.prepare(self)
        env: Env = state.parameters(parts.begin.fixed)
        own = [x for x in (input_ids, attention_mask, position_ids) if x is not None]
        env.update(zip(parts.begin.inputs, own, strict=True))
        del own
        if parts.counts_tokens and called["padded"] and attention_mask.ndim == PREPARED:
            raise NotModelledError(
                f"transformers' {config.model_type} counts the tokens of a mask,"
                " which ends in an error with a static cache",
                hint="use --cache dynamic",
            )
        seen = 0 if past_key_values is None else past_key_values.seen
        B, T = input_ids.shape
        rows = 1 if position_ids is None else position_ids.shape[0]
        state.sizes = {**config.widths(), "batch": B, "length": T, "cached": seen + T, "rows": rows}
        state.dtype = state.tables = state.weights or context.options.dtype
        state.cache = past_key_values
        try:
            hidden_states, *others = parts.begin.run(env, state, training=self.training)
            if not parts.holds_first:
                del env[parts.first]
            del position_ids, attention_mask
            rotary = tuple(others[i - 1] for i in parts.tables)
            for layer in self.module("layers"):
                outputs = layer(
                    hidden_states, rotary, tuple(others), past_key_values=past_key_values
                )
                hidden_states = outputs[0] if isinstance(outputs, tuple) else outputs
            held = outputs if isinstance(outputs, tuple) else None
            del outputs
            env |= state.parameters(parts.end.fixed)
            env[parts.end.inputs[0]] = hidden_states
            del hidden_states
            state.dtype = env[parts.end.inputs[0]].dtype
            y: Tensor = parts.end.run(env, state, training=self.training)
        finally:
            state.cache = None
        del held  # until here
        return y
