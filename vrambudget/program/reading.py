"""Reads the file of a program (its form: `form`), and says of a bad one which line is wrong."""

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from vrambudget.bounded import check
from vrambudget.errors import VramBudgetError
from vrambudget.program.expressions import LARGEST, formula
from vrambudget.program.form import (
    BUILT,
    FORM,
    HEAD,
    KINDS,
    LISTS,
    MAPPINGS,
    MOST_LINES,
    Program,
    Variant,
    is_tensor,
)

MISFITS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError),
    TypeError,
    ValueError,
)


@contextmanager
def judging(where: str) -> Iterator[None]:
    """Make an error of lines that do not fit together one that names the program."""
    try:
        yield
    except VramBudgetError:
        raise
    except MISFITS as error:
        raise VramBudgetError(
            "the program cannot be played: its lines do not fit together",
            where=where,
            hint="`vrambudget record` writes it anew",
        ) from error


def read(text: str, where: str) -> Program:
    """Return the program that a text is. Raises VramBudgetError with the line."""
    lines = text.splitlines()
    if not lines or lines[0].partition(" ")[0] != HEAD:
        raise VramBudgetError(f"this is no program: it begins without {HEAD!r}", where=where)
    if lines[0] != f"{HEAD} {FORM}":
        raise VramBudgetError(
            f"this is a program of form {lines[0].partition(' ')[2][:20]!r}; {FORM} is read here",
            where=f"{where}, line 1",
            hint="`vrambudget record` writes it anew",
        )
    if len(lines) > MOST_LINES:
        raise VramBudgetError(f"a program of {len(lines):,} lines", where=where)
    if lines[-1] != f"end {len(lines) - 1}":
        raise VramBudgetError(
            f"the program is cut off: its last line should be 'end {len(lines) - 1}'",
            where=f"{where}, line {len(lines)}",
        )
    begins = [n for n, line in enumerate(lines) if line.startswith("variant ")]
    ends = [*begins, len(lines) - 1]
    first = _read(lines[1 : ends[0]], 2, Program(where=where))
    for begin, end in itertools.pairwise(ends):
        when = _parsed(lines[begin], begin + 1, where)[1]
        like = partial(_like, first, when.pop("like", 0))
        own = partial(_variant, lines[begin + 1 : end], begin + 2, like, when)
        first.variants.append(Variant(when, own))
    return first


def _like(first: Program, number: int) -> Program:
    return first if not number else first.variants[number - 1].program


def _variant(
    lines: list[str], number: int, like: Callable[[], Program], when: dict[str, list[Any]]
) -> Program:
    """Return a variant: what it does not say is as in another program."""
    first = like()
    said = {line.partition(" ")[0] for line in lines}
    own = replace(first, when=when, code=[], unfolded={}, variants=[])
    for word, name in MAPPINGS.items():
        if word in said:
            setattr(own, name, {})
    for word, name in LISTS.items():
        if word in said:
            setattr(own, name, [])
    if said & BUILT:
        own.built, own.builds = [], []
    return _read(lines, number, own)


def _read(lines: list[str], first: int, program: Program) -> Program:
    depth = 0
    for number, line in enumerate(lines, first):
        word, value = _parsed(line, number, program.where)
        try:
            depth += (word == "repeat") - (word == "next")
            _add(program, word, value, depth)
        except VramBudgetError as error:
            error.where = f"{program.where}, line {number}"
            raise
        except MISFITS:
            raise _unreadable(line, number, program.where) from None
    if depth:
        raise VramBudgetError("a repeat has no end ('next')", where=program.where)
    return program


def _parsed(line: str, number: int, where: str) -> tuple[str, Any]:
    word, _, rest = line.partition(" ")
    try:
        value = json.loads(rest, parse_int=_whole)
        check(value)
        if word in {"when", "variant"}:  # words in lists; `like` is a number
            for name, words in value.items():
                set([words] if name == "like" else list.copy(words))
    except VramBudgetError as error:
        error.where = f"{where}, line {number}"
        raise
    except MISFITS:
        raise _unreadable(line, number, where) from None
    return word, value


def _unreadable(line: str, number: int, where: str) -> VramBudgetError:
    word, _, rest = line.partition(" ")
    return VramBudgetError(
        f"{word[:30]!r} is followed by {_short(rest)}, which it never is",
        where=f"{where}, line {number}",
    )


def _short(text: str) -> str:
    return text if len(text) < 80 else f"{text[:77]}…"  # noqa: PLR2004 - of one line


def _whole(digits: str) -> int:
    if len(digits) > len(str(LARGEST)):
        raise VramBudgetError(f"{digits[:30]}… is larger than any size")
    return int(digits)


def _add(  # noqa: C901 - one a word
    program: Program, word: str, value: Any, depth: int
) -> None:
    if depth not in {0, 1}:
        raise VramBudgetError("repeats stand side by side, not within each other")
    if word in {"source", "result", "when"}:
        setattr(program, word, dict(value))
    elif word == "otherwise":
        program.builds.append([*value, []])
    elif word == "key":
        program.keys[value[0]] = value[1]
    elif word == "size":
        program.sizes[value[0]] = value[1]
        if value[1] is not None:
            formula(value[1])
    elif word in LISTS:
        getattr(program, LISTS[word]).append(value)
    elif word in BUILT:
        (program.builds[-1][2] if program.builds else program.built).append((word, value))
    elif word in KINDS:
        _check(program, word, value)
        program.code.append((word, value))
    else:
        raise VramBudgetError(f"{word[:30]!r} is no word of a program")
    for text in _texts(value):
        if text[:1] == "=" and word not in {"key", "source", "guard"}:
            formula(text[1:])


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _texts(item)


_LENGTHS = {"at": 4, "op": 4, "call": 3, "alias": 2, "detach": 2, "write": 2, "repeat": 2}


def _check(program: Program, word: str, value: Any) -> None:
    if word in _LENGTHS and len(value) != _LENGTHS[word]:
        raise VramBudgetError(f"{word} takes {_LENGTHS[word]} parts, not {len(value)}")
    if word == "call" and not 0 <= value[0] < len(program.effects):
        raise VramBudgetError(f"effects {value[0]} stand nowhere")
    if word == "del" and not is_tensor(value if isinstance(value, str) else value["each"]):
        raise VramBudgetError(f"{value!r} is no tensor")
