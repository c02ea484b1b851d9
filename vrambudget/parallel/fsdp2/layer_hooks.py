"""Identical wrapped layers: what one's hooks hold, for `engine.identical_layers` to replay others.

    all groups'         the flat output of the last gather, the input of the last reduce-scatter
    the group below's   the flat output of the gather that backward prefetches
    the group's own     that which was prefetched for it, and what HSDP reduces over copies
    a parameter's       its whole memory, and its gradients

Backward prefetches the group below, so layers are identical only if those below them are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, pairwise
from typing import Any

from vrambudget.engine.hook_state import Value
from vrambudget.engine.identical_layers import Layer
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Parameter
from vrambudget.parallel.fsdp2.param_group import ParamGroup
from vrambudget.parallel.fsdp2.parameter import PLACES
from vrambudget.parallel.fsdp2.state import FSDPState


def surround(layers: Sequence[Layer]) -> None:
    """Let layers, each wrapped by itself and in the order of forward, be replayed."""
    states = [None, *(layer.hooks for layer in layers)]
    for layer, (below, state) in zip(layers, pairwise(states), strict=True):
        layer.hook_state = _FSDPHooks(state, below)


class _FSDPHooks:
    """`engine.hook_state.LayerHooks` of one layer."""

    def __init__(self, state: Any, below: Any) -> None:
        self._state: FSDPState = state
        self._group: ParamGroup = state.group
        self._below: ParamGroup | None = None if below is None else below.group
        parameters = () if self._below is None else self._below.parameters
        self._below_is = tuple(parameter.shape for parameter in parameters)

    def state(self) -> tuple[Any, ...]:
        """Return what the groups are doing."""
        group, below = self._group, self._below
        return (
            group.sharded_state,
            group.training_state,
            self._state.training_state,
            group.reduce_grads,
            None if below is None else below.sharded_state,
            self._below_is,
        )

    def held(self) -> list[Value]:
        """Return what the groups hold, by place."""
        group, below = self._group, self._below
        values: list[Value] = [
            group.comm.all_gather_output,
            group.comm.reduce_scatter_input,
            None if below is None else below.flat_output,
            group.flat_output,
            group.partial_output,
            group.all_reduce_input,
        ]
        for parameter in group.parameters:
            values += parameter.held()
        return values

    def gathered(self) -> Sequence[Parameter]:
        """Return the whole parameters."""
        return [parameter.unsharded for parameter in self._group.parameters]

    def forward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Any]) -> None:
        """Take the state after `pre_forward` and `post_forward`."""
        self._hold(state, held)
        self._group.note_post_forward()

    def backward_was_replayed(self, state: tuple[Any, ...], held: Sequence[Any]) -> None:
        """Take the state after `pre_backward` and `post_backward`."""
        self._hold(state, held)
        if self._group.prefetched() is not self._below:
            raise CannotRepeatError

    def _hold(self, state: tuple[Any, ...], held: Sequence[Any]) -> None:
        group, comm = self._group, self._group.comm
        sharded_state, group.training_state, self._state.training_state, *_ = state
        comm.all_gather_output, comm.reduce_scatter_input, prefetched, *own = held
        if self._below is not None:
            self._below.flat_output = prefetched
        group.flat_output, group.partial_output, group.all_reduce_input, *rest = own
        values = iter(rest)
        for parameter in group.parameters:
            parameter.hold(*islice(values, PLACES))
        group.resume(sharded_state)
