"""Lines of several programs, side by side: those of all once, tensors named alike where they are.

Instructions of two programs are one where they do the same in the same module, and then their
tensors get the same names. Where an instruction alone differs, what it makes has one name in both,
so that what follows is one again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Any

from vrambudget.program.form import Row
from vrambudget.program.rows import makes, renamed, tensors

Placed = tuple[list[Any] | None, Row]
"""An instruction and the state that it runs in: what its `at` says."""


@dataclass(slots=True)
class SharedLine:
    """A line, and which of the programs have it."""

    state: list[Any] | None
    row: Row
    of: set[int]
    form: str  # what it has in common with lines of other names
    ends: list["SharedLine"] = field(default_factory=list)  # what is freed then


def _lines(
    program: Iterable[Placed], number: int, inputs: Mapping[str, str]
) -> Iterator[SharedLine]:
    """Yield a program's lines. Their forms say of a tensor in which module it was made."""
    homes = dict(inputs)
    line: SharedLine | None = None
    for state, (word, value) in program:
        if word == "del" and line is not None:
            line.ends.append(SharedLine(None, (word, value), {number}, ""))
            continue
        for name in makes(word, value):
            homes[name] = f"{state and state[0]} {value[0] if word == 'op' else word}"
        names = {name: homes.get(name, "given") for name in tensors(value)}
        plain = renamed(value, names, lambda path: path)
        form = f"of {number}" if word == "repeat" else json.dumps([state, word, plain])
        line = SharedLine(state, (word, value), {number}, form)
        yield line


def _operation(line: SharedLine) -> str:
    """Return what is run, and on what that is no tensor, without options."""
    word, value = line.row
    if word not in {"op", "call"}:
        return f"{line.of}"
    own = value[2] if word == "op" else []
    return repr((line.state, word, value[0], renamed(own, dict.fromkeys(tensors(own), "t"), str)))


def together(
    programs: Sequence[Iterable[Placed]], names: Sequence[dict[str, str]] | None = None
) -> list[SharedLine]:
    """Return the lines of programs, those of several once; `names`: what tensors are named by."""
    found: list[SharedLine] = []
    most = max((int(name[1:]) for given in names or () for name in given.values()), default=0)
    for number, program in enumerate(programs):
        own = list(_lines(program, number, {} if names is None else names[number]))
        known = None if names is None else _Names(names[number], most)
        found = _joined(found, own, known)
        most = most if known is None else known.most
    return found


class _Names:
    """What a program's tensors are named in the file."""

    def __init__(self, inputs: Mapping[str, str], most: int) -> None:
        self._own = dict(inputs)
        self.most = most

    def fit(self, own: Row, other: Row) -> bool:
        """Return whether two instructions may be one, and note which tensors are."""
        pairs = dict(zip(tensors(own[1]), tensors(other[1]), strict=True))
        new = {name: shared for name, shared in pairs.items() if name not in self._own}
        used = set(self._own.values())
        fits = all(self._own.get(name, shared) == shared for name, shared in pairs.items())
        if not fits or used & set(new.values()) or len(set(new.values())) < len(new):
            return False
        self._own |= new
        return True

    def unite(self, one: list[SharedLine], other: list[SharedLine]) -> None:
        """Name alike what operations make that differ in their options or what they are given."""
        forms = [_operation(line) for line in one], [_operation(line) for line in other]
        for at, to, size in SequenceMatcher(None, *forms, autojunk=False).get_matching_blocks():
            for k in range(size):
                made = makes(*other[to + k].row), makes(*one[at + k].row)
                if len(made[0]) == len(made[1]):
                    for name, shared in zip(*made, strict=True):
                        if name not in self._own and shared not in self._own.values():
                            self._own[name] = shared

    def named(self, row: Row) -> Row:
        """Return an instruction of this program alone; what it makes gets names that none has."""
        for name in tensors(row[1]):
            if name not in self._own:
                self.most += 1
                self._own[name] = f"t{self.most}"
        return row[0], renamed(row[1], self._own, lambda path: path)


def _joined(
    one: list[SharedLine], other: list[SharedLine], names: _Names | None
) -> list[SharedLine]:
    """Return the lines of both, in the order of each."""
    forms = [line.form for line in one], [line.form for line in other]  # no two repeats are alike
    found: list[SharedLine] = []
    differing: list[SharedLine] = []
    a = b = 0
    for at, to, size in SequenceMatcher(None, *forms, autojunk=False).get_matching_blocks():
        if names is not None:
            names.unite(one[a:at], other[b:to])
        found += [*one[a:at], *differing, *(_alone(line, names) for line in other[b:to])]
        differing = []
        for line, own in zip(one[at : at + size], other[to : to + size], strict=True):
            found += [*differing, line]
            differing = []
            if names is None or names.fit(own.row, line.row):
                line.of |= own.of
                line.ends = _joined(line.ends, _ends(own, names), None)
            else:
                names.unite([line], [own])
                differing = [_alone(own, names)]
        a, b = at + size, to + size
    return found if names is None else list(_once(found, other, names))


def _alone(line: SharedLine, names: _Names | None) -> SharedLine:
    """Return a line that one program has; what a `repeat` carries is named at the end."""
    if names is not None and line.row[0] != "repeat":
        line.row = names.named(line.row)
    line.ends = _ends(line, names)
    return line


def _ends(line: SharedLine, names: _Names | None) -> list[SharedLine]:
    """Return what is freed after a line, named as in the file."""
    if names is not None:
        for end in line.ends:
            end.row = names.named(end.row)
            end.form = repr(end.row)
    return line.ends


def _once(lines: list[SharedLine], other: list[SharedLine], names: _Names) -> Iterator[SharedLine]:
    """Yield lines, those of the other program once where a line before them is the same."""
    new = {id(line) for line in other}
    found: list[SharedLine] = []
    for line in lines:
        if id(line) in new:
            line.row = names.named(line.row) if line.row[0] == "repeat" else line.row
            same = next(_same(line, found), None)
            if same is not None:
                same.of |= line.of
                same.ends = _joined(same.ends, line.ends, None)
                continue
        found.append(line)
    yield from found


def _same(line: SharedLine, before: list[SharedLine]) -> Iterator[SharedLine]:
    """Yield lines that are the same, back to the last one of the same program."""
    for other in reversed(before):
        if other.of & line.of:
            return
        if (other.state, other.row) == (line.state, line.row):
            yield other
