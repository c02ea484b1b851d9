"""Functions that torch.jit.script compiled, by name: any other is run as the Python that it was."""

from collections.abc import Callable
from typing import Any

from vrambudget.ops import scripted


def make_log_bucket_position(relative_pos: Any, *_sizes: int) -> Any:
    """Return DeBERTa's and SEW-D's buckets of distances."""
    return scripted.log_buckets(relative_pos)


SCRIPTS: dict[str, Callable[..., Any]] = {"make_log_bucket_position": make_log_bucket_position}
