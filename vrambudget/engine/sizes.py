"""What a size may be: an int, or an object that stands for the sizes of many points at once.

Such an object computes like an int and answers a comparison if all its points agree; else it raises
`Split`, and whoever walks a model for many points walks them in groups. A function that only turns
sizes into sizes need not take the whole walk apart: `pure` computes it group by group and joins the
results, where they have one form.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_FORGETTING: list[Callable[[], None]] = []


class Split(Exception):  # noqa: N818 - no error, a request
    """A decision that is not the same for all points."""

    def joined(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return what `function` returns, computed for each group of points.

        Raises Split where the groups' results differ in more than sizes.
        """
        raise NotImplementedError


def pure(function: F) -> F:
    """Remember the results of a function that depends on its arguments alone, sizes among them."""

    @lru_cache(maxsize=4096)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except Split as split:
            return split.joined(partial(function, **kwargs), args)

    call.__doc__ = function.__doc__
    _FORGETTING.append(call.cache_clear)
    return cast("F", call)


def forget() -> None:
    """Let go of all that pure functions remember: the sizes of many points are large."""
    for clear in _FORGETTING:
        clear()
