"""Calls of torch that `ops` has an operation for, by what is called.

A rule takes the engine's tensors in the place of torch's and returns such; NotImplemented leaves
the call to the general rule (traced.meta_fallback), which knows all that autograd knows.
"""

from collections.abc import Callable
from typing import Any

from vrambudget.ops import scripted
from vrambudget.traced.rules import (
    arithmetic,
    attention,
    convolutions,
    fills,
    norms,
    products,
    shapes,
)
from vrambudget.traced.rules.attributes import ATTRIBUTES
from vrambudget.traced.rules.table import COUNTING, RULES, WRITING

__all__ = ["ATTRIBUTES", "COUNTING", "RULES", "SCRIPTS", "WRITING"]
_FILLED = arithmetic, attention, convolutions, fills, norms, products, shapes
"""Each fills the table as it is imported."""

SCRIPTS: dict[str, Callable[..., Any]] = {
    "make_log_bucket_position": lambda positions, *_sizes: scripted.log_buckets(positions)
}
"""Functions that torch.jit.script compiled, by name: any other is run as the Python that it was."""
