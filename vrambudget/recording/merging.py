"""One program of several recordings: sizes become expressions, types symbols.

    types   W (the weights'), C (autocast's, else W), A:x (autocast's, else x), or a name

What differs otherwise, an instruction, a name, a flag, is an `UnfitError`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.errors import VramBudgetError
from vrambudget.program.form import Program
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.raw import Effects, Lies, Name, State, TensorLayout, Thing
from vrambudget.recording.sized import Size

Precision = tuple[str, str]
"""The names of the weights' type and of autocast's; without a region, twice the same."""


class UnfitError(VramBudgetError):
    """Recordings that are not one program at different sizes."""


class Merger:
    """Merges values of several recordings, in the form of a program's file."""

    def __init__(
        self,
        fitter: Fitter,
        precisions: Sequence[Precision],
        regions: Sequence[bool] | None = None,
    ) -> None:
        self.fitter, self.precisions = fitter, precisions
        mixed = [w != c for w, c in precisions] if regions is None else regions
        self._mixed = [i for i, is_on in enumerate(mixed) if is_on]

    def merge(  # noqa: C901, PLR0911, PLR0912 - one a kind of value
        self, values: Sequence[Any], where: str = "", *, word: bool = True
    ) -> Any:
        """Return what the values are in all recordings. Raises UnfitError where they differ.

        `word`: whether plain text is a word of the form, not an argument.
        """
        first = values[0]
        kinds = {int if type(x) is Size else type(x) for x in values}
        if kinds <= {int}:
            found = self.fitter.fit([int(x) for x in values])
            if found is None:
                raise UnfitError(f"{where}: {[*values]} is no expression of the sizes")
            return found if isinstance(found, int) else "=" + found
        if len(kinds) > 1:
            raise UnfitError(f"{where}: {[str(x)[:60] for x in values]}")
        if isinstance(first, DType):
            return "~" + self._type([x.name for x in values], where)
        if isinstance(first, Lies):
            return self._lies(values, where)
        if isinstance(first, TensorLayout):
            parts = zip(*values, strict=True)
            return {"layout": [self.merge(part, where) for part in parts]}
        if isinstance(first, Thing):
            fields = [
                self.merge(part, where, word=word)
                for part in zip(*(x.fields for x in values), strict=True)
            ]
            return {first.kind: fields}
        if isinstance(first, list | tuple):
            if len({len(x) for x in values}) > 1:
                raise UnfitError(f"{where}: {[str(x)[:60] for x in values]}")
            rows = enumerate(zip(*values, strict=True))
            return [self.merge(row, f"{where}[{i}]", word=word) for i, row in rows]
        if isinstance(first, dict):
            if len({tuple(x) for x in values}) > 1:
                raise UnfitError(f"{where}: {[list(x) for x in values]}")
            return {k: self.merge([x[k] for x in values], f"{where}.{k}", word=word) for k in first}
        if any(x != first for x in values):
            raise UnfitError(f"{where}: {[str(x)[:60] for x in values]}")
        if isinstance(first, str) and not isinstance(first, Name) and not word:
            return "'" + first
        return str(first) if isinstance(first, str) else first

    def _type(self, names: list[str], where: str) -> str:
        if len(set(names)) == 1 and len({w for w, _ in self.precisions}) > 1:
            return names[0]
        if names == [w for w, _ in self.precisions]:
            return "W"
        if names == [c for _, c in self.precisions]:
            return "C"
        if len(set(names)) == 1:
            return names[0]
        for name in dict.fromkeys(names):
            if names == [c if c != w else name for w, c in self.precisions]:
                return f"A:{name}"
        raise UnfitError(f"{where}: types {names} in {self.precisions}")

    def _lies(self, values: Sequence[Lies], where: str) -> Any:
        common = [a for a in values[0].alternatives if all(a in x.alternatives for x in values)]
        if common:
            return "^" + min(common, key=lambda a: not a.startswith("like"))
        return self.merge([x.strides for x in values], where + " strides")

    def state(self, states: Sequence[State]) -> list[Any]:
        """Return an instruction's state; autocast is seen where a recording has it."""
        if len({s[:3] for s in states}) > 1:
            raise UnfitError(f"an instruction is of {sorted({s.path for s in states})}")
        mixed = {states[i].autocast for i in self._mixed}
        if len(mixed) > 1:
            raise UnfitError("autocast is on in some recordings only")
        return [*states[0][:3], mixed.pop() if mixed else True]

    def effects(self, values: Sequence[Effects]) -> list[Any]:
        """Return a call's effects, without the names of its operands and results."""
        where = values[0].name
        parts = ("name", "policy", "forward", "kept", "nodes", "outs", "writes")
        found = [self.merge([getattr(x, p) for x in values], f"{where}.{p}") for p in parts]
        backs = [[[n, *[back]] for n, back in sorted(x.backs.items())] for x in values]
        return [*found, self.merge(backs, f"{where}.backs")]


def code_of(every: Sequence[Sequence[Any]], merger: Merger) -> list[tuple[list[Any], Any]]:
    """Return the merged instructions: (state, row); a call's begins with its effects."""
    lengths = {len(rows) for rows in every}
    found = []
    for at, rows in enumerate(zip(*every, strict=False)):
        instructions = [row for _, row in rows]
        kinds = {_kind(row) for row in instructions}
        if len(kinds) > 1:
            raise UnfitError(f"instruction {at} is {' or '.join(sorted(kinds))}")
        state = merger.state([s for s, _ in rows])
        found.append((state, _instruction(instructions, merger, at)))
    if len(lengths) > 1:
        raise UnfitError(f"recordings have {sorted(lengths)} instructions")
    return found


def _kind(row: tuple[Any, ...]) -> str:
    name = row[1] if row[0] in {"op", "del"} else getattr(row[1], "name", "")
    return f"{row[0]} {name}"


def _instruction(rows: list[tuple[Any, ...]], merger: Merger, at: int) -> tuple[str, Any]:
    word = rows[0][0]
    where = f"instruction {at}, {_kind(rows[0])}"
    if word == "call":
        calls = [row[1] for row in rows]
        groups = merger.merge([x.groups for x in calls], where)
        names = merger.merge([x.names for x in calls], where)
        return word, [merger.effects(calls), groups, names]
    if word == "op":
        name, outs = rows[0][1], merger.merge([row[2] for row in rows], where)
        args = merger.merge([row[3] for row in rows], where, word=False)
        options = merger.merge([row[4] for row in rows], where, word=False)
        return word, [name, outs, args, options]
    if word in {"del", "enter", "leave"}:
        return word, merger.merge([row[1] for row in rows], where)
    return word, merger.merge([list(row[1:]) for row in rows], where)


def joined(programs: Iterable[Program]) -> Program:
    """Return the first program with the others, and theirs, as its variants; equal ones are one."""
    kept: list[Program] = []
    for program in (each.program for own in programs for each in own.every()):
        like = next((p for p in kept if _is_like(p, program)), None)
        if like is None:
            kept.append(program)
        else:
            _unite(like, program)
    first = kept[0]
    first.variants = [own.variant() for own in kept[1:]]
    return first


def _is_like(a: Program, b: Program) -> bool:
    names = ("keys", "sizes", "guards", "stacks", "inputs", "effects", "built", "code", "result")
    differ = [key for key in a.when | b.when if a.when.get(key) != b.when.get(key)]
    return len(differ) < 2 and all(getattr(a, n) == getattr(b, n) for n in names)  # noqa: PLR2004


def _unite(a: Program, b: Program) -> None:
    for key in a.when:
        a.when[key] = list(dict.fromkeys([*a.when[key], *b.when.get(key, [])]))
