"""Settings: what is right is kept as its type, what is not is refused by name; copies behave."""

import math
import pickle
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest

from vrambudget.config import Job
from vrambudget.config.settings import Field, Settings
from vrambudget.declared import Before
from vrambudget.errors import VramBudgetError


def same(one, other):
    return type(one) is type(other) and one == other


class Words(StrEnum):
    A = "a"


class Large(int):
    """An int of another class."""


class Cases(Settings):
    size: Annotated[int, Field(ge=1, lt=9)] = 1
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    word: Literal["a", 1] = "a"
    flag: bool = False
    pair: tuple[int, float] = (1, 1.0)
    upper: Annotated[str, Before(lambda x: x.upper() if isinstance(x, str) else x)] = "A"
    table: dict[str, Any] = Field(default_factory=dict)


@pytest.mark.parametrize(
    ("field", "value", "kept"),
    [
        ("size", 8, 8),
        ("share", 1, 1.0),
        ("share", None, None),
        ("word", 1, 1),
        ("pair", (2, 3), (2, 3.0)),
        ("upper", "b", "B"),
        ("table", {"x": [1]}, {"x": [1]}),
        ("pair", [2, 3.5], (2, 3.5)),
        ("word", Words.A, "a"),
        ("size", Large(8), 8),
    ],
)
def test_a_plain_value_is_kept(field, value, kept):
    assert same(getattr(Cases(**{field: value}), field), kept)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("size", True),
        ("size", 9),
        ("size", "1"),
        ("size", 1.0),
        ("share", 0.0),
        ("share", math.nan),
        ("share", math.inf),
        ("word", "b"),
        ("flag", 1),
        ("pair", (1,)),
        ("pair", (1, "x")),
        ("table", {1: 2}),
        ("pair", 1),
        ("share", 10**400),
        ("share", True),
        ("word", True),
        ("upper", 1),
        ("colour", 1),
    ],
)
def test_what_is_wrong_is_refused_by_name(field, value):
    with pytest.raises(VramBudgetError, match=field):
        Cases(**{field: value})


def test_a_copy_has_what_was_changed_and_knows_what_was_given():
    job = Job(batch=4)
    other = job.model_copy(update={"block": 8})

    assert (other.batch, other.block, job.block) == (4, 8, None)
    assert other.model_fields_set == {"batch", "block"}
    assert other.model_dump(exclude_unset=True) == {"batch": 4, "block": 8}
    again = pickle.loads(pickle.dumps(other))  # noqa: S301 - our own
    assert (again, hash(again), again.model_fields_set) == (other, hash(other), {"batch", "block"})
