"""Identical layers once: a program's rows with `repeat` in the place of layers that recur.

Of a stack's layers the first ones stay as they are (`first`), then comes a cycle of `period` layers
that recurs, and the last layer stays as it is: what it frees differs. ALBERT's one layer is called
again and again: its stack is of calls.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from vrambudget.program.form import Row
from vrambudget.program.rows import makes, reads, renamed, tensors
from vrambudget.recording.merging import UnfitError

_PERIODS = (1, 2, 3, 4, 5, 6, 8)
_MOST_HEAD = 12

Instruction = tuple[list[Any], Row]


class RepeatedLines:
    """What runs from one layer's begin to the next one's."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.rows: list[Instruction] = []

    def made(self) -> list[str]:
        """Return the tensors that it makes, in order."""
        return [name for _, row in self.rows for name in makes(*row)]


def _number(path: str, stack: str) -> int | None:
    if not path.startswith(stack + "."):
        return None
    head = path[len(stack) + 1 :].partition(".")[0]
    return int(head) if head.isdigit() else None


def calls_of(stack: str) -> str:
    """Return what a stack is called whose layers run more often than there are of them."""
    return f"{stack}()"


def _numbers(code: list[Instruction], stack: str) -> Iterator[int | None]:
    """Yield which layer each instruction is of; where layers are called again, which call."""
    own, calls = stack.removesuffix(calls_of("")), 0
    for state, (word, _) in code:
        number = _number(state[0], own)
        calls += number is not None and word == "enter"
        yield number if own == stack or number is None else calls - 1


class Folded:
    """The rows of a stack, folded; `period` is None where its layers do not recur.

    `like`: how they recur where they are called, for code that calls none.
    """

    def __init__(
        self, code: list[Instruction], stack: str, layers: int, like: list[int] | None = None
    ) -> None:
        self.stack, self.layers = stack, layers
        self.first: int | None = None
        self.period: int | None = None
        self._code = code
        self._split()
        if like is not None and not self._units:
            self.first, self.period = like
        if [unit.number for unit in self._units] != list(range(layers)):
            return
        self._find()

    def _split(self) -> None:
        """Split the code: before the first layer, layer by layer, after the last one."""
        self._before: list[Instruction] = []
        self._units: list[RepeatedLines] = []
        last = -1
        numbers = _numbers(self._code, self.stack)
        for at, ((state, row), number) in enumerate(zip(self._code, numbers, strict=True)):
            if number is not None and (not self._units or self._units[-1].number != number):
                self._units.append(RepeatedLines(number))
            (self._units[-1].rows if self._units else self._before).append((state, row))
            if number is not None:
                last = at
        self._after: list[Instruction] = []
        if self._units:
            tail = len(self._code) - 1 - last
            rows = self._units[-1].rows
            self._after = rows[len(rows) - tail :]
            del rows[len(rows) - tail :]

    def _find(self) -> None:
        forms = [self._form(i) for i in range(self.layers)]
        counts = [len(unit.made()) for unit in self._units]
        for first in range(1, min(_MOST_HEAD, self.layers)):
            for period in _PERIODS:
                rounds, rest = divmod(self.layers - first - 1, period)
                if rest or rounds < 2:  # noqa: PLR2004 - once is no cycle
                    continue
                recurs = all(
                    forms[i] is not None and forms[i] == forms[i + period]
                    for i in range(first, self.layers - 1 - period)
                )
                if recurs and counts[first - 1] == counts[first + period - 1]:
                    self.first, self.period = first, period
                    return

    def _form(self, at: int) -> Any:
        """Return a layer's rows with names by place, None where it reads what is further away."""
        if at == 0:
            return None
        own = {name: f"own{k}" for k, name in enumerate(self._units[at].made())}
        before = {name: f"before{k}" for k, name in enumerate(self._units[at - 1].made())}
        far = {n for unit in self._units[1 : at - 1] for n in unit.made()}
        names = before | own
        rows = []
        for state, (word, value) in self._units[at].rows:
            found = {*reads(word, value), *tensors(value if word == "del" else [])}
            if found & far:
                return None
            path = self._plain(state[0], at)
            rows.append(([path, *state[1:]], word, self._named(value, names, at)))
        return rows

    def _plain(self, path: str, at: int) -> str:
        layer = f"{self.stack}.{at}"
        return path.replace(layer, "#", 1) if (path + ".").startswith(layer + ".") else path

    def _named(self, value: Any, names: dict[str, str], at: int) -> Any:
        return renamed(value, names, lambda path: self._plain(path, at))

    def rows(self, held: list[Any]) -> tuple[list[Instruction], list[Any]]:
        """Return the code with the cycle once, and the result's names accordingly."""
        if self.first is None or self.period is None or not self._units:
            return self._code, held
        first, period = self.first, self.period
        head = [row for unit in self._units[:first] for row in unit.rows]
        cycle = self._units[first : first + period]
        rounds = (self.layers - first - 1) // period
        names: dict[str, str] = {}
        for at in range(1, rounds):
            for own, unit in zip(cycle, self._units[first + at * period :], strict=False):
                names |= dict(zip(unit.made(), own.made(), strict=True))
        carried = dict(zip(self._units[first - 1].made(), cycle[-1].made(), strict=True))
        read = {n for unit in cycle for _, (w, v) in unit.rows for n in _all(w, v)}
        read -= {n for unit in cycle for n in unit.made()}  # its own, not the round's before
        body = [row for unit in cycle for row in unit.rows]
        made = {n for unit in cycle for n in unit.made()}
        rest = [*self._units[-1].rows, *self._after]
        tail = self._tail(rest, names, made)
        read |= {carried_to for _, (w, v) in tail for carried_to in _all(w, v)}
        carry = [[a, b] for a, b in carried.items() if a in read or b in read]
        begin: Instruction = (["", False, True, True], ("repeat", [self.stack, carry]))
        end: Instruction = (["", False, True, True], ("next", None))
        kept: list[Any] = []
        for name in held:
            own = names.get(name, name)
            value: Any = {"each": own} if own in made else name
            if value not in kept:
                kept.append(value)
        code = [*self._before, *head, begin, *body, end, *tail]
        if self.stack.endswith(calls_of("")):  # the same module again: it is no layer of its own
            code = [row for row in code if row[1][0] not in {"enter", "leave"}]
        return code, kept

    def _tail(
        self, rows: list[Instruction], names: dict[str, str], made: set[str]
    ) -> list[Instruction]:
        """Return what follows the cycle; what frees a tensor of every round does so by one row."""
        found: list[Instruction] = []
        last = {own: name for name, own in names.items()}  # of the last round
        middle = (set(names) | made) - set(last.values())
        for state, (word, value) in rows:
            if word != "del" and middle & set(tensors(value)):
                raise UnfitError(f"a tensor of each layer is read after them, by {word} {value[0]}")
            if word == "del" and (value in names or value in made):
                own: str = names.get(value) or value
                if last.get(own) != value and value != own:
                    continue  # of a round in between
                if own == value:  # the first round's goes, and with it all others'
                    found.append((state, ("del", {"each": own})))
                    continue
                if self._goes_with_first(rows, own):
                    continue
            found.append((state, (word, self._renamed(value, names))))
        return found

    @staticmethod
    def _goes_with_first(rows: list[Instruction], own: str) -> bool:
        return any(row == ("del", own) for _, row in rows)

    def _renamed(self, value: Any, names: dict[str, str]) -> Any:
        if isinstance(value, str):
            return names.get(value, value)
        if isinstance(value, list):
            return [self._renamed(x, names) for x in value]
        if isinstance(value, dict):
            return {key: self._renamed(x, names) for key, x in value.items()}
        return value


def _all(word: str, value: Any) -> list[str]:
    return [*reads(word, value), *(tensors(value) if word == "del" else [])]


def folded_rows(rows: Sequence[Row], folded: Folded) -> list[Row] | None:
    """Return rows of how a model is built with the cycle's once; None where they do not recur."""
    if folded.first is None or folded.period is None:
        return list(rows)
    stack, first, period = folded.stack, folded.first, folded.period
    blocks: dict[int, list[Row]] = {}
    found: list[Row] = []
    for word, value in rows:
        name = value if isinstance(value, str) else value[0]
        number = _number(name, stack)
        if number is not None:
            blocks.setdefault(number, []).append((word, _plain(value, f"{stack}.{number}")))
        if number is None or not first + period <= number < folded.layers - 1:
            found.append((word, value))
    for number in range(first, folded.layers - 1 - period):
        if blocks.get(number) != blocks.get(number + period):
            return None
    return found


def _plain(value: Any, layer: str) -> Any:
    if isinstance(value, str):
        return value.replace(layer, "#", 1) if (value + ".").startswith(layer + ".") else value
    return [_plain(x, layer) for x in value] if isinstance(value, list) else value
