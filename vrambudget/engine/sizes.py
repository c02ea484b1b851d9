"""What a size may be: an int, or an object that stands for the sizes of many points at once.

Such an object computes like an int. A comparison has a result if all its points agree; otherwise it
raises `Split`, and the caller runs the model for groups of points. A function that only maps sizes
to sizes need not split the whole run: `pure` computes it group by group and joins the results, if
they have the same form.
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

_FORGETTING: list[Callable[[], None]] = []


class ManySizes:
    """An object that stands for the sizes of many points."""

    __slots__ = ()


class Split(Exception):  # noqa: N818 - no error, a request
    """A decision that is not the same for all points."""

    def joined(self, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Return what `function` returns, computed for each group of points.

        Raises Split if the groups' results differ in more than sizes.
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
    """Clear what pure functions remember: the sizes of many points are large."""
    for clear in _FORGETTING:
        clear()
