"""Recurrent layers by PyTorch's own CUDA kernels: one cell for each step of each layer.

A real GPU runs cuDNN's, which keep other tensors: notes of the report name them.

Source: aten/src/ATen/native/RNN.cpp (lstm, gru, apply_layer_stack, FullBidirectionalLayer,
LSTMCell, GRUCell, SimpleCell).
Not modelled: packed sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from vrambudget.errors import NotModelledError
from vrambudget.traced import kernels
from vrambudget.traced.tensor import REHEARSE

aten = torch.ops.aten
_State = tuple[torch.Tensor, ...]
_Weights = Sequence[torch.Tensor]


def _lstm_cell(x: torch.Tensor, state: _State, weights: _Weights) -> _State:
    gates = torch.matmul(x, weights[0].t()), torch.matmul(state[0], weights[1].t())
    biases = weights[2:4] if len(weights) > 3 else (None, None)  # noqa: PLR2004 - with both
    h, c, _ = aten._thnn_fused_lstm_cell(*gates, state[1], *biases)
    projected = len(weights) in {3, 5}
    return (torch.matmul(h, weights[-1].t()) if projected else h), c


def _gru_cell(x: torch.Tensor, state: _State, weights: _Weights) -> _State:
    gates = torch.matmul(x, weights[0].t()), torch.matmul(state[0], weights[1].t())
    biases = weights[2:4] if len(weights) > 3 else (None, None)  # noqa: PLR2004 - with both
    return (aten._thnn_fused_gru_cell(*gates, state[0], *biases)[0],)


def _simple_cell(
    activation: Callable[[torch.Tensor], torch.Tensor],
    x: torch.Tensor,
    state: _State,
    weights: _Weights,
) -> _State:
    biases = weights[2:4] if len(weights) > 3 else (None, None)  # noqa: PLR2004 - with both
    linear = torch.nn.functional.linear
    hidden, given = linear(state[0], weights[1], biases[1]), linear(x, weights[0], biases[0])
    return (activation(hidden.add_(given)),)


_tanh_cell, _relu_cell = (partial(_simple_cell, way) for way in (torch.tanh, torch.relu))
_Cell = Callable[[torch.Tensor, _State, _Weights], _State]


def _one_way(
    cell: _Cell, inputs: Sequence[torch.Tensor], state: _State, weights: _Weights
) -> tuple[list[torch.Tensor], _State]:
    outputs = []
    for x in inputs:
        state = cell(x, state, weights)
        outputs.append(state[0])
    return outputs, state


def _layer(
    cell: _Cell, x: torch.Tensor, states: Sequence[_State], weights: Sequence[_Weights]
) -> tuple[torch.Tensor, list[_State]]:
    steps = x.unbind(0)
    outputs, last = _one_way(cell, steps, states[0], weights[0])
    forward = torch.stack(outputs, 0)
    if len(weights) == 1:
        return forward, [last]
    outputs, back = _one_way(cell, steps[::-1], states[1], weights[1])
    backward = torch.stack(outputs[::-1], 0)
    return torch.cat((forward, backward), forward.dim() - 1), [last, back]


def _stack(
    cell: _Cell, kind: str, x: torch.Tensor, hidden: _State, params: _Weights, *options: Any
) -> tuple[torch.Tensor, ...]:
    _, layers, dropout, train, bidirectional, batch_first = options
    kernels.unchecked.add(f"cuDNN's {kind}")
    ways = 1 + bidirectional
    each = len(params) // (layers * ways)
    weights = [params[i : i + each] for i in range(0, len(params), each)]
    states = list(zip(*(h.unbind(0) for h in hidden), strict=True))
    x = x.transpose(0, 1) if batch_first else x
    last: list[_State] = []
    for layer in range(layers):
        of_layer = slice(layer * ways, (layer + 1) * ways)
        x, final = _layer(cell, x, states[of_layer], weights[of_layer])
        last += final
        if dropout and train and layer < layers - 1:
            x = torch.dropout(x, dropout, train)
    x = x.transpose(0, 1) if batch_first else x
    return (x, *(torch.stack(parts, 0) for parts in zip(*last, strict=True)))


def _layers(cell: _Cell, kind: str, x: Any, hidden: Any, *options: Any) -> Any:
    return _stack(cell, kind, x, (hidden,) if torch.is_tensor(hidden) else tuple(hidden), *options)


def _step(cell: _Cell, x: Any, hidden: Any, *weights: Any) -> Any:
    given = [w for w in weights if w is not None]
    if torch.is_tensor(hidden):
        return cell(x, (hidden,), given)[0]
    return cell(x, tuple(hidden), given)


def _packed(kind: str, *_: Any) -> Any:
    raise NotModelledError(f"packed sequences in {kind} have no rule", hint=REHEARSE)


_KINDS: dict[str, _Cell] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _tanh_cell,
    "rnn_relu": _relu_cell,
}
FUNCTIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, kind).input: partial(_layers, cell, kind) for kind, cell in _KINDS.items()},
    **{getattr(aten, kind).data: partial(_packed, kind) for kind in _KINDS},
    **{
        getattr(aten, f"{kind}_cell").default: partial(_step, cell) for kind, cell in _KINDS.items()
    },
}
"""By the operation of aten that each stands for."""
