"""The file of a program: text, one fact or instruction a line, each a word and JSON.

    vrambudget-program 2
    source {"class": ..., "transformers": ..., "torch": ...}
    when {"task": ["masked-lm"], "attention": ["sdpa"], ...}       the jobs that it is of
    key ["hidden_size", {...}]      what a configuration must say, or may leave free
    size "batch"                    a free size, and what it is derived of
    guard ["length", ">", "1", true, "where it stands"]
    stack ["model.layers", "num_hidden_layers", first, period, recorded, is checkpointed]
    new / free / weight / buffer / module     how the model is built
    otherwise ["tie_word_embeddings", false]  how it is built where a key has another value
    input ["input_ids", ["=batch", "=length"], "~int64"]
    effects [...]                   of calls by the general rule, by number
    at ["path", logits, grad, autocast]      what follows runs in this module, under these flags
    op ["linear.linear", "t3", ["t2", "@w"], {}]
    call [0, ["t3"], ["t4"]]
    del / alias / detach / write
    enter [...] ... leave [...]     a layer: what it is called with, what it returns
    given "labels" ... given null   only where the job feeds them
    repeat ["model.layers", [[before, after], ...]] ... next
    result {...}
    variant {"attention": ["eager"], ...}     another program; what it does not say is as in the
                                              first one, or in that of the number "like"
    end 123                         lines before this one: a file that is cut off has none

"t12" a tensor, "@name" a parameter, "=expression" a size, "^like x0" a layout, "~W" a type: W the
weights', C autocast's, "A:t" autocast's or t; "%dropout" the rate that a key says, and the function
"activation.hidden_act" the one that a key names.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from vrambudget import dtypes
from vrambudget.dtypes import DType

FORM = 2
HEAD = "vrambudget-program"
MOST_LINES = 50_000
KINDS = {
    *("at", "op", "call", "del", "alias", "detach", "write", "enter", "leave", "given"),
    *("repeat", "next"),
}
MAPPINGS = {"key": "keys", "size": "sizes"}
LISTS = {"guard": "guards", "stack": "stacks", "effects": "effects", "input": "inputs"}
BUILT = frozenset({"new", "free", "weight", "buffer", "module", "run", "cast"})
_NAME = re.compile(r"t\d+(\.\d+)?")

_NAMES = (
    *("float64", "float32", "bfloat16", "float16", "complex64", "complex128"),
    *("int64", "int32", "int16", "int8", "uint8"),
)
TYPES: dict[str, DType] = {n: getattr(dtypes, n) for n in _NAMES} | {"bool": dtypes.bool_}

Row = tuple[str, Any]


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
    where: str = "a program"
    variants: list["Variant"] = field(default_factory=list)
    unfolded: dict[Any, Any] = field(default_factory=dict)  # by depths, once played

    def every(self) -> list["Variant"]:
        """Return this and its variants."""
        return [Variant(self.when, lambda: self), *self.variants]


@dataclass(slots=True)
class Variant:
    """A program of other jobs: for which, and how it is read, which is done when it is needed."""

    when: dict[str, list[Any]]
    read: Callable[[], Program]
    found: Program | None = None

    @property
    def program(self) -> Program:
        """The program."""
        if self.found is None:
            self.found = self.read()
        return self.found


def written(program: Program) -> str:
    """Return a program's text."""
    lines = [f"{HEAD} {FORM}", *_lines(program, None)]
    like: dict[str, int] = {}  # the variant that a further one shares most with, by how it is built
    for number, variant in enumerate(program.variants, 1):
        own = variant.program
        at = like.setdefault(repr(own.built), 0 if own.built == program.built else number)
        base = program if at in {0, number} else program.variants[at - 1].program
        lines += _lines(own, base, at if at != number else 0)
    lines.append(f"end {len(lines)}")
    return "\n".join(lines) + "\n"


def _lines(program: Program, first: Program | None, like: int = 0) -> Iterator[str]:
    """Yield the lines of a program, of a variant of the first those that it does not share."""
    if first is None:
        yield _line("source", program.source)
    said = program.when | ({"like": like} if like else {})
    yield _line("when" if first is None else "variant", said)
    for word, name in MAPPINGS.items():
        if first is None or getattr(program, name) != getattr(first, name):
            yield from (_line(word, [*item]) for item in getattr(program, name).items())
    for word, name in LISTS.items():
        rows = getattr(program, name)
        if first is None or rows != getattr(first, name):
            yield from (_line(word, row) for row in rows)
    if first is None or (program.built, program.builds) != (first.built, first.builds):
        yield from (_line(*row) for row in program.built)
        for key, value, rows in program.builds:
            yield _line("otherwise", [key, value])
            yield from (_line(*row) for row in rows)
    yield from (_line(*row) for row in program.code)
    yield _line("result", program.result)


def _line(word: str, value: Any) -> str:
    return f"{word} {json.dumps(value, ensure_ascii=False)}"


def with_paths(code: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    """Yield instructions, each with the module that it runs in."""
    path = ""
    for word, value in code:
        path = value[0] if word == "at" else path
        yield path, (word, value)


def is_tensor(value: Any) -> bool:
    """Return whether this names a tensor."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
