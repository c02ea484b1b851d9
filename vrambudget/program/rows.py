"""A program's instructions: the tensors that one makes and reads, and the same by other names."""

from collections.abc import Callable, Mapping
from typing import Any

from vrambudget.program.form import Row, is_tensor


def makes(word: str, value: Any) -> list[str]:
    """Return the tensors that an instruction makes."""
    if word == "op":
        return tensors(value[1])
    if word == "call":
        return tensors(value[2])
    return [value[0]] if word in {"alias", "detach"} else []


def reads(word: str, value: Any) -> list[str]:
    """Return the tensors that an instruction reads."""
    if word == "op":
        return [*tensors(value[2]), *tensors(value[3])]
    if word == "call":
        return tensors(value[1])
    if word in {"enter", "leave", "write"}:
        return tensors(value)
    return [value[1]] if word in {"alias", "detach"} else []


def tensors(value: Any) -> list[str]:
    """Return the names of tensors in a value."""
    if isinstance(value, str):
        return [value] if is_tensor(value) else []
    if isinstance(value, list):
        return [name for x in value for name in tensors(x)]
    if isinstance(value, dict):
        return [name for x in value.values() for name in tensors(x)]
    return []


_NAMED = dict.fromkeys(("at", "stack", "repeat", "new", "free", "module"), 1)
_NAMED |= {"weight": 2, "buffer": 2}


def moved(word: str, value: Any, path: Callable[[str], str]) -> Row:
    """Return a row with the paths of modules in it changed."""
    if word not in _NAMED:
        return word, renamed(value, {}, path)
    if isinstance(value, str):
        return word, path(value)
    return word, [*map(path, value[: _NAMED[word]]), *value[_NAMED[word] :]]


def renamed(value: Any, names: Mapping[str, str], path: Callable[[str], str]) -> Any:
    """Return an instruction's value with other names; a module is `@` and its path."""
    if isinstance(value, str):
        return "@" + path(value[1:]) if value[:1] == "@" else names.get(value, value)
    if isinstance(value, list):
        return [renamed(x, names, path) for x in value]
    if isinstance(value, dict):
        return {key: renamed(x, names, path) for key, x in value.items()}
    return value
