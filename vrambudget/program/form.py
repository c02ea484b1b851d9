"""The file of a program: text, one fact or instruction a line, each a word and JSON.

    vrambudget-program 1
    source {"class": ..., "transformers": ..., "torch": ...}
    keys {...}                      what a configuration must say, or may leave free
    size "batch"                    a free size, and what it is derived of
    guard ["length", ">", "1", true, "where it stands"]
    stack ["model.layers", "num_hidden_layers", first, period, recorded]
    new / free / weight / buffer / module     how the model is built
    input ["input_ids", ["=batch", "=length"], "~int64"]
    effects [...]                   of calls by the general rule, by number
    at ["path", logits, grad, autocast]      what follows runs in this module, under these flags
    op ["linear.linear", "t3", ["t2", "@w"], {}]
    call [0, ["t3"], ["t4"]]
    del / alias / detach / write / enter
    repeat ["model.layers", [[before, after], ...]] ... next
    result {...}
    end 123                         lines before this one: a file that is cut off has none

"t12" a tensor, "@name" a parameter, "=expression" a size, "^like x0" a layout, "~W" a type: W the
weights', C autocast's, "A:t" autocast's or t.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from vrambudget import dtypes
from vrambudget.bounded import check
from vrambudget.dtypes import DType
from vrambudget.errors import VramBudgetError
from vrambudget.program.expressions import LARGEST, formula

FORM = 1
HEAD = "vrambudget-program"
MOST_LINES = 50_000
_KINDS = frozenset(
    {"at", "op", "call", "del", "alias", "detach", "write", "enter", "repeat", "next"}
)
_LISTS = {"guard": "guards", "stack": "stacks", "effects": "effects", "input": "inputs"}
_BUILT = frozenset({"new", "free", "weight", "buffer", "module"})
_NAME = re.compile(r"t\d+(\.\d+)?")

_NAMES = (
    *("float64", "float32", "bfloat16", "float16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8"),
)
TYPES: dict[str, DType] = {n: getattr(dtypes, n) for n in _NAMES} | {"bool": dtypes.bool_}

Row = tuple[str, Any]

_MISFITS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError),
    ValueError,
)


@dataclass(slots=True)
class Program:
    """A file's content; rows are (word, value)."""

    source: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, str | None] = field(default_factory=dict)
    guards: list[Any] = field(default_factory=list)
    stacks: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    built: list[Row] = field(default_factory=list)
    code: list[Row] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    where: str = "a program"
    unfolded: dict[Any, Any] = field(default_factory=dict)  # by depths, once played


def written(program: Program) -> str:
    """Return a program's text."""
    lines = [f"{HEAD} {FORM}"]

    def add(word: str, value: Any) -> None:
        lines.append(f"{word} {json.dumps(value, ensure_ascii=False)}")

    add("source", program.source)
    for key, value in program.keys.items():
        add("key", [key, value])
    for name, derived in program.sizes.items():
        add("size", [name, derived])
    for word, name in _LISTS.items():
        for value in getattr(program, name):
            add(word, value)
    for word, value in (*program.built, *program.code):
        add(word, value)
    add("result", program.result)
    lines.append(f"end {len(lines)}")
    return "\n".join(lines) + "\n"


@contextmanager
def judging(where: str) -> Iterator[None]:
    """Make an error of lines that do not fit together one that names the program."""
    try:
        yield
    except VramBudgetError:
        raise
    except _MISFITS as error:
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
    program, depth = Program(where=where), 0
    for number, line in enumerate(lines[1:-1], 2):
        word, _, rest = line.partition(" ")
        try:
            value = json.loads(rest, parse_int=_whole)
            check(value)
            depth += (word == "repeat") - (word == "next")
            _add(program, word, value, depth)
        except VramBudgetError as error:
            error.where = f"{where}, line {number}"
            raise
        except _MISFITS:
            raise VramBudgetError(
                f"{word[:30]!r} is followed by {_short(rest)}, which it never is",
                where=f"{where}, line {number}",
            ) from None
    if depth:
        raise VramBudgetError("a repeat has no end ('next')", where=where)
    return program


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
    if word in {"source", "result"}:
        setattr(program, word, dict(value))
    elif word == "key":
        program.keys[value[0]] = value[1]
    elif word == "size":
        program.sizes[value[0]] = value[1]
        if value[1] is not None:
            formula(value[1])
    elif word in _LISTS:
        getattr(program, _LISTS[word]).append(value)
    elif word in _BUILT:
        program.built.append((word, value))
    elif word in _KINDS:
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


def is_tensor(value: Any) -> bool:
    """Return whether this names a tensor."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
