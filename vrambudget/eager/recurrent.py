"""Recurrent layers by PyTorch's own CUDA kernels: one fused cell for each step of each layer.

A real GPU runs cuDNN's, which keep other tensors: `doubts` of the report name them.

Source: aten/src/ATen/native/RNN.cpp (lstm, gru, apply_layer_stack, FullBidirectionalLayer,
LSTMCell, GRUCell).
Not modelled: packed sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vrambudget.traced import kernels

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


def _stack(  # noqa: PLR0917 - as aten has them
    cell: _Cell,
    x: torch.Tensor,
    hidden: _State,
    params: _Weights,
    has_biases: bool,  # noqa: FBT001
    layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
    batch_first: bool,  # noqa: FBT001
) -> tuple[torch.Tensor, ...]:
    kernels.unchecked.add(f"cuDNN's {cell.__name__.strip('_').partition('_')[0]}")
    ways = 1 + bidirectional
    each = len(params) // (layers * ways)
    del has_biases
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


def _lstm(x: Any, hidden: Any, *options: Any) -> Any:
    return _stack(_lstm_cell, x, tuple(hidden), *options)


def _gru(x: Any, hidden: Any, *options: Any) -> Any:
    return _stack(_gru_cell, x, (hidden,), *options)


def _lstm_step(x: Any, hidden: Any, *weights: Any) -> Any:
    return _lstm_cell(x, tuple(hidden), [w for w in weights if w is not None])


def _gru_step(x: Any, hidden: Any, *weights: Any) -> Any:
    return _gru_cell(x, (hidden,), [w for w in weights if w is not None])[0]


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    aten.lstm.input: _lstm,
    aten.gru.input: _gru,
    aten.lstm_cell.default: _lstm_step,
    aten.gru_cell.default: _gru_step,
}
"""By the operation of aten that each stands for."""
