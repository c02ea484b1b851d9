"""A type's own way to attend by single operations, as a program: GPT-OSS's sinks, GPT-2's types.

Types follow the operands: under autocast a cache casts its values to the keys' type, and without
one they have autocast's.
"""

from typing import Any

from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import Attended
from vrambudget.program.bound import Env
from vrambudget.program.decoder_parts import ProgramPart
from vrambudget.program.form import Program


def eager_part(program: Program) -> ProgramPart:
    """Return what a program does with queries, keys, values and a mask."""
    (_, inputs), *rows, (_, outputs) = program.code
    return ProgramPart(program, rows, inputs, outputs, is_module=True)


def attends(  # noqa: PLR0917 - EagerAttention, of a part and a layer
    part: ProgramPart,
    layer: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    *,
    dropout_p: float,
) -> Attended:
    """[B, H, T, D], [B, Hkv, S, D] twice -> [B, T, H, D], and the probabilities."""
    state = layer.played[0]
    outer = state.sizes
    state.sizes, state.values = {**outer, "cached": key.shape[2]}, value.dtype
    env: Env = state.parameters(part.fixed)
    given: Any = query, key, value, mask
    env.update(zip(part.inputs, given, strict=True))
    try:
        attended: Attended = part.run(env, state, training=dropout_p > 0)
    finally:
        state.sizes, state.values = outer, None
    return attended
