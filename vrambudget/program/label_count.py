"""A causal language model's loss by a count of labels, where a recording has the mean alone.

ForCausalLMLoss is recognised by what it does to labels: it pads them by one, and has the rest.
Given `num_items_in_batch`, the same sum is divided by it; Trainer gives it in each training step.

Source: transformers loss/loss_utils.py (ForCausalLMLoss, fixed_cross_entropy), 5.17.
"""

from dataclasses import replace
from typing import Any

from vrambudget.program.form import COUNT, Program, Row
from vrambudget.program.rows import makes

_SCALAR = ["tensor", ["new", 0], [], "~float32"]
_NEW = ["new", 0, [], "~float32", "div", None]
_DIVIDED = [
    *("div", None, [["keep", 0], _NEW], [["in", 1]]),
    [["Div", 1, [["in", 0], None], [0]]],
    [*_SCALAR, "^like x0", False, [0, 0]],
    [],
    [[0, [[_NEW], [[*_SCALAR, "^like dy0", False], None]]]],
]
"""loss / num_items_in_batch, by the general rule."""


def with_count(program: Program) -> Program | None:
    """Return the program of a model that may be given a count; None for another loss."""
    if any(name == COUNT for name, *_ in program.inputs):
        return program
    if program.by_count is None and (at := _loss(program)) is not None:
        program.by_count = _with_count(program, at)
    return program.by_count


def _loss(program: Program) -> int | None:
    """Return where ForCausalLMLoss computes the program's loss, None if something else does."""
    labels = next((own[3] for own in program.inputs if own[0] == "labels"), None)
    is_padded = False
    for i, (word, value) in enumerate(program.code):
        if word == "call" and value[1] == [labels]:
            is_padded = program.effects[value[0]][0] == "pad"
        if word == "op" and value[0] == "loss.cross_entropy":
            return i if is_padded and value[1] == program.result["loss"] else None
    return None


def _with_count(program: Program, at: int) -> Program:
    made = [name for row in program.code for name in makes(*row)]
    made += [name for *_, name in program.inputs]
    most = max(int(name[1:].partition(".")[0]) for name in made)
    count, mean, loss = f"t{most + 1}", f"t{most + 2}", program.result["loss"]
    within = [value for word, value in program.code[:at] if word == "given"]
    divided: list[Row] = [
        ("given", COUNT),
        ("call", [len(program.effects), [loss, count], [mean]]),
        ("write", [loss, mean]),
        ("given", within[-1] if within else None),
    ]
    inputs: list[Any] = [*program.inputs, [COUNT, [], "~int64", count]]
    return replace(
        program,
        inputs=inputs,
        effects=[*program.effects, _DIVIDED],
        code=[*program.code[: at + 1], *divided, *program.code[at + 1 :]],
        unfolded={},
    )
