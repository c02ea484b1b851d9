"""What a program holds a job's sizes against: each branch that its model's code took.

A comparison that comes out otherwise than while it was recorded means other operations: the program
refuses, and names tracing.
"""

from collections.abc import Callable, Sequence
from typing import Any

from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.expressions import names_in, value
from vrambudget.program.form import Program


def derive(program: Program, sizes: dict[str, int]) -> None:
    """Add the sizes that others decide."""
    for name, text in program.sizes.items():
        if text is not None and name not in sizes and all_known(text, sizes):
            sizes[name] = value(text, sizes)
            if not sizes[name]:
                whole, _, part = text.partition("//")
                raise VramBudgetError(
                    f"{part} is {sizes[part]}, larger than {whole} = {sizes[whole]}"
                )


def all_known(text: str, sizes: dict[str, int]) -> bool:
    """Return whether an expression's sizes are known."""
    return names_in(text) <= sizes.keys()


_SIGNS: dict[str, Callable[[int, int], bool]] = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "%": lambda a, b: a % b == 0,
    "&": lambda a, b: a & b != 0,  # of a and a - 1: whether a is no power of two
}


def holds(guard: Sequence[Any], sizes: dict[str, int]) -> bool:
    """Return whether a comparison comes out as it was recorded."""
    left, sign, right, outcome, _ = guard
    return _SIGNS[sign](value(left, sizes), value(right, sizes)) is bool(outcome)


def check_guards(program: Program, sizes: dict[str, int]) -> None:
    """Raise NotModelledError where the model's code would take another branch than recorded."""
    for left, sign, right, outcome, place in program.guards:
        if not (all_known(left, sizes) and all_known(right, sizes)):
            continue
        if not holds((left, sign, right, outcome, place), sizes):
            a, b = value(left, sizes), value(right, sizes)
            near = f"{left} {max(1, round(a / b)) * b} works; " if sign == "%" and outcome else ""
            raise NotModelledError(
                f"the program was recorded where {left} {sign} {right} is"
                f" {'true' if outcome else 'false'}; here they are {a} and {b}, and the model's"
                f" code takes another branch ({place})",
                hint=f"{near}its own code is traced if torch and transformers are installed:"
                " pip install 'vrambudget[torch]'; `vrambudget record` makes a program for such"
                " sizes",
            )
