"""4-bit weights of a live model, as bitsandbytes keeps them.

    quant            quant_state.quant_type of the parameters that are Params4bit
    double_quant     whether their scales are quantised, too
    16-bit type      quant_state.dtype, which products compute in (Linear4bit.compute_dtype)
    shape            quant_state.shape: the parameter itself is a column of packed bytes

Source: bitsandbytes nn/modules.py (Params4bit, Linear4bit), functional.py (QuantState), 0.50.
Not modelled: fp4, blocks of other sizes, products in another type, 8-bit weights.
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.errors import NotModelledError

_BLOCK = 64  # weights that share a scale, on NVIDIA's GPUs
_REHEARSE = "`vrambudget rehearse --gpu GPU -- python SCRIPT` runs any script on a virtual GPU"


def is_4bit(parameter: Any) -> bool:
    """Return whether a parameter holds weights in 4 bit."""
    return type(parameter).__name__ == "Params4bit"


def shape_of(parameter: Any) -> tuple[int, ...]:
    """Return the shape of a weight, whatever it is packed in."""
    return tuple(_state(parameter).shape if is_4bit(parameter) else parameter.shape)


def read_quant(model: Any) -> dict[str, Any]:
    """Return the job's fields of 4-bit weights, none for a model without any."""
    states = [_state(p) for p in model.parameters() if is_4bit(p)]
    if not states:
        return {}
    kinds = {(s.quant_type, s.blocksize, bool(s.nested), str(s.dtype)) for s in states}
    if len(kinds) > 1:
        raise NotModelledError("4-bit weights of more than one kind", hint=_REHEARSE)
    ((kind, block, nested, dtype),) = kinds
    if (kind, block) != ("nf4", _BLOCK):
        raise NotModelledError(f"4-bit weights {kind} in blocks of {block}", hint=_REHEARSE)
    layers = [m for m in model.modules() if is_4bit(vars(m).get("_parameters", {}).get("weight"))]
    computed = {str(getattr(layer, "compute_dtype", None)) for layer in layers}
    if computed != {dtype}:
        raise NotModelledError(
            f"4-bit weights of {dtype} whose products are in {' and '.join(sorted(computed))}",
            hint=f"bnb_4bit_compute_dtype={dtype} is modelled; or {_REHEARSE}",
        )
    return {"quant": kind, "double_quant": nested}


def quantised_from(model: Any) -> str | None:
    """Return the type that the weights were quantised from, None if they are not in 4 bit."""
    return next((str(_state(p).dtype) for p in model.parameters() if is_4bit(p)), None)


def held_by(parameter: Any) -> Iterator[Any]:
    """Yield the tensors that a 4-bit weight keeps beside its packed bytes."""
    state = getattr(parameter, "quant_state", None) if is_4bit(parameter) else None
    while state is not None:
        yield from (x for x in (state.absmax, state.code, state.offset) if x is not None)
        state = state.state2


def _state(parameter: Any) -> Any:
    if (state := parameter.quant_state) is None:
        raise NotModelledError("4-bit weights that are not on the GPU yet", hint=_REHEARSE)
    return state
