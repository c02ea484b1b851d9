"""Reads the file of a program (its form: `form`), and says of a bad one which line is wrong."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from vrambudget.bounded import check
from vrambudget.config.versions import as_numbers
from vrambudget.errors import VramBudgetError
from vrambudget.expressions import LARGEST, formula, names_in
from vrambudget.program.form import (
    BUILT,
    FORM,
    HEAD,
    HEADS,
    KINDS,
    LISTS,
    MOST_LINES,
    USUAL,
    Case,
    Program,
    Row,
    Variant,
    is_of,
    is_tensor,
    whole,
)
from vrambudget.program.rows import moved, renamed

_OF_STACK = 6  # words: path, depth, first, period, recorded, checkpoints
_FORMS = {2, FORM}  # 2: one program alone, or nothing that `only` would say
MISFITS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError),
    TypeError,
    ValueError,
)


@contextmanager
def named_errors(where: str) -> Iterator[None]:
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
    return whole(read_heads(text, where))


def read_heads(text: str, where: str) -> list[Variant]:
    """Return the programs of a text, each read when it is needed, and its head before it."""
    lines = text.splitlines()
    if not lines or lines[0].partition(" ")[0] != HEAD:
        raise VramBudgetError(f"this is no program: it begins without {HEAD!r}", where=where)
    if lines[0] not in {f"{HEAD} {form}" for form in _FORMS}:
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
    return _File(lines, where).variants()


class _File:
    """A file's lines, each with the jobs that it is for; read once, by the first that asks."""

    def __init__(self, lines: list[str], where: str) -> None:
        self._where, self._texts = where, lines
        self._rows: dict[int, Row] = {}
        self._lines: list[tuple[int, Any]] = []
        self._heads: list[tuple[int, Any]] = []  # those of them that choosing asks for
        self._cases: list[Case] = []
        scope: Any = None
        scopes: dict[str, Any] = {}  # one for all lines that say the same
        for number in range(2, len(lines)):
            word = self._word(number)
            if word == "only":
                line = lines[number - 1]
                scope = scopes[line] = scopes[line] if line in scopes else self._said(number)
            elif word == "when":
                self._cases.append(self._said(number))
            else:
                self._lines.append((number, scope))
                if word in HEADS:
                    self._heads.append((number, scope))

    def _row(self, number: int) -> Row:
        if number not in self._rows:
            self._rows[number] = _parsed(self._texts[number - 1], number, self._where)
        return self._rows[number]

    def _said(self, number: int) -> Any:
        """Return what `when` or `only` says of jobs."""
        found = self._row(number)[1]
        try:
            cases = found if isinstance(found, list) else [{} if found is None else found]
            for each in cases if self._word(number) == "only" else [found]:
                for words in each.values():
                    set(list.copy(words))
                for version in each.get("transformers", ()):
                    as_numbers(version)
        except MISFITS:
            raise _unreadable(self._texts[number - 1], number, self._where) from None
        return found

    def variants(self) -> list[Variant]:
        """Return the programs, the first one's jobs first."""
        return [
            Variant(case, partial(self._of, case), read_head=partial(self._head_of, case))
            for case in self._cases or [{}]
        ]

    def _head_of(self, case: Case) -> Program:
        """Return what decides whether a case's program is that of a configuration and a job."""
        program = Program(where=self._where, when=case)
        _read([(n, *self._row(n)) for n, _ in _kept(self._heads, case)], program)
        return _alone(program) if program.body else program

    def _of(self, case: Case) -> Program:
        """Return the program of a case: its lines, and how the model is built with each key."""
        program = Program(where=self._where, when=case)
        own = list(_kept(self._lines, case))
        built = [row for row in own if self._word(row[0]) in BUILT]
        _read([(n, *self._row(n)) for n, _ in own if self._word(n) not in BUILT], program)
        ways = {key: rule["in"] for key, rule in program.keys.items() if "in" in rule}
        usual = case | {key: [values[0]] for key, values in ways.items()}
        program.built = self._built(built, usual, program.used)
        for key, values in ways.items():
            program.builds.append(
                [key, values[1], self._built(built, usual | {key: [values[1]]}, program.used)]
            )
        _check_keys(program)
        return _alone(program) if program.body else program

    def _built(self, lines: list[tuple[int, Any]], case: Case, used: set[str]) -> list[Row]:
        own = Program(where=self._where, used=used)
        _read([(n, *self._row(n)) for n, _ in _kept(lines, case)], own)
        return own.built

    def _word(self, number: int) -> str:
        return self._texts[number - 1].partition(" ")[0]


def _kept(lines: list[tuple[int, Any]], case: Case) -> Iterator[tuple[int, Any]]:
    """Yield the lines that a case keeps, by what each says of jobs."""
    known: dict[int, bool] = {}
    for number, scope in lines:
        if id(scope) not in known:
            known[id(scope)] = scope is None or is_of(scope, case)
        if known[id(scope)]:
            yield number, scope


def _check_keys(program: Program) -> None:
    """Raise where a configuration could say what no line listens to, or where none says a depth."""
    free = {key for key, rule in program.keys.items() if rule.get("free")}
    for key in sorted(free - program.used, key=str):
        raise VramBudgetError(
            f"the program takes any {key}, and no line uses it", where=program.where
        )
    for _, depth, *_ in program.stacks:
        if program.keys and depth is not None and depth not in free | program.sizes.keys():
            raise VramBudgetError(
                f"a stack is as deep as {str(depth)[:60]}, which is no key of the program",
                where=program.where,
            )


def _alone(program: Program) -> Program:
    """Return the program of a body that is no part of another model."""
    home = f"{program.body}."
    move = partial(moved, path=lambda path: f"{path}.".removeprefix(home).removesuffix("."))
    program.stacks = [move("stack", row)[1] for row in program.stacks]
    program.built = [move(*row) for row in program.built]
    program.builds = [[k, v, [move(*row) for row in rows]] for k, v, rows in program.builds]
    program.code = [move(*row) for row in program.code]
    return program


def _read(rows: Iterable[tuple[int, str, Any]], program: Program) -> None:
    """Add rows, each with its line's number, to a program."""
    depth, path = 0, ""
    for number, word, value in rows:
        try:
            depth += (word == "repeat") - (word == "next")
            full = value
            if word == "at":
                full = [value, *USUAL] if isinstance(value, str) else value
                path = full[0]
            elif word in {"op", "call", "alias", "detach"}:
                full = renamed(value, {}, partial(_full, path))
            elif word == "weight" and isinstance(value, str):
                lies = next(v for w, v in program.built[::-1] if w == "new" and v[0] == value)
                full = [value, value, *lies[1:3], True]
            _add(program, word, full, depth)
        except VramBudgetError as error:
            error.where = f"{program.where}, line {number}"
            raise
        except (*MISFITS, StopIteration):
            raise _unreadable(f"{word} {json.dumps(value)}", number, program.where) from None
    if depth:
        raise VramBudgetError("a repeat has no end ('next')", where=program.where)


def _full(module: str, path: str) -> str:
    """Return the name of a parameter; ".weight" is one of the module that runs."""
    return f"{module}{path}" if path[:1] == "." else path


def _parsed(line: str, number: int, where: str) -> tuple[str, Any]:
    word, _, rest = line.partition(" ")
    try:
        value = json.loads(rest, parse_int=_whole)
        check(value)
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


def _add(program: Program, word: str, value: Any, depth: int) -> None:
    if depth not in {0, 1}:
        raise VramBudgetError("repeats stand side by side, not within each other")
    if word in {"source", "result", "body"}:
        setattr(program, word, str(value) if word == "body" else dict(value))
    elif word == "key":
        program.keys[value[0]] = dict(value[1])
    elif word == "size":
        program.sizes[value[0]] = value[1]
        if value[1] is not None:
            formula(value[1])
    elif word == "input":
        program.inputs.append([*value, f"t{len(program.inputs) + 1}"][:4])
    elif word in LISTS:
        getattr(program, LISTS[word]).append(_stack(value) if word == "stack" else value)
    elif word in BUILT:
        program.built.append((word, value))
    elif word in KINDS:
        _check(program, word, value)
        program.code.append((word, value))
    else:
        raise VramBudgetError(f"{word[:30]!r} is no word of a program")
    _note_sizes(program, word, value)


def _note_sizes(program: Program, word: str, value: Any) -> None:
    """Check expressions, and note which sizes a line uses."""
    if word in {"guard", "stack", "size"}:
        own = value[1:] if word == "size" else value[:3]
        program.used.update(*(names_in(text) for text in _texts(own)))
    elif word != "source":
        for text in _texts(value):
            if text[:1] == "=":
                program.used |= names_in(text[1:])
                if word != "key":
                    formula(text[1:])


def _stack(row: Any) -> Any:
    """Return the words of a stack of layers. Raises ValueError where they are others."""
    if len(row) != _OF_STACK or not isinstance(row[1], str | None):
        raise ValueError(row)
    return row


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
    if word == "del" and not is_tensor(
        value if isinstance(value, str) else next(iter(value.values()))
    ):
        raise VramBudgetError(f"{value!r} is no tensor")
