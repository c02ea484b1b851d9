"""The modules that a denoiser checkpoints as layers of its program: from `enter` to `leave`.

A checkpointed module may lie deep in another ("down_blocks.0.resnets.1"), so which they are is
found by asking the model itself, and not by what is a list of layers. What a unit frees of tensors
that it was given goes behind it: its caller holds them until it returns.
"""

import re
from collections.abc import Sequence

from vrambudget.program.form import Row
from vrambudget.program.rows import makes


def with_units(code: Sequence[Row], checkpointed: Sequence[str]) -> list[Row]:
    """Return code where each of these modules is a layer; "*" in a path is a number.

    Others of its list may be none: a UNet's middle checkpoints all of its resnets but the first.
    """
    wanted = "|".join(re.escape(path).replace(r"\*", r"\d+") for path in checkpointed)
    pattern = re.compile(rf"(?:{wanted})")
    found: list[Row] = []
    path, at = "", 0
    while at < len(code):
        word, value = code[at]
        path = value[0] if word == "at" else path
        if word not in {"enter", "leave"}:
            found.append(code[at])
        elif wanted and pattern.fullmatch(path):
            end = _end(code, at + 1, path)
            found += _unit(code[at:end])
            at = end
            continue
        at += 1
    return found


def _end(code: Sequence[Row], start: int, layer: str) -> int:
    """Return where the instructions of another module begin."""
    for at in range(start, len(code)):
        word, value = code[at]
        if word in {"repeat", "next"}:
            return at
        if word == "at" and not f"{value[0]}.".startswith(f"{layer}."):
            return at
    return len(code)


def _unit(rows: Sequence[Row]) -> list[Row]:
    own = {name for row in rows for name in makes(*row)}
    inside = [row for row in rows if row[0] not in {"enter", "leave"}]
    behind = [row for row in inside if row[0] == "del" and row[1] not in own]
    inside = [row for row in inside if row not in behind]
    return [rows[0], *inside, ("leave", []), *behind]


def checkpoints(path: str, checkpointed: Sequence[str]) -> bool:
    """Return whether layers of a stack are among the modules that are checkpointed."""
    return {path, starred(path)} & {each.rpartition(".")[0] for each in checkpointed} != set()


def starred(path: str) -> str:
    """Return a path with "*" for numbers."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", path)
