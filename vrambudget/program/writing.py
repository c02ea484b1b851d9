"""Writes the file of a model's programs (its form: `form`): what several have stands once.

The programs lie side by side, line by line. A line that not all have stands under `only`, which
names the jobs of those that have it; tensors get one name where the instructions are the same.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vrambudget.errors import VramBudgetError
from vrambudget.program.form import (
    FORM,
    HEAD,
    LISTS,
    MAPPINGS,
    USUAL,
    Case,
    Program,
    Row,
    is_of,
)
from vrambudget.program.rows import moved
from vrambudget.program.sharing import Placed, SharedLine, together


def written(program: Program) -> str:
    """Return the text of a program and its variants."""
    effects: list[Any] = []  # of all, each once
    every = [_numbered(_moved(v.program, program), effects) for v in program.every()]
    cases = [own.when for own in every]
    lines = [f"{HEAD} {FORM}", _line("source", program.source)]
    lines += [_line("when", case) for case in cases]
    names = [_inputs(every, own) for own in every]
    for word, name in {"body": "body", **MAPPINGS, **LISTS}.items():
        if word == "effects":
            lines += [_line(word, row) for row in effects]
            continue
        rows = [_rows(own, word, name, given) for own, given in zip(every, names, strict=True)]
        lines += _conditional(together(rows), cases)
    ways = [way for own in every for way in _ways(own)]
    built = together([[(None, row) for row in _short(rows)] for _, rows in ways])
    lines += _conditional(built, [case for case, _ in ways])
    code = [[*_placed(own.code), (None, ("result", own.result))] for own in every]
    lines += _conditional(together(code, names), cases)
    return "\n".join([*lines, f"end {len(lines)}"]) + "\n"


def _line(word: str, value: Any) -> str:
    return f"{word} {json.dumps(value, ensure_ascii=False)}"


def _moved(program: Program, first: Program) -> Program:
    """Return the program of a body alone with its modules where the first one's body has them."""
    outer, inner = ([row[0] for row in own.stacks] for own in (first, program))
    home = outer[0].removesuffix(f".{inner[0]}") if outer and inner else ""
    if outer == inner or [f"{home}.{path}" for path in inner] != outer:
        return program
    move = partial(moved, path=lambda path: f"{home}.{path}".rstrip("."))
    return replace(
        program,
        body=home,
        stacks=[move("stack", row)[1] for row in program.stacks],
        built=[move(*row) for row in program.built],
        builds=[[key, value, [move(*row) for row in rows]] for key, value, rows in program.builds],
        code=[move(*row) for row in program.code],
    )


def _numbered(program: Program, effects: list[Any]) -> Program:
    """Return a program whose calls' effects stand among those of all."""
    texts = [json.dumps(row) for row in effects]
    own = []
    for row in program.effects:
        if json.dumps(row) not in texts:
            texts.append(json.dumps(row))
            effects.append(row)
        own.append(texts.index(json.dumps(row)))
    code = [(w, [own[v[0]], *v[1:]] if w == "call" else v) for w, v in program.code]
    return replace(program, code=code)


def _inputs(every: Sequence[Program], program: Program) -> dict[str, str]:
    """Return a program's names of its inputs, each with the one name in the file."""
    order = dict.fromkeys(row[0] for own in every for row in own.inputs)
    shared = {name: f"t{place}" for place, name in enumerate(order, 1)}
    return {row[3]: shared[row[0]] for row in program.inputs}


def _rows(program: Program, word: str, name: str, names: Mapping[str, str]) -> list[Placed]:
    found = getattr(program, name)
    if word == "body":
        return [(None, (word, found))] if found else []
    if word in MAPPINGS:
        return [(None, (word, [*item])) for item in found.items()]
    if word == "input":
        found = [[*row[:3], names[row[3]]] for row in found]
    return [(None, (word, row)) for row in found]


def _ways(program: Program) -> Iterator[tuple[Case, list[Row]]]:
    """Yield how a model is built: as it was recorded, and with a key's other value."""
    usual = {key: [not value] for key, value, _ in program.builds}
    yield program.when | usual, program.built
    for key, value, rows in program.builds:
        yield program.when | usual | {key: [value]}, rows


def _short(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield how a model is built, a parameter that is all its storage by its name alone."""
    lies: dict[str, Any] = {}
    for word, value in rows:
        if word == "new":
            lies[value[0]] = value[1:3]
        if word == "weight" and value == [value[0], value[0], *lies.get(value[0], ()), True]:
            yield word, value[0]
        else:
            yield word, value


def _placed(code: Iterable[Row]) -> Iterator[Placed]:
    """Yield instructions with their states, parameters of their own module as "@.weight"."""
    state: list[Any] | None = None
    for word, value in code:
        if word == "at":
            state = value
            continue
        own = f"@{state[0]}." if state and state[0] else None
        yield None if word in _STATELESS else state, (word, _of_module(value, own))


_STATELESS = {"del", "given", "repeat", "next"}


def _of_module(value: Any, own: str | None) -> Any:
    """Return a value with the parameters of a module as "@.weight"."""
    if isinstance(value, str):
        return f"@.{value[len(own) :]}" if own and value.startswith(own) else value
    if isinstance(value, list):
        return [_of_module(x, own) for x in value]
    if isinstance(value, dict):
        return {key: _of_module(x, own) for key, x in value.items()}
    return value


def _conditional(lines: Iterable[SharedLine], cases: Sequence[Case]) -> Iterator[str]:
    """Yield lines, what not all cases have under `only`, and `at` where a state changes."""
    conditions: dict[frozenset[int], Any] = {frozenset(range(len(cases))): None}
    states: dict[int, Any] = {}
    scope = None
    for line in (each for own in lines for each in (own, *own.ends)):
        of = frozenset(line.of)
        if of not in conditions:
            conditions[of] = condition(of, cases)
        if conditions[of] != scope:
            scope = conditions[of]
            yield _line("only", scope)
        word, value = line.row
        if word in _STATELESS - {"del"}:
            states |= dict.fromkeys(of)
        elif line.state is not None and any(states.get(n) != line.state for n in of):
            states |= dict.fromkeys(of, line.state)
            yield _line("at", line.state[0] if line.state[1:] == USUAL else line.state)
        yield _line(word, value)
    if scope is not None:
        yield _line("only", None)


def condition(chosen: frozenset[int], cases: Sequence[Case]) -> Any:
    """Return what some cases have in common, and no other has: keys with values, or several."""
    keys = dict.fromkeys(key for n in sorted(chosen) for key in cases[n])
    found = {key: _values([cases[n] for n in sorted(chosen)], key) for key in keys}
    if _held(found, cases) == chosen:
        for key in keys:
            fewer = {k: v for k, v in found.items() if k != key}
            if _held(fewer, cases) == chosen:
                found = fewer
        return found
    ways = []
    for key in keys:
        groups: dict[str, set[int]] = {}
        for n in chosen:
            groups.setdefault(repr(cases[n].get(key)), set()).add(n)
        if len(groups) > 1:
            each = [condition(frozenset(group), cases) for group in groups.values()]
            ways.append([x for own in each for x in (own if isinstance(own, list) else [own])])
    if not ways:
        raise VramBudgetError(f"several programs are of the same jobs: {cases[min(chosen)]}")
    return min(ways, key=len)


def _values(cases: Sequence[Case], key: str) -> list[Any]:
    return list(dict.fromkeys(x for case in cases for x in case.get(key, ())))


def _held(found: Case, cases: Sequence[Case]) -> set[int]:
    return {n for n, case in enumerate(cases) if is_of(found, case)}
