"""The inverse frequencies of rotary embeddings by `rope_type`: float32 [dim / 2] each time.

They are a few hundred bytes; but where the temporaries that make them lie decides, block by block,
where the buffers that stay come to lie. Each `made` is one operation of the formula beside it.

Source: modeling_rope_utils.py (ROPE_INIT_FUNCTIONS), modeling_llama.py
(compute_default_rope_parameters).
"""

from collections.abc import Callable

from vrambudget.dtypes import bool_, float32, int64
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.engine.versions import transformers_since
from vrambudget.ops.creation import made


def default(dim: int) -> Tensor:
    """1 / base ** (arange(0, dim, 2) / dim); before 5.15 as `linear`."""
    if not transformers_since(5, 15):
        return linear(dim)
    return _over(_powers(_chain((dim // 2,), "arange", "div")))


def linear(dim: int) -> Tensor:
    """1 / base ** (arange(0, dim, 2).float() / dim), then divided in place; `dynamic` too."""
    return _over(_powers(_exponents(dim)))


def yarn(dim: int) -> Tensor:
    """Two sets of frequencies, blended by a ramp."""
    half = (dim // 2,)
    frequencies = _powers(_exponents(dim))
    extrapolation = _over(frequencies)
    interpolation = _over(made("mul", half, float32))  # factor * frequencies
    ramp = _chain(half, "arange", "sub", "div", "clamp", "sub")
    blended = _sum(_chain(half, "sub", "mul"), made("mul", half, float32))
    del frequencies, extrapolation, interpolation, ramp
    return blended


def llama3(dim: int) -> Tensor:
    """Frequencies of long waves divided, of medium ones blended."""
    half = (dim // 2,)
    frequencies = _over(_powers(_exponents(dim)))
    wavelengths = _over(frequencies)
    scaled = _where(made("gt", half, bool_), made("div", half, float32))
    smooth = _chain(half, "reciprocal", "mul", "sub", "div")
    blended = _sum(_chain(half, "sub", "mul", "div"), made("mul", half, float32))
    is_medium = _product(_not("lt", half), _not("gt", half))
    result = made("where", half, float32)
    del frequencies, wavelengths, scaled, smooth, blended, is_medium
    return result


def longrope(dim: int) -> Tensor:
    """1 / (factors * base ** exponents), the factors a list of the configuration's."""
    half = (dim // 2,)
    factors = made("to_device", half, float32)
    exponents = _exponents(dim)
    powers = _powers(exponents)
    scaled = made("mul", half, float32)
    del powers
    result = _over(scaled)
    del factors, exponents
    return result


FREQUENCIES: dict[str, Callable[[int], Tensor]] = {
    "default": default,
    "linear": linear,
    "dynamic": linear,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
"""Formulas by `rope_type`."""


def _exponents(dim: int) -> Tensor:
    """arange(0, dim, 2).float() / dim."""
    half = (dim // 2,)
    steps = made("arange", half, int64)
    as_floats = made("to_dtype", half, float32)
    del steps
    exponents = made("div", half, float32)
    del as_floats
    return exponents


def _powers(exponents: Tensor) -> Tensor:
    """Return base ** exponents; the base is brought to the device."""
    powers = made("pow", exponents.shape, float32)
    base = made("pow", (), int64)
    del base
    return powers


def _over(x: Tensor) -> Tensor:
    """1 / x, or another number: a reciprocal, then a product."""
    reciprocal = made("reciprocal", x.shape, float32)
    result = made("mul", x.shape, float32)
    del reciprocal
    return result


def _chain(shape: Shape, *operations: str) -> Tensor:
    """Return the last of several results; each dies when the next is made."""
    result = made(operations[0], shape, float32)
    for operation in operations[1:]:
        result = made(operation, shape, float32)
    return result


def _sum(a: Tensor, b: Tensor) -> Tensor:
    return made("add", b.shape, a.dtype)


def _product(a: Tensor, b: Tensor) -> Tensor:
    return made("mul", b.shape, a.dtype)


def _not(comparison: str, shape: Shape) -> Tensor:
    """~(x < limit)."""
    compared = made(comparison, shape, bool_)
    result = made("bitwise_not", shape, bool_)
    del compared
    return result


def _where(condition: Tensor, value: Tensor) -> Tensor:
    return made("where", condition.shape, value.dtype)
