"""What one recording is made of, before several become a program."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Name(str):
    """What a program calls a tensor: "t12", or a parameter or buffer: "@model.norm.weight"."""

    __slots__ = ()


class Thing(NamedTuple):
    """An argument that is an object of its own: a slice, a convolution's geometry."""

    kind: str
    fields: list[Any]


class TensorLayout(NamedTuple):
    """How an operand of a kernel lies."""

    shape: tuple[int, ...]
    dtype: Any
    strides: tuple[int, ...] | None


class Lies(NamedTuple):
    """A result's strides, and whose layout they may be instead: those of an operand."""

    strides: list[int] | None
    alternatives: list[str]


class State(NamedTuple):
    """Under what an instruction runs: its module, and the flags of torch."""

    path: str
    is_output: bool  # for the logits and the loss
    grad: bool
    autocast: bool


@dataclass(slots=True)
class Effects:
    """One call by the general rule.

    Storages are ["in", i], ["new", k], ["kept", slot], and in backward ["dy", i].
    """

    name: str
    policy: str | None = None
    groups: Any = None  # operands by name, nested as autocast casts them
    forward: list[Any] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)  # by slot
    nodes: list[Any] = field(default_factory=list)  # name, outputs, edges, slots
    outs: Any = None
    writes: list[Any] = field(default_factory=list)
    names: list[Any] = field(default_factory=list)
    backs: dict[int, Any] = field(default_factory=dict)  # by node: events, gradients
