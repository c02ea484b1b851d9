"""Sizes as expressions of others: "3*batch*length", "hidden_size//heads", "layer >= first_dense".

An expression is read once, into functions of checked operators; no text is ever run. Numbers and
results are bounded, so that a file from somebody else cannot hang who reads it.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from vrambudget.errors import VramBudgetError

LARGEST = 10**18
"""Of any number in a program: bytes and elements stay far below."""

_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.GtE: operator.ge,
}
_LONGEST = 500
_MOST_POWER = 8
Sizes = Mapping[str, int]
Formula = Callable[[Sizes], int]


@lru_cache(maxsize=4096)
def formula(text: str) -> Formula:
    """Return the function of an expression. Raises VramBudgetError for anything else."""
    if len(text) > _LONGEST:
        raise VramBudgetError(f"an expression of {len(text):,} characters")
    try:
        tree = ast.parse(text, mode="eval").body
        return _formula(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise VramBudgetError(f"{text[:60]!r} is no expression of sizes") from None


@lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """Return the sizes that an expression names."""
    return frozenset(re.findall(r"[a-zA-Z_]\w*", re.sub("'[^']*'", "", text)))


def value(text: str, sizes: Sizes) -> int:
    """Return what an expression is at these sizes. Raises VramBudgetError where it is none."""
    try:
        found: Any = formula(text)(sizes)
    except KeyError as error:
        raise VramBudgetError(f"{text!r} names {error}, which is no size of the program") from None
    except ZeroDivisionError:
        raise VramBudgetError(f"{text!r} divides by zero") from None
    if isinstance(found, int) and abs(found) > LARGEST:  # else a sweep's vector of sizes
        raise VramBudgetError(f"{text!r} is larger than {LARGEST:.0e}")
    whole: int = found
    return whole


def _formula(node: ast.expr) -> Formula:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return _number(node.value)
    if isinstance(node, ast.Name):
        name = node.id
        return lambda sizes: sizes[name]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _formula(node.operand)
        return lambda sizes: -inner(sizes)
    if isinstance(node, ast.BinOp):
        return _of_two(node)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        compared = _COMPARED.get(type(node.ops[0]))
        sides = [_side(each) for each in (node.left, *node.comparators)]
        if compared is not None:
            return lambda sizes: int(compared(*(side(sizes) for side in sides)))
    raise ValueError


def _side(node: ast.expr) -> Formula:
    """Return one side of a comparison, which may be a word."""
    if isinstance(node, ast.Constant) and isinstance(word := node.value, str):
        return lambda _sizes: word  # type: ignore[return-value]
    return _formula(node)


def _number(number: int) -> Formula:
    if abs(number) > LARGEST:
        raise VramBudgetError(f"{str(number)[:30]}… is larger than any size")
    return lambda _sizes: number


def _of_two(node: ast.BinOp) -> Formula:
    left, right = _formula(node.left), _formula(node.right)
    if isinstance(node.op, ast.Add):
        return lambda sizes: left(sizes) + right(sizes)
    if isinstance(node.op, ast.Sub):
        return lambda sizes: left(sizes) - right(sizes)
    if isinstance(node.op, ast.Mult):
        return lambda sizes: _bounded(left(sizes) * right(sizes))
    if isinstance(node.op, ast.FloorDiv):
        return lambda sizes: left(sizes) // right(sizes)
    if isinstance(node.op, ast.Mod):
        return lambda sizes: left(sizes) % right(sizes)
    if isinstance(node.op, ast.Pow) and isinstance(node.right, ast.Constant):
        power = node.right.value
        if isinstance(power, int) and 0 < power <= _MOST_POWER:
            return lambda sizes: _bounded(left(sizes) ** power)
    raise ValueError


def _bounded(number: Any) -> Any:
    if isinstance(number, int) and abs(number) > LARGEST:
        raise VramBudgetError(f"a size is larger than {LARGEST:.0e}")
    return number
