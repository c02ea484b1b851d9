"""The instructions of two recordings of one model, one beside the other."""

from collections.abc import Iterator
from typing import Any

from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.raw import Effects, Name


def kinds_of(recording: Listener) -> list[Any]:
    """Return each instruction's module and kind, whatever its sizes."""
    return [(state[0], row[0], _name(row)) for state, row in recording.rows]


def _name(row: tuple[Any, ...]) -> str:
    return str(row[1]) if row[0] == "op" else str(getattr(row[1], "name", ""))


def rates_in(rows: Any) -> list[str]:
    """Return the keys of dropout that are read, in order."""
    return [name[1:] for name in _names(rows) if name[:1] == "%"]


def _names(value: Any) -> Iterator[Name]:
    if isinstance(value, Name):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _names(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _names(item)


def changed_operations(base: Listener, other: Listener, name: str, instead: str) -> list[int]:
    """Return the instructions that are one operation here and another one there.

    Raises UnfitError where they differ otherwise.
    """
    found = []
    if len(base.rows) != len(other.rows):
        raise UnfitError(f"{instead} in the place of {name} takes other instructions")
    for at, ((_, a), (_, b)) in enumerate(zip(base.rows, other.rows, strict=True)):
        if a[0] == "op" and (a[1], b[1]) == (name, instead):
            found.append(at)
    return found


def inserted(base: Listener, other: Listener | None) -> set[int] | None:
    """Return the instructions of `base` that `other` does without: those of its labels.

    None where `other` is not `base` without some instructions.
    """
    if other is None:
        return None
    names: dict[str, str] = {}
    for key, name in other.inputs.items():
        names[name] = base.inputs[key]
    found, at = set[int](), 0
    for number, (state, row) in enumerate(base.rows):
        if at < len(other.rows) and _matches((state, row), other.rows[at], names):
            at += 1
        else:
            found.add(number)
    return found if at == len(other.rows) else None


def _matches(a: Any, b: Any, names: dict[str, str]) -> bool:
    """Return whether two instructions are one but for names, and note which names are one."""
    if a[1][0] != "del" and a[0][:3] != b[0][:3]:
        return False
    new: dict[str, str] = {}
    if not _equal(a[1], b[1], names, new):
        return False
    names |= new
    return True


def _equal(a: Any, b: Any, names: dict[str, str], new: dict[str, str]) -> bool:
    if isinstance(a, Effects):
        return isinstance(b, Effects) and all(
            _equal(getattr(a, part), getattr(b, part), names, new)
            for part in Effects.__dataclass_fields__
        )
    if isinstance(a, Name) and a[:1] == "t":
        if b in names or b in new:
            return names.get(b, new.get(b)) == a
        new[b] = a
        return isinstance(b, Name) and a not in names.values()
    if isinstance(a, list | tuple):
        return (
            isinstance(b, list | tuple)
            and len(a) == len(b)
            and all(_equal(x, y, names, new) for x, y in zip(a, b, strict=True))
        )
    if isinstance(a, dict):
        return (
            isinstance(b, dict)
            and a.keys() == b.keys()
            and all(_equal(a[key], b[key], names, new) for key in a)
        )
    return bool(a == b)
