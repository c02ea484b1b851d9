"""Calls by the general rule, played: allocations, what is saved, nodes and their backward.

`General` is one call's effects at known sizes; storages stand in a list, as the recording numbers
them.
"""

from collections.abc import Callable
from typing import Any

from vrambudget.dtypes import DType, float32
from vrambudget.engine.autocast import full_precision, lower_precision, to
from vrambudget.engine.autograd import Node, edge_to, keep
from vrambudget.engine.checkpoint import Holder
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor, _dense_strides
from vrambudget.errors import NotModelledError
from vrambudget.ops.temporaries import BEFORE_RESULT, KERNELS, layout
from vrambudget.tape.events import Storage

Where = dict[str, list[Any]]


class General:
    """One call at known sizes."""

    def __init__(self, row: list[Any]) -> None:
        self.name, self.policy, self.forward, self.kept, self.nodes, outs, writes, backs = row
        self.outs = [*_flat(outs), *(out for _, out in writes)]
        self.backs = {int(number): back for number, back in backs}
        edges = [e[1] for node in self.nodes for e in node[2] if e and e[0] == "in"]
        like = [out[6][1] for out in self.outs if _has_node(out) and out[6][0] == "like"]
        self._wants = sorted({*edges, *like})
        views = [o for o in self.outs if o[0] == "tensor" and o[1][0] == "in" and o[6] is None]
        self._frozen = {o[1][1] for o in views if o[3].is_floating_point}
        saved = {place[1] for place in self.kept if place[0] == "new"}
        saved -= {o[1][1] for o in self.outs if o[0] == "tensor" and o[1][0] == "new"}
        self._bare = [None if _is_copy(event, saved) else event for event in self.forward]

    def __call__(self, groups: list[Any]) -> list[Tensor]:
        """Run it on its operands; return its results."""
        x = _operands(self.policy, groups)
        wants = [x[i].requires_grad for i in self._wants]
        grad = context.grad_enabled and any(wants)
        if context.grad_enabled and any(x[i].requires_grad for i in self._frozen):
            raise self._refusal()
        if grad and not all(wants):
            self._check_partial({i for i, want in zip(self._wants, wants, strict=True) if not want})
        where: Where = {"in": [t.storage for t in x], "new": [], "kept": [None] * len(self.kept)}
        self._happen(self.forward if grad else self._bare, where, grad=grad)
        made = [x[out[1]] if out[0] == "in" else _tensor(out, where, x) for out in self.outs]
        if grad:
            self._give_nodes(made, x, where["kept"])
        return made

    def _check_partial(self, frozen: set[int]) -> None:
        """Raise NotModelledError where it matters which operands want a gradient.

        It does not where nothing is saved, and each gradient is the incoming one or a part of it.
        """
        plain = all(
            not events and all(map(_is_incoming, outgoing))
            for events, outgoing in self.backs.values()
        )
        one = len(self.nodes) == 1 and not self.kept
        if not (plain and one and frozen):
            raise self._refusal()

    def _refusal(self) -> NotModelledError:
        return NotModelledError(
            f"{self.name}: other operands want gradients than in the recorded program",
            hint="pip install 'vrambudget[torch]' traces the model itself",
        )

    def _happen(self, events: list[Any], where: Where, *, grad: bool) -> None:
        """Play events in order: storages are made and freed, kernels run, tensors are saved."""
        new = where["new"]
        for event in events:
            kind = event and event[0]
            if kind is None:
                new.append(None)
            elif kind == "new":
                new.append(_storage(*event[2:]))
                where.pop("held", None)
            elif kind == "free":
                new[event[1]] = None
            elif kind == "keep":
                slot = event[1]
                if grad:
                    source, number = self.kept[slot]
                    where["kept"][slot] = keep(Tensor((), float32, where[source][number]))
            else:
                if event[1] in BEFORE_RESULT:
                    context.operation = event[1]
                where["held"] = KERNELS[event[1]](_laid(event[2]), _laid(event[3]))

    def _give_nodes(self, made: list[Tensor], x: list[Tensor], kept: list[Any]) -> None:
        nodes: list[Node] = []
        for number, (name, outputs, edges, slots) in enumerate(self.nodes):
            to_ = [
                None if e is None else edge_to(x[e[1]]) if e[0] == "in" else (nodes[e[1]], *e[2:])
                for e in edges
            ]
            held = {slot: kept[slot] for slot in slots}
            backward = self._backward(number, held)
            saved = tuple(held.values())
            node = Node(name, context.sequence, to_, saved, backward, outputs=outputs)
            context.sequence += 1
            nodes.append(node)
        for y, out in zip(made, self.outs, strict=True):
            if _has_node(out):
                y.requires_grad = True
                number, slot = out[6]
                if number == "like":
                    y.node, y.slot = x[slot].node, x[slot].slot
                else:
                    y.node, y.slot = nodes[number], slot

    def _backward(self, number: int, held: dict[int, Any]) -> Callable[..., Any]:
        found = self.backs.get(number)

        def backward(*dy: Tensor | None) -> Any:
            if found is None:
                raise NotModelledError(f"the backward of {self.name} was not recorded")
            events, outgoing = found
            kept: list[Any] = [None] * (max(held, default=-1) + 1)
            for slot, saved in held.items():
                kept[slot] = saved.storage if isinstance(saved, Holder) else saved
            given = [None if g is None else g.storage for g in dy]
            where: Where = {"dy": given, "new": [], "kept": kept}
            self._happen(events, where, grad=False)
            return tuple(
                None if g is None else dy[g[1]] if g[0] == "dy" else _tensor(g, where, dy)
                for g in outgoing
            )

        return backward


def _is_copy(event: list[Any], saved: set[int]) -> bool:
    """Return whether an event copies what a call overwrites, which autograd alone asks for."""
    return event[0] == "new" and event[4] == "clone" and event[1] in saved


def _is_incoming(gradient: Any) -> bool:
    """Return whether a gradient is the incoming one, or a part of it."""
    return gradient is None or gradient[0] == "dy" or gradient[1][0] == "dy"


def _has_node(out: Any) -> bool:
    return out[0] != "in" and out[6] is not None


def _laid(value: Any) -> Any:
    """Return what a kernel is given, with layouts in the place of (shape, type, strides)."""
    if not isinstance(value, list | tuple):
        return value
    if len(value) > 1 and isinstance(value[1], DType):
        return layout(*value)
    return [_laid(item) for item in value]


def _storage(shape: tuple[int, ...], dtype: Any, operation: str, elements: int | None) -> Storage:
    context.operation = operation = str(operation)
    nbytes = dtype.itemsize
    for size in shape if elements is None else (elements,):
        nbytes *= size
    return Storage(context.tape, nbytes, context.purpose, operation, (shape, dtype))


def _tensor(out: list[Any], where: Where, operands: Any) -> Tensor:
    _, (source, number), shape, dtype, lies, is_view = out[:6]
    y = Tensor(shape, dtype, where[source][number], _strides(lies, operands, shape))
    y.is_view = is_view
    return y


def _strides(lies: Any, operands: Any, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return strides as they were recorded, or those of an operand."""
    if lies is None or not isinstance(lies[0], str):
        return lies  # type: ignore[no-any-return]
    kind, number, *dims = lies
    x: Tensor = operands[number]
    if kind == "like":
        return None if x.strides is None else _dense_strides(x.shape, x.strides)
    found = x.actual_strides()
    if kind == "drop":
        found = (*found[: dims[0]], *found[dims[0] + 1 :])
    return None if Tensor(shape, x.dtype, x.storage, found).is_contiguous else found


def _flat(outs: Any) -> list[Any]:
    """Return the results of nested lists, in order."""
    if outs is None:
        return []
    if outs and isinstance(outs[0], str):
        return [outs]
    return [out for inner in outs for out in _flat(inner)]


def _operands(policy: str | None, groups: list[Any]) -> list[Tensor]:
    """Return the distinct operands, cast as autocast reads them: the last argument first."""
    if policy is not None and context.autocast is not None:
        groups = [_cast(policy, value) for value in groups[::-1]][::-1]
    found: dict[int, Tensor] = {}
    _collect(groups, found)
    return list(found.values())


def _collect(groups: list[Any], found: dict[int, Tensor]) -> None:
    for value in groups:
        if isinstance(value, list):
            _collect(value, found)
        else:
            found.setdefault(id(value), value)


def _cast(policy: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_cast(policy, item) for item in value]
    if policy == "lower":
        return lower_precision(value)
    if policy == "full":
        return full_precision(value)
    return to(value, float32) if value.dtype.is_floating_point else value
