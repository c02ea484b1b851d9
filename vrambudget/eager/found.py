"""What a step uses: the modules, optimizers and tensors behind a function, and what to put back.

They are looked for where the step's code can reach them: its arguments, the names that it uses, the
object that it is a method of, and the functions and objects of the user's own behind those. In the
order in which they are found they are allocated on the GPU.
"""

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from vrambudget.compiled.private import FakeTensor

_LIBRARIES = {"torch", "numpy", "transformers", "datasets", "accelerate", "tqdm", "vrambudget"}
_STATEFUL = (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)


class Found:
    """Modules, tensors and objects with a state of their own, each once, in order."""

    def __init__(self) -> None:
        self.modules: list[torch.nn.Module] = []
        self.stateful: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.places: list[tuple[Any, Any, torch.Tensor]] = []  # holder, key, and what it had
        self._seen: dict[int, Any] = {}

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers among them."""
        return [x for x in self.stateful if isinstance(x, torch.optim.Optimizer)]

    def look_in(self, value: Any) -> None:
        """Add what can be reached from a value."""
        stack = [value]
        while stack:
            item = stack.pop()
            if id(item) in self._seen:
                continue
            self._seen[id(item)] = item
            if isinstance(item, torch.nn.Module):
                self.modules.append(item)
            elif isinstance(item, torch.Tensor):
                self.tensors.append(item)
            else:
                if isinstance(item, _STATEFUL):
                    self.stateful.append(item)
                held = [(at, key, _get(at, key)) for at, key in _places(item)]
                self.places += [place for place in held if isinstance(place[2], torch.Tensor)]
                stack += reversed([*_behind(item)])


def found_in(step: Callable[..., Any], *given: Any) -> Found:
    """Return what a step that is called with `given` uses."""
    found = Found()
    for value in (*given, step):
        found.look_in(value)
    return found


def _behind(item: Any) -> Iterator[Any]:
    """Yield what an object leads to."""
    if isinstance(item, Mapping):
        yield from item.values()
    elif isinstance(item, list | tuple | set):
        yield from item
    elif isinstance(item, functools.partial):
        yield from (*item.args, *item.keywords.values(), item.func)
    elif isinstance(item, types.MethodType):
        yield from (item.__self__, item.__func__)
    elif isinstance(item, types.FunctionType):
        if _is_own(item.__module__):
            yield from _used(item)
    elif isinstance(item, torch.optim.Optimizer):
        yield from (x for group in item.param_groups for x in group["params"])
    elif _has_own_attributes(item):
        yield from vars(item).values()


def _places(item: Any) -> Iterator[tuple[Any, Any]]:
    """Yield where an object holds others: a dict, list or cell of a function, and the key."""
    if isinstance(item, dict):
        yield from ((item, key) for key in item)
    elif isinstance(item, list):
        yield from ((item, i) for i in range(len(item)))
    elif isinstance(item, types.FunctionType) and _is_own(item.__module__):
        yield from ((cell, None) for cell in item.__closure__ or ())
        yield from ((item.__globals__, name) for name in _names(item.__code__))
    elif _has_own_attributes(item):
        yield from ((vars(item), name) for name in vars(item))


def _get(holder: Any, key: Any) -> Any:
    try:
        return holder.cell_contents if isinstance(holder, types.CellType) else holder[key]
    except (ValueError, LookupError):  # a name that nothing was bound to yet, an entry that is gone
        return None


def _has_own_attributes(item: Any) -> bool:
    is_code = isinstance(item, type | types.ModuleType)
    return not is_code and _is_own(type(item).__module__) and hasattr(item, "__dict__")


def _is_own(module: str | None) -> bool:
    return (module or "").partition(".")[0] not in _LIBRARIES


def _used(function: types.FunctionType) -> Iterator[Any]:
    """Yield what a function's names stand for: of its closure, then of its globals."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # a name that nothing was bound to yet
            continue
    yield from function.__defaults__ or ()
    names = list(_names(function.__code__))
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


@contextmanager
def as_they_were(found: Found) -> Iterator[None]:
    """Put back what a step changes: attributes of modules, states of optimizers and schedulers.

    And tensors that it put others in the place of (`state["center"] = ...`); lists stay longer.
    """
    modules = [module for root in found.modules for module in root.modules()]
    kept = [(x, _copied(vars(x))) for x in (*modules, *found.stateful)]
    numbers = [(x, x.clone()) for x in _host_numbers(found)]
    try:
        yield
    finally:
        for x, attributes in kept:
            vars(x).clear()
            vars(x).update(attributes)
        for x, value in numbers:
            x.copy_(value)
        for holder, key, tensor in found.places:
            if not isinstance(_get(holder, key), FakeTensor):
                continue
            if isinstance(holder, types.CellType):
                holder.cell_contents = tensor
            else:
                holder[key] = tensor


def _copied(value: Any, depth: int = 3) -> Any:
    """Return dicts and lists anew, down to a few levels; what they hold stays itself."""
    if depth and type(value).__module__ in {"builtins", "collections"} and isinstance(value, dict):
        anew = value.copy()  # a defaultdict keeps its factory
        anew.update({key: _copied(item, depth - 1) for key, item in value.items()})
        return anew
    if depth and type(value) is list:
        return [_copied(item, depth - 1) for item in value]
    return value


def _host_numbers(found: Found) -> Iterator[torch.Tensor]:
    """Yield optimizers' counters of steps, which are on the CPU and are written into."""
    for optimizer in found.optimizers:
        for state in optimizer.state.values():
            yield from (x for x in state.values() if isinstance(x, torch.Tensor) and not x.dim())
