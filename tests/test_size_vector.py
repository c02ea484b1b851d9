"""Sizes of many points compute as the sizes of each point do, and never decide for some of them."""

import math
import operator
import random
from dataclasses import dataclass

import pytest

from vrambudget.engine.sizes import forget, pure
from vrambudget.errors import VramBudgetError

np = pytest.importorskip("numpy")

from vrambudget.planning.size_vector import (  # noqa: E402 - it imports NumPy
    Disagreement,
    Points,
    SizeVector,
    by_regime,
)

VALUES = [3, 8, 1, 4096, 77]
OTHERS = [2, 5, 9, 3, 77]


def sizes(*lists):
    points = Points(len(lists[0]))
    made = tuple(points.size(np.array(values)) for values in lists)
    return made if len(made) > 1 else made[0]


OPERATIONS = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.floordiv,
    operator.truediv,
    operator.mod,
    lambda a, b: -(-a // b) * b,
    lambda a, b: divmod(a, b)[0] + divmod(a, b)[1],
    lambda a, b: 1 << (a % b).bit_length(),
    lambda a, b: math.ceil(0.8 * a / b) + 10,
    lambda a, b: a.bit_length() - b,
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_arithmetic_is_that_of_each_point(operation):
    a, b = sizes(VALUES, OTHERS)
    assert list(operation(a, b).values) == list(map(operation, VALUES, OTHERS))


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("number", [2, 512])
def test_a_number_on_either_side_counts_for_each_point(operation, number):
    for made, expected in (
        (operation(sizes(VALUES), number), [operation(v, number) for v in VALUES]),
        (operation(number, sizes(VALUES)), [operation(number, v) for v in VALUES]),
    ):
        assert list(made.values if isinstance(made, SizeVector) else [made] * 5) == expected


def test_what_is_the_same_for_all_points_is_a_number():
    a, b = sizes(VALUES, [8 - v for v in VALUES])
    assert type(a + b) is int
    assert a + b == 8
    assert list(range(a - a + 3)) == [0, 1, 2]


def test_equal_sizes_are_one_object():
    a, b = sizes(VALUES, OTHERS)
    assert (a + b) * 2 is 2 * b + a * 2
    assert hash(a * b) == hash(b * a)
    assert (a, b) == (b * a // b, b)
    assert a != b + 1000


def test_a_decision_that_is_the_same_for_all_is_a_bool():
    a = sizes(VALUES)
    assert (a > 0) is True
    assert (a > 4096) is False
    assert bool(a) is True
    assert min(a, 5000) is a
    assert 0 not in (a, 1)


@pytest.mark.parametrize(
    ("decide", "mask"),
    [
        (lambda a: a > 8, [False, False, False, True, True]),
        (lambda a: a == 8, [False, True, False, False, False]),
        (lambda a: bool(a % 2), [True, False, True, False, True]),
        (lambda a: min(a, 10), [False, False, False, True, True]),  # 10 < a
        (range, [True, False, False, False, False]),
    ],
)
def test_points_that_disagree_are_told_apart(decide, mask):
    with pytest.raises(Disagreement) as split:
        decide(sizes(VALUES))
    assert split.value.mask.tolist() == mask


def test_sizes_that_cannot_be_counted_exactly_are_refused():
    a = sizes([2**30, 2**29])
    with pytest.raises(VramBudgetError, match="beyond 2\\*\\*52"):
        a * a * 8


def branching(a, b):
    """Decide by sizes in many ways."""
    if a * b > 1000:
        return (a * b, min(a, b))
    if a % 3 == 0:
        return (a + b, sum(range(b)))
    return (max(a, b), 7)


def test_regimes_cover_every_point_once_with_what_it_decides_alone():
    rng = random.Random(1)  # noqa: S311 - the same points every time
    a, b = (np.array([rng.randint(1, 60) for _ in range(500)]) for _ in range(2))
    seen = np.zeros(500, int)
    for indices, result in by_regime(branching, (a, b), 500):
        seen[indices] += 1
        for at, index in enumerate(indices):
            found = tuple(r.values[at] if isinstance(r, SizeVector) else r for r in result)
            assert found == branching(int(a[index]), int(b[index]))
    assert seen.tolist() == [1] * 500


@dataclass(frozen=True)
class Pair:
    first: int
    others: tuple[int, ...]


def test_a_pure_function_does_not_take_its_caller_apart():
    calls = []

    @pure
    def rounded(n):
        calls.append(n)
        return Pair(1 << n.bit_length() if n > 100 else n, (n * 2,))

    n = sizes(VALUES)
    result = rounded(n)
    assert list(result.first.values) == [3, 8, 1, 8192, 77]
    assert result.others == (n * 2,)
    count = len(calls)
    assert rounded(n) is result
    assert len(calls) == count
    forget()
    assert rounded(n) == result
    assert len(calls) > count


def test_results_of_two_forms_do():
    @pure
    def parts(n):
        return (n,) * 2 if n > 7 else (n,)

    with pytest.raises(Disagreement) as split:
        parts(sizes(VALUES))
    assert split.value.mask.tolist() in (
        [False, True, False, True, True],
        [True, False, True, False, False],
    )
