"""Writes down what a traced model does: calls of `ops`, effects of general calls, tensors' ends.

Each tensor that modelling code sees has a name of its own, also where a call returned its argument
(`x.to(x.dtype)`): so a program has one form whatever the precision. An allocation that no
instruction explains is a problem that is reported, never a silent gap.
"""

import math
import weakref
from typing import Any

from vrambudget.dtypes import DType
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.recording.raw import Effects, Name, State, Thing
from vrambudget.recording.sized import Comparison
from vrambudget.tape.events import Purpose, Storage


class Listener:
    """One recording of one job."""

    def __init__(self) -> None:
        self.rows: list[tuple[State, tuple[Any, ...]]] = []
        self.comparisons: list[Comparison] = []
        self.problems: list[str] = []
        self.parameters: dict[int, Name] = {}
        self.shared: dict[int, list[Name]] = {}  # all names of a parameter
        self.temporaries: dict[int, tuple[Name, Tensor]] = {}
        self.given: dict[int, Name] = {}  # of the call that runs: the wrappers' own names
        self.last: dict[int, Name] = {}
        self.same: dict[int, Name] = {}
        self.inputs: dict[str, Name] = {}
        self.facts: dict[str, Any] = {}
        self.hears_all_layers = False  # those within others, too
        self.depth = 0
        self.effects: Effects | None = None
        self.pending: Any = None
        self.is_on = False
        self.applies = False  # a function of one's own, which is one call
        self.is_building = False
        self.ends_built = False  # nothing is asked but how the model is built
        self.rates: dict[float, str] = {}  # of dropout: the keys that say them
        self.read: set[tuple[str, str]] = set()  # classes of configurations, keys
        self.missing: set[str] = set()  # keys that no configuration has and the code asks for
        self._state: State | None = None
        self._names: dict[int, dict[Name, None]] = {}
        self._held: list[Any] = []
        self._count = 0

    def compared(self, found: Comparison) -> None:
        """Note a comparison that the model's code made, in its forward pass or to be built."""
        is_asked = self.is_on or self.applies
        if is_asked or (self.is_building and not found.place.startswith("torch.")):
            self.comparisons.append(found)

    def problem(self, text: str) -> None:
        """Note what the recording cannot explain."""
        if text not in self.problems:
            self.problems.append(text)

    def fresh(self) -> Name:
        """Return a name that nothing has."""
        self._count += 1
        return Name(f"t{self._count}")

    def of(self, v: Tensor) -> Name:
        """Return the name of a tensor."""
        if id(v) in self.given:
            return self.given[id(v)]
        if id(v) in self.parameters:
            return self._parameter(v)
        if id(v) in self.temporaries:
            return self.temporaries[id(v)][0]
        held = self._names.get(id(v))
        if held:
            return next(reversed(held))
        self.problem(f"a tensor without a name: {v!r} in {context.operation}")
        return Name("t0")

    def _parameter(self, v: Tensor) -> Name:
        """Return a parameter's name, where it has several the one in the module that runs."""
        module = context.tape.module
        path = (context.tape.paths[module] if module else "") or ""
        names = self.shared.get(id(v), ())
        own = (name for name in names if name.startswith(f"@{path}."))
        return next(own, self.parameters[id(v)]) if len(names) > 1 else self.parameters[id(v)]

    def is_known(self, v: Tensor) -> bool:
        """Return whether modelling code has the tensor already."""
        return any(id(v) in names for names in (self.parameters, self._names, self.temporaries))

    def wrapped(self, x: Any, v: Tensor) -> None:
        """Name a wrapper `x` of `v` that modelling code gets."""
        if id(v) in self.parameters:
            return
        if id(v) in self.temporaries:
            name = self.temporaries.pop(id(v))[0]
        elif self._names.get(id(v)):
            name = self.fresh()
            self.emit("alias", name, self.of(v))
        else:
            self.problem(f"a tensor from nowhere: {v!r} in {context.operation}")
            return
        self.hold(x, v, name)

    def hold(self, x: Any, v: Tensor, name: Name) -> None:
        """Let the name live as long as the wrapper."""
        x.named, x.box = name, [id(v)]
        self.last[id(v)] = name
        self._names.setdefault(id(v), {})[name] = None
        weakref.finalize(x, self._gone, name, x.box).atexit = False

    def _gone(self, name: Name, box: list[int]) -> None:
        if self.is_on:
            self._forget(box[0], name)
            self.emit("del", name)

    def _forget(self, key: int, name: Name) -> None:
        held = self._names.get(key, {})
        held.pop(name, None)
        if not held:
            self._names.pop(key, None)

    def rewritten(self, x: Any, old: Tensor, new: Tensor) -> Name:
        """Let the wrapper's name be that of the tensor that a call wrote."""
        if id(old) in self.parameters:
            self._held.append(new)
            self.parameters[id(new)] = self.parameters[id(old)]
            return self.parameters[id(old)]
        name: Name | None = getattr(x, "named", None)
        if name is None:
            self.problem("a write into a tensor without a name")
            return Name("t0")
        self._forget(id(old), name)
        self._names.setdefault(id(new), {})[name] = None
        self.last[id(new)] = name
        x.box[0] = id(new)
        return name

    def emit(self, kind: str, *parts: Any) -> None:
        """Write an instruction down, with the state that it runs in."""
        if kind != "del" or self._state is None:
            module = context.tape.module
            self._state = State(
                (context.tape.paths[module] if module else "") or "",
                context.purpose is Purpose.LOGITS_AND_LOSS,
                context.grad_enabled,
                context.autocast is not None,
            )
        self.rows.append((self._state, (kind, *parts)))

    def encoded(self, value: Any) -> Any:  # noqa: C901, PLR0911 - one a kind of argument
        """Return an argument with names in the place of tensors."""
        if isinstance(value, Tensor):
            return self.of(value)
        if isinstance(value, slice):
            return Thing("slice", [self.encoded(x) for x in (value.start, value.stop, value.step)])
        if isinstance(value, DType):
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Thing(type(value).__name__, [self.encoded(x) for x in value])
        if isinstance(value, list | tuple):
            return [self.encoded(x) for x in value]
        if isinstance(value, dict):
            return {key: self.encoded(x) for key, x in value.items()}
        fields = getattr(value, "__dataclass_fields__", None)
        if fields is not None:
            return Thing(type(value).__name__, [self.encoded(getattr(value, f)) for f in fields])
        if isinstance(value, int) and not isinstance(value, bool):
            return int(value)
        if isinstance(value, float) and value in self.rates:
            return Name(f"%{self.rates[value]}")
        if value is None or isinstance(value, bool | float | str):
            return value
        self.problem(f"an argument of type {type(value).__name__}")
        return None

    def results(self, value: Any) -> Any:
        """Return the names of a call's results."""
        if isinstance(value, Tensor):
            if self.is_known(value):
                return self.again(value)
            name = self.fresh()
            self.temporaries[id(value)] = (name, value)
            return name
        if isinstance(value, list | tuple):
            return [self.results(x) for x in value]
        return None

    def again(self, v: Tensor) -> Name:
        """Return a further name for a tensor that a call returned as it came."""
        name = self.fresh()
        self.same[id(v)] = name
        return name

    def called(self, name: str, args: Any, kwargs: Any, result: Any) -> None:
        """Write down a call of `ops`."""
        given = [self.encoded(x) for x in args]
        options = {key: self.encoded(x) for key, x in kwargs.items()}
        self.emit("op", name, self.results(result), given, options)

    def end_call(self) -> None:
        """Let go of the results that modelling code did not get."""
        for name in self.same.values():
            self.emit("del", name)
        self.same.clear()
        for key in list(self.temporaries):
            name, v = self.temporaries.pop(key)
            self.emit("del", name)
            del v


class RecordedPhase:
    """What happens on the tape between two positions, as events of a call."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._start = len(context.tape.events)
        self.marks: list[tuple[int, int, tuple[Any, ...]]] = []
        self.born: dict[int, int] = {}
        self._indices: list[int | None] = []

    def new(self, storage: Storage, content: Any, operation: str, elements: int | None) -> None:
        """Note a new storage; `elements` where they are not its shape's."""
        number = len(self._indices)
        self._indices.append(storage.index if storage.tape is context.tape else None)
        self.born[id(storage)] = number
        row = ("new", number, *content, operation, elements)
        self.marks.append((len(context.tape.events), 0, row))

    def number_of(self, storage: Storage) -> int | None:
        """Return the number of a storage that is new here, None for any other."""
        return self.born.get(id(storage))

    def explained(self, start: int, row: tuple[Any, ...]) -> None:
        """Note that a kernel's own buffers explain what the tape has since `start`."""
        self.marks.append((start, max(len(context.tape.events), start), row))

    def events(self) -> list[Any]:
        """Return what happened, in order."""
        tape = context.tape.events
        hidden = [(a, b) for a, b, _ in self.marks if b]
        numbers = {i: k for k, i in enumerate(self._indices) if i is not None}
        found = [(a, n, list(row)) for n, (a, _, row) in enumerate(self.marks)]
        for at in range(self._start, len(tape)):
            event = tape[at]
            if any(a <= at < b for a, b in hidden):
                continue
            if event < 0 and ~event in numbers:
                found.append((at + 1, -1, ["free", numbers[~event]]))
            elif event < 0:
                self._listener.problem(f"{context.tape.operations[~event]} is freed in a call")
            elif event not in numbers:
                self._listener.problem(f"{context.tape.operations[event]} is not explained")
        found.sort(key=lambda row: row[:2])
        return [row for _, _, row in found]


class WholePhase(RecordedPhase):
    """What happens on the tape, whoever does it: each storage by what the tape says of it."""

    def number_of(self, storage: Storage) -> int | None:
        """Return the number of a storage that is new here, None for any other."""
        return self._numbers().get(storage.index)

    def events(self) -> list[Any]:
        """Return what happened, in order."""
        tape = context.tape
        for at in range(self._start, len(tape.events)):
            index = tape.events[at]
            if index >= 0 and (content := tape.contents[index]) is not None:
                shape, dtype = content
                elements: int | None = tape.sizes[index] // dtype.itemsize
                if elements == math.prod(shape):
                    elements = None
                row = (list(shape), dtype, tape.operations[index], elements)
                self.marks.append((at, 0, ("new", len(self._indices), *row)))
                self._indices.append(index)
        return super().events()

    def _numbers(self) -> dict[int, int]:
        made = (e for e in context.tape.events[self._start :] if e >= 0)
        return {index: k for k, index in enumerate(made)}
