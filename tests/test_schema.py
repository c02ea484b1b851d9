"""Values are checked strictly against annotations, and every mistake is told with its place."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from vrambudget.schema import MISSING_KEY, UNKNOWN_KEY, Rule, checked


def _upper(value):
    if not isinstance(value, str):
        raise ValueError("it should be a word")  # noqa: TRY004 - what `before` raises
    return value.upper()


@dataclass
class Point:
    """What a saved file might hold."""

    x: int
    tags: tuple[str, ...] = ()
    scale: float | None = None


@pytest.mark.parametrize(
    ("annotation", "value", "kept"),
    [
        (int, 3, 3),
        (float, 3, 3.0),
        (bool, True, True),
        (Any, object, object),
        (int | None, None, None),
        (Literal["a", 1], 1, 1),
        (Literal[False] | None, False, False),
        (tuple[int, ...], [1, 2], (1, 2)),
        (tuple[int, str], (1, "b"), (1, "b")),
        (dict[str, float], {"a": 1}, {"a": 1.0}),
        (Mapping[str, Any], {"a": {}}, {"a": {}}),
        (Annotated[str, Rule(before=_upper, pattern="^A")], "ab", "AB"),
        (Point, {"x": 1, "tags": ["a"], "scale": 2}, Point(1, ("a",), 2.0)),
    ],
)
def test_what_is_right_is_kept_in_its_own_type(annotation, value, kept):
    problems = []
    result = checked(value, annotation, problems)
    assert problems == []
    assert (result, type(result)) == (kept, type(kept))


@pytest.mark.parametrize(
    ("annotation", "value", "mistakes"),
    [
        (int, True, {(): "it should be a valid integer"}),
        (int, 1.0, {(): "it should be a valid integer"}),
        (int, "1", {(): "it should be a valid integer"}),
        (float, False, {(): "it should be a valid number"}),
        (float, math.nan, {(): "it should be a finite number"}),
        (float, 10**400, {(): "it should be a finite number"}),
        (bool, 1, {(): "it should be a valid boolean"}),
        (Literal[False] | None, 0, {(): "it should be False"}),
        (Literal["a", "b", "c"], "d", {(): "it should be 'a', 'b' or 'c'"}),
        (tuple[int, ...], "ab", {(): "it should be a valid tuple"}),
        (tuple[int, int], [1], {(): "it should have 2 items"}),
        (tuple[int, ...], [1, "2", "3"], {(n,): "it should be a valid integer" for n in (1, 2)}),
        (dict[str, int], {1: 1}, {(): "it should be a valid dictionary"}),
        (dict[str, int], {"a": "1"}, {("a",): "it should be a valid integer"}),
        (Annotated[int, Rule(ge=1)] | None, 0, {(): "it should be greater than or equal to 1"}),
        (Annotated[Annotated[int, Rule(ge=1)], Rule(lt=3)], 3, {(): "it should be less than 3"}),
        (Annotated[str, Rule(pattern="^A")], "b", {(): "it should match '^A'"}),
        (Annotated[str, Rule(before=_upper)], 1, {(): "it should be a word"}),
        (Point, [], {(): "it should be an object"}),
        (Point, {"tags": [1], "y": 2}, {
            ("x",): MISSING_KEY, ("tags", 0): "it should be a valid string", ("y",): UNKNOWN_KEY
        }),
    ],
)  # fmt: skip
def test_every_mistake_is_told_with_its_place(annotation, value, mistakes):
    problems = []
    checked(value, annotation, problems)
    assert {problem.path: problem.rule for problem in problems} == mistakes
