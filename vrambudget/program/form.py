"""The file of programs: text, one fact or instruction a line, each a word and JSON.

    vrambudget-program 3
    source {"class": ..., "transformers": ..., "torch": ...}
    when {"task": ["masked-lm"], "attention": ["sdpa"], ...}       the jobs of a program, one each
    only {"attention": ["eager"]} ... only null        what those of such jobs have alone
    body "bert"                     of a body alone: the module that it is in the other programs
    key ["hidden_size", {...}]      what a configuration must say, leave out, or may say
    size "batch"                    a free size, and what it is derived of
    guard ["length", ">", "1", true, "where it stands"]
    stack ["model.layers", "num_hidden_layers", first, period, recorded, is checkpointed]
    new / free / weight / buffer / module     how the model is built; `only` may name keys, too
    input ["input_ids", ["=batch", "=length"], "~int64", "t1"]
    effects [...]                   of calls by the general rule, by number
    at ["path", logits, grad, autocast]      what follows runs in this module, under these flags
    at "path"                                under the usual ones
    op ["linear.linear", "t3", ["t2", "@w"], {}]
    call [0, ["t3"], ["t4"]]
    del / alias / detach / write
    enter [...] ... leave [...]     a layer: what it is called with, what it returns
    given "labels" ... given null   only where the job feeds them, or a decoder's key says so
    repeat ["model.layers", [[before, after], ...]] ... next
    repeat ["=frames//4-1", [...]] ... next     pieces of a video, which `round` counts from 1 on
    result {...}    what it returns: "cached" apart from "others", which Trainer gathers
    end 123                         lines before this one: a file that is cut off has none

"t12" a tensor, "@name" a parameter, "@.name" one of the module that runs, "=expression" a size,
"^like x0" a layout, "~W" a type: W the weights', C autocast's, "A:t" autocast's or t; "%dropout"
the rate that a key says, and the function "activation.hidden_act" the one that a key names.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vrambudget import dtypes
from vrambudget.dtypes import DType

FORM = 3
HEAD = "vrambudget-program"
MOST_LINES = 50_000
KINDS = {
    *("at", "op", "call", "del", "alias", "detach", "write", "enter", "leave", "given"),
    *("repeat", "next"),
}
MAPPINGS = {"key": "keys", "size": "sizes"}
LISTS = {"guard": "guards", "stack": "stacks", "effects": "effects", "input": "inputs"}
HEADS = frozenset({"source", "body", "key", "size", "guard", "stack", "input"})
BUILT = frozenset({"new", "free", "weight", "buffer", "module", "run", "cast", "rows", "rebind"})
_NAME = re.compile(r"t\d+(\.\d+)?")

_NAMES = (
    *("float64", "float32", "bfloat16", "float16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8"),
)
TYPES: dict[str, DType] = {n: getattr(dtypes, n) for n in _NAMES} | {"bool": dtypes.bool_}

COUNT = "num_items_in_batch"
"""An input that Trainer gives beside labels while it trains: how many there are."""

PIECES = "pieces of a video recur"
"""Where a guard stands that a video has enough of them."""

Row = tuple[str, Any]
Case = dict[str, list[Any]]  # of a program: its jobs, by what decides about them
USUAL = [False, True, True]  # flags of `at`: of a model's body, with gradients, under autocast


@dataclass(slots=True)
class Program:
    """A file's content; rows are (word, value)."""

    source: dict[str, Any] = field(default_factory=dict)
    when: dict[str, list[Any]] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, str | None] = field(default_factory=dict)
    guards: list[Any] = field(default_factory=list)
    stacks: list[Any] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)
    effects: list[Any] = field(default_factory=list)
    built: list[Row] = field(default_factory=list)
    builds: list[Any] = field(default_factory=list)  # other ways: key, value, rows
    code: list[Row] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    body: str = ""
    where: str = "a program"
    variants: list["Variant"] = field(default_factory=list)
    used: set[str] = field(default_factory=set)  # sizes that a line names
    unfolded: dict[Any, Any] = field(default_factory=dict)  # by depths, once played
    by_count: "Program | None" = None  # the same with a loss by a count of labels, once asked for

    def variant(self) -> "Variant":
        """Return this as the program of its jobs."""
        return Variant(self.when, _unread, self)

    def own_sizes(self) -> dict[str, int]:
        """Return the usual sizes of a module that has inputs of its own."""
        usual = self.source.get("sizes", {}) if "inputs" in self.source else {}
        return {name: size for name, size in usual.items() if name in self.sizes}

    def every(self) -> list["Variant"]:
        """Return this and its variants."""
        return [self.variant(), *self.variants]


def _unread() -> Program:
    raise AssertionError  # it was found


@dataclass(slots=True)
class Variant:
    """A program of other jobs: for which, and how it is read, which is done when it is needed.

    `head` is all that choosing one asks for, without how its model is built and what it does.
    """

    when: dict[str, list[Any]]
    read: Callable[[], Program]
    found: Program | None = None
    read_head: Callable[[], Program] | None = None
    found_head: Program | None = None

    @property
    def head(self) -> Program:
        """The program, or its source, keys, sizes, guards, stacks and inputs alone."""
        if self.found is not None or self.read_head is None:
            return self.program
        if self.found_head is None:
            self.found_head = self.read_head()
        return self.found_head

    @property
    def program(self) -> Program:
        """The program."""
        if self.found is None:
            self.found = self.read()
        return self.found


def whole(variants: list[Variant]) -> Program:
    """Return the first program, with the others as its variants."""
    first, *others = variants
    program = first.program
    program.variants = others
    return program


def is_of(condition: Any, case: Case) -> bool:
    """Return whether a case keeps what is under `only`: a key that it does not say holds."""
    if isinstance(condition, list):
        return any(is_of(each, case) for each in condition)
    return all(set(case.get(key, values)) <= set(values) for key, values in condition.items())


def with_paths(code: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    """Yield instructions, each with the module that it runs in."""
    path = ""
    for word, value in code:
        path = value[0] if word == "at" else path
        yield path, (word, value)


def is_tensor(value: Any) -> bool:
    """Return whether this names a tensor."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
