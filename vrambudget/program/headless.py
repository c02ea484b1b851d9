"""A decoder's instructions without its head: its body's, and the states that they end with.

A body is the module that holds the layers; what stands behind its last instruction reads one tensor
that it made.
"""

from collections.abc import Iterable

from vrambudget.errors import NotModelledError
from vrambudget.program.bound import names_read
from vrambudget.program.form import Row, with_paths
from vrambudget.program.rows import makes


def without_head(code: Iterable[Row], stack: str) -> tuple[list[Row], str]:
    """Return the rows up to the end of the body that holds a stack, and its states' name."""
    body = stack.partition(".")[0]
    rows = [*code]
    paths = [path.partition(".")[0] for path, _ in with_paths(rows)]
    end = max((i for i, path in enumerate(paths) if path == body), default=-1) + 1
    before = [rows[i] for i in range(end) if paths[i] != body]
    made = {name for row in rows[:end] for name in makes(*row)}
    states = [name for name in names_read(rows[end:]) if name in made]
    if len(states) != 1 or any(word in {"op", "call"} for word, _ in before):
        raise NotModelledError(
            "this model's head reads more than its body's states",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs the script as it is",
        )
    return rows[:end], states[0]
