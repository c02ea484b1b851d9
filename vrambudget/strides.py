"""Strides of tensors without gaps, in elements."""

from collections.abc import Iterable


def strides_in(order: Iterable[int], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of dimensions that lie in this order, the innermost first."""
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= shape[dim]
    return tuple(strides)
