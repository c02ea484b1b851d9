"""Messages that are known by their words: `messages.toml` has them, with what each means.

What a message's numbers come to is worked out here, by the functions that the file names.
"""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from string import Formatter
from typing import Any

from vrambudget.files import toml_beside
from vrambudget.units import format_bytes

_GAP = r"\s{1,40}"
_SIZE = r"[\d.]{1,20}\s{0,40}[KMGT]?i?B"
_ITEM_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "int32": 4, "int64": 8}

Names = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """A message of `source`, with sentences that say what it means, and what to do."""

    source: str
    pattern: re.Pattern[str]
    what: tuple[str, ...]
    steps: tuple[str, ...]
    derive: Callable[[Names], Names]
    beside_sizes: bool

    def explain(self, hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
        """Return what happened, and what to do."""
        found = {name: joined(text) for name, text in hit.groupdict().items() if text}
        names = {**found, **self.derive(found)}
        return " ".join(said(self.what, names)), tuple(said(self.steps, names))


@cache
def known_messages() -> tuple[KnownMessage, ...]:
    """Return the messages of the file."""
    file = toml_beside(__file__, "messages.toml")
    return tuple(_message(each, file["steps"]) for each in file["messages"])


def joined(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def _message(values: Mapping[str, Any], lists: Mapping[str, list[str]]) -> KnownMessage:
    words = values["pattern"].replace("SIZE", _SIZE).replace(" ", _GAP)
    steps = (lists[step[1:]] if step[0] == "@" else [step] for step in values["steps"])
    return KnownMessage(
        values["source"],
        re.compile(words, re.IGNORECASE),
        tuple(values["what"]),
        tuple(step for some in steps for step in some),
        _DERIVED[values.get("derive", "")],
        values.get("beside_sizes", False),
    )


def said(sentences: Iterable[str], names: Names) -> Iterator[str]:
    """Yield the sentences whose names are all known, with what these stand for."""
    for sentence in sentences:
        if {name for _, name, _, _ in Formatter().parse(sentence) if name} <= names.keys():
            yield sentence.format_map(names)


def _of_free(found: Names) -> Names:
    free, total, wanted = (float(found[name]) for name in ("free", "total", "wanted"))
    share = int(free / total * 100) / 100
    sizes = {"used": total - free, "total": total, "wanted": wanted, "share": share}
    return {name: f"{size:.2f}" for name, size in sizes.items()}


def _of_buffer(found: Names) -> Names:
    if "bytes" in found:
        return {"asked": format_bytes(int(found["bytes"]))}
    return {"asked": f"{found['mib']} MiB" if "mib" in found else found.get("size", "a buffer")}


def _of_tensor(found: Names) -> Names:
    sizes = [int(n) for n in re.findall(r"\d+", found.get("shape", ""))]
    item = _ITEM_BYTES.get(found["dtype"].lower())
    takes = f", which takes {format_bytes(math.prod(sizes) * item)}" if item else ""
    return {"tensor": f"a tensor [{', '.join(map(str, sizes))}] of {found['dtype']}{takes}"}


_DERIVED: Mapping[str, Callable[[Names], Names]] = {
    "": lambda _: {},
    "of_free": _of_free,
    "of_buffer": _of_buffer,
    "of_library": lambda found: {
        "library": {"CUDNN": "cuDNN"}.get(found["name"].upper(), "cuBLAS")
    },
    "of_tensor": _of_tensor,
}
