"""The instructions of a program at a depth: repeated layers, as often as the depth says.

A `repeat` holds a cycle of layers as they were recorded, first layer `first`, `period` of them. In
each further round the tensors that it makes get names of their own ("t30.2"), its layers their
numbers, and what it took from before it is what the round before made (`carry`). A model that has
only the layers before the cycle ends with the last of them, where that does what the last one does.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from vrambudget.errors import NotModelledError, TooLargeError
from vrambudget.program.form import Program, Row, with_paths
from vrambudget.program.rows import makes, reads, renamed

MOST_LAYERS = 2**11
MOST_ROWS = 1_000_000
"""Of all layers; 94 layers of a mixture of experts have 30,000."""


class RecordedStack:
    """A list of layers: how many there are, and which of them were recorded."""

    def __init__(self, row: Any, depths: Mapping[str, int], program: Program) -> None:
        self.is_short = False  # it has no layer behind those before the cycle
        self.path: str
        self.first: int
        self.recorded: int
        self.path, self.key, self.first, self.period, self.recorded, self.checkpoints = row
        self.layers: int = self.recorded if self.key is None else depths[self.key]
        self.rounds, where = 1, program.where
        if self.period is None:
            if self.layers != self.recorded:
                raise NotModelledError(
                    f"{self.key} is {self.layers}; the program is of {self.recorded}", where=where
                )
            return
        self.is_short = self.layers == self.first and shortened(program, self) is not None
        if self.is_short:
            self.rounds = 0
            return
        self.rounds, rest = divmod(self.layers - self.first - 1, self.period)
        if rest or self.rounds < 0 or self.layers > MOST_LAYERS:
            raise NotModelledError(
                f"{self.key} is {self.layers}; the program is of"
                f" {self.first + 1} layers, {self.first + 1 + self.period}, ...",
                where=where,
            )

    def renamed(self, path: str, at: int) -> str:
        """Return a path or parameter's name in round `at` of the cycle; the last layer is last."""
        if not path.startswith(self.path + "."):
            return path
        head, _, rest = path[len(self.path) + 1 :].partition(".")
        if not head.isdigit():
            return path
        number = int(head)
        if number == self.recorded - 1:
            number = self.layers - 1
        elif self.first <= number < self.first + (self.period or 0):
            number += at * self.period
        return f"{self.path}.{number}" + (f".{rest}" if rest else "")

    def original(self, number: int) -> int:
        """Return the recorded layer that a layer is like."""
        if self.period is None or number < self.first:
            return number
        if number == self.layers - 1:
            return self.recorded - 1
        return self.first + (number - self.first) % int(self.period)


def unfolded(program: Program, sizes: Mapping[str, int]) -> "Unfolded":
    """Return a program's code at these depths, made once for each."""
    key = tuple(sizes[row[1]] for row in program.stacks if row[1] is not None)
    if key not in program.unfolded:
        program.unfolded[key] = Unfolded(program, sizes)
    found: Unfolded = program.unfolded[key]
    return found


class Unfolded:
    """A program's rows at given depths."""

    def __init__(self, program: Program, depths: Mapping[str, int]) -> None:
        self.program = program
        self.stacks = [RecordedStack(row, depths, program) for row in program.stacks]
        self.each: dict[str, list[str]] = {}  # the names of a cycle's tensor, round by round
        rows, own = program.code, dict[str, str]()
        for stack in self.stacks:
            if stack.is_short:
                rows, names = shortened(program, stack, rows) or (rows, {})
                own |= names
        if own:  # a tensor of the last layer, or of no layer
            every, left = ({n for row in x for n in makes(*row)} for x in (program.code, rows))
            self.each = {n: [own[n]] if n in own else [] for n in every - left}
        self.code = list(self._code(rows))
        self.has_rounds = any(word == "repeat" for word, _ in self.code)
        self.blocks: dict[Any, Any] = {}  # of the code, by what of it is played
        self._built: dict[int, list[Row]] = {}

    @cached_property
    def _by_layer(self) -> dict[str, str]:
        return _forms(self.program.code)

    def forms(self, stack: RecordedStack) -> list[int]:
        """Return of each layer a number that layers share whose instructions are the same."""
        numbers: dict[str, int] = {}
        own = {
            path: numbers.setdefault(form, len(numbers)) for path, form in self._by_layer.items()
        }
        return [own.get(f"{stack.path}.{stack.original(i)}", -1) for i in range(stack.layers)]

    def _renamed(self, text: str, at: int = 0) -> str:
        for stack in self.stacks:
            if stack.period is not None:
                text = stack.renamed(text, at)
        return text

    def _within(self, path: str) -> RecordedStack | None:
        """Return the stack of whose cycle a path is a layer."""
        for stack in self.stacks:
            if stack.period is not None and path.startswith(stack.path + "."):
                head = path[len(stack.path) + 1 :].partition(".")[0]
                if head.isdigit() and stack.first <= int(head) < stack.first + stack.period:
                    return stack
        return None

    def built(self, rows: list[Row]) -> list[Row]:
        """Return how the model is built by rows of the program."""
        if id(rows) not in self._built:
            self._built[id(rows)] = [*self._repeated(rows)]
        return self._built[id(rows)]

    def _repeated(self, rows: list[Row]) -> Iterator[Row]:
        """Yield rows that build; neighbouring rows of a cycle are repeated together."""
        block: list[Row] = []
        inside: RecordedStack | None = None
        ends = tuple(f"{s.path}.{s.recorded - 1}." for s in self.stacks if s.is_short)
        for word, value in rows:
            name = value if isinstance(value, str) else value[0]
            if ends and f"{name}.".startswith(ends):
                continue
            found = self._within(name)
            if found is not inside or found is None:
                yield from self._rounds(block, inside)
                block, inside = [], found
            block.append((word, value))
        yield from self._rounds(block, inside)

    def _rounds(self, block: list[Row], stack: RecordedStack | None) -> Iterator[Row]:
        for at in range(stack.rounds if stack else 1):
            for word, value in block:
                if isinstance(value, str):
                    yield word, self._renamed(value, at)
                    continue
                named = [self._renamed(x, at) if isinstance(x, str) else x for x in value[:2]]
                yield word, [*named, *value[2:]]

    def _code(self, rows: list[Row]) -> Iterator[Row]:
        at = 0
        names: dict[str, str] = {}
        while at < len(rows):
            word, value = rows[at]
            if word != "repeat":
                yield from self._plain(word, value, names)
                at += 1
                continue
            end = next(i for i in range(at, len(rows)) if rows[i][0] == "next")
            if value[0][:1] == "=":  # a video's pieces: program.rounds, when its frames are known
                yield from rows[at : end + 1]
                at = end + 1
                continue
            stack = next(s for s in self.stacks if s.path == value[0])
            yield from self._cycle(rows[at + 1 : end], stack, value[1], names)
            at = end + 1

    def _cycle(
        self, body: list[Row], stack: RecordedStack, carry: list[list[str]], names: dict[str, str]
    ) -> Iterator[Row]:
        if len(body) * stack.rounds > MOST_ROWS:
            raise TooLargeError(f"{stack.key} makes more than {MOST_ROWS:,} instructions")
        made = [name for row in body for name in makes(*row)]
        for name in made:
            own = [name, *(f"{name}.{i}" for i in range(1, stack.rounds))]
            self.each[name] = own[: stack.rounds]
        for at in range(stack.rounds):
            now = dict(names)
            now |= {name: self.each[name][at] for name in made}
            if at:
                now |= {before: self.each[after][at - 1] for before, after in carry}
            for word, value in body:
                yield word, self._row(word, value, now, at)
        if stack.rounds:
            names |= {name: self.each[name][-1] for name in made}
        else:
            names |= {after: before for before, after in carry}

    def _plain(self, word: str, value: Any, names: dict[str, str]) -> Iterator[Row]:
        if word == "del" and isinstance(value, dict) and "each" in value:
            for name in self.each.get(value["each"], [value["each"]]):
                yield word, name
        else:
            yield word, self._row(word, value, names, 0)

    def _row(self, word: str, value: Any, names: Mapping[str, str], at: int) -> Any:
        if word == "at":
            return [self._renamed(value[0], at), *value[1:]]
        return self._named(value, names, at)

    def _named(self, value: Any, names: Mapping[str, str], at: int) -> Any:
        return renamed(value, names, lambda path: self._renamed(path, at))

    def held(self, values: list[Any]) -> list[str]:
        """Return the names in a result, those of a cycle round by round."""
        found: list[str] = []
        for value in values:
            if isinstance(value, dict):
                found += self.each.get(value["each"], [value["each"]])
            elif value is not None:
                found.append(self.each.get(value, [value])[-1])
        return found


def shortened(
    program: Program, stack: RecordedStack, rows: list[Row] | None = None
) -> tuple[list[Row], dict[str, str]] | None:
    """Return rows without a stack's cycle and last layer, and names of what that layer made.

    None where the layer before the cycle does something else than the last one.
    """
    rows = program.code if rows is None else rows
    repeats = {row[1][0]: i for i, row in enumerate(rows) if row[0] == "repeat"}
    if stack.path not in repeats:  # none of its layers is called
        return rows, {}
    begin = repeats[stack.path]
    before, last = (f"{stack.path}.{n}" for n in (stack.first - 1, stack.recorded - 1))
    forms = _forms(program.code)
    if forms.get(before) != forms.get(last, ""):
        return None
    enters = {path: i for i, (path, row) in enumerate(with_paths(rows)) if row[0] == "enter"}
    end = next(i for i in range(enters[last], len(rows)) if rows[i][0] == "leave") + 1
    (*_, at), cycle = (row for row in rows[:end] if row[0] == "at"), rows[begin:end]
    own, made = (
        [name for row in part for name in makes(*row)]
        for part in (rows[enters[before] : begin], rows[enters[last] : end])
    )
    gone = {v for w, v in cycle if w == "del" and isinstance(v, str)}
    if len(own) != len(made) or gone - {*own, *(n for row in cycle for n in makes(*row))}:
        return None
    names = dict(zip(made, own, strict=True))
    after = [(w, renamed(v, names, str)) if w != "at" else (w, v) for w, v in rows[end:]]
    return [*rows[:begin], at, *after], names


def _forms(code: list[Row]) -> dict[str, str]:
    """Return the instructions of each layer, names by their order."""
    found: dict[str, str] = {}
    path, own = "", list[Row]()
    for word, value in code:
        if word == "at":
            path = value[0]
        if word == "enter":
            layer, own = path, []
        own.append((word, value))
        if word == "leave":
            found.setdefault(layer, _form(own, layer))
    return found


def _form(rows: list[Row], layer: str) -> str:
    names: dict[str, str] = {}

    def plain(path: str) -> str:
        return path.replace(layer, "#", 1) if (path + ".").startswith(layer + ".") else path

    text = []
    for word, value in rows:
        for name in (*reads(word, value), *makes(word, value)):
            names.setdefault(name, f"t{len(names)}")
        own = [plain(value[0]), *value[1:]] if word == "at" else value
        text.append(f"{word} {renamed(own, names, plain)}")
    return "\n".join(text)
