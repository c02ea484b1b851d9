"""Casts that a model's code leaves out where they change nothing, made in each recording.

    if self.weight.dtype in [torch.float16, torch.bfloat16]:  # T5LayerNorm
        hidden_states = hidden_states.to(self.weight.dtype)

With weights in float32 the cast returns what it was given: one program is of all types.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from types import FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import transformers


def home_of(model_type: str) -> ModuleType:
    """Return the module that has a type's code."""
    keys = type(transformers.AutoConfig.for_model(model_type)).__module__
    return importlib.import_module(keys.replace("configuration_", "modeling_"))


@contextmanager
def casting(model_type: str) -> Iterator[None]:
    """Let a type's code make the casts to a type that it asks for first."""
    with ExitStack() as stack:
        for owner, forward in _casting(model_type):
            stack.enter_context(patch.object(owner, "forward", forward))
        yield


@lru_cache(maxsize=8)
def _casting(model_type: str) -> tuple[tuple[type, Any], ...]:
    home, found = home_of(model_type), []
    for owner in vars(home).values():
        forward = vars(owner).get("forward") if isinstance(owner, type) else None
        if isinstance(forward, FunctionType) and owner.__module__ == home.__name__:
            made = _always(forward)
            found += [] if made is None else [(owner, made)]
    return tuple(found)


def _always(function: FunctionType) -> Any:
    """Return a function that makes all its casts, None where it makes them already."""
    if function.__closure__ or hasattr(function, "__wrapped__"):
        return None
    tree, casts = ast.parse(textwrap.dedent(inspect.getsource(function))), _Casts()
    tree = ast.increment_lineno(casts.visit(tree), function.__code__.co_firstlineno - 1)
    if not casts.found:
        return None
    own: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), function.__globals__, own)  # noqa: S102 - transformers' own text
    return own[function.__name__]


class _Casts(ast.NodeTransformer):
    found = 0

    def visit_If(self, node: ast.If) -> Any:
        """Return `x = x.to(y.dtype)` in the place of a branch that looks at `y.dtype`."""
        self.generic_visit(node)
        match node.body:
            case [
                ast.Assign(
                    [ast.Name(name)],
                    ast.Call(ast.Attribute(ast.Name(own), "to"), [ast.Attribute(_, "dtype") as to]),
                ) as cast
            ] if name == own and not node.orelse and ast.unparse(to) in ast.unparse(node.test):
                self.found += 1
                return cast
        return node
