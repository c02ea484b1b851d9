"""DeepSpeed's checks that all ranks have the same lists: the others sent nothing, and agree.

The lists still go to the GPU and back; only the disagreement with what was read is not raised.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

CHECKS = "deepspeed.runtime.zero.utils"  # the module that has them
_NAMES = ("assert_lst_len_same_as_other_ranks", "assert_ints_same_as_other_ranks")


def agree(module: ModuleType) -> None:
    """Let the checks pass, before other modules take them."""
    for name in _NAMES:
        if hasattr(module, name):
            setattr(module, name, _agreed(getattr(module, name)))


def _agreed(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(check)
    def checked(ints: Any) -> None:
        try:
            check(ints)
        except RuntimeError as error:  # as running out of memory is
            if "disagreement" not in str(error):
                raise

    return checked
