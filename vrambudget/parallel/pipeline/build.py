"""A stage's memory: built on the GPU in float32, then cast, as `Stage(...).to(dtype)` does it.

The constructor makes parameters in order; the table of positions is computed, with temporaries.
The cast takes parameters one by one, children first: the copy, then the end of the original. The
table would be cast, too, and is put back.

Source: torch/nn/modules/module.py (to, _apply); torchtitan/models/llama3/model/model.py
(precompute_freqs_cis).
"""

from vrambudget.dtypes import complex64, float32, float64, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, numel
from vrambudget.ops.creation import made
from vrambudget.parallel.pipeline.cut import Piece
from vrambudget.tape.events import Purpose, Storage


def build(piece: Piece) -> None:
    """Give a stage's parameters and table their memory."""
    weight = piece.layers[0].attention_norm.weight
    _construct(piece)
    _cast(piece)
    with made_for(Purpose.WEIGHTS):
        cast_table = made("to_copy", piece.freqs_cis.shape, weight.dtype)
    del cast_table


def _construct(module: Module) -> None:
    context.tape.module = module.path
    for value in module.__dict__.values():
        if isinstance(value, Module):
            _construct(value)
        elif isinstance(value, list):
            for item in value:
                _construct(item)
        elif isinstance(value, Parameter):
            nbytes = value.numel * float32.itemsize
            value.storage = Storage(
                context.tape, nbytes, Purpose.WEIGHTS, "parameter", (value.shape, float32)
            )
        elif isinstance(value, Tensor):
            value.storage = _table(*value.shape).storage
    context.tape.module = 0


def _table(length: int, half: int) -> Tensor:
    """Return the rotations [length, half] of torch.polar."""
    even = made("arange", (half,), int64)
    as_float = made("to_copy", (half,), float32)
    del even
    exponents = made("div", (half,), float32)
    del as_float
    powers = made("pow", (half,), float32)
    base = made("scalar", (), float64)
    del base, exponents
    reciprocals = made("reciprocal", (half,), float32)
    frequencies = made("mul", (half,), float32)
    del reciprocals, powers
    positions = made("arange", (length,), int64)
    angles = made("outer", (length, half), float32)
    del positions, frequencies
    ones = made("ones_like", (length, half), float32)
    with made_for(Purpose.WEIGHTS):
        table = made("polar", (length, half), complex64)
    del ones, angles
    return table


def _cast(module: Module) -> None:
    for child in module.children():
        _cast(child)
    context.tape.module = module.path
    for value in module.__dict__.values():
        if isinstance(value, Parameter) and value.dtype is not float32:
            nbytes = numel(value.shape) * value.dtype.itemsize
            value.storage = Storage(
                context.tape, nbytes, Purpose.WEIGHTS, "to_copy", (value.shape, value.dtype)
            )
    context.tape.module = 0
