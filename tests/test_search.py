"""The search finds the border of everything that rises, in few tries, wherever it starts."""

import itertools

import pytest

from vrambudget.planning.search import Try, largest_that_fits

LINES = {
    "a line": lambda n: 1000 + 7 * n,
    "segments of 64": lambda n: 1000 + 7 * n // 64 * 64,
    "a square": lambda n: 500 + n * n,
    "a bend": lambda n: max(40_000, 90 * n),
    "a step": lambda n: 10 if n < 777 else 10**9,
}


def search(line, sizes, start, room):
    asked = []

    def attempt(n):
        asked.append(n)
        return Try(line(n), 1000, fits=line(n) <= room)

    return largest_that_fits(sizes, attempt, start=start, room=room), asked


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize("sizes", [range(1, 5000), range(64, 4097, 64), [1, 2, 4, 8, 512]])
def test_the_answer_fits_and_the_next_does_not(line, sizes):
    for start, room in itertools.product((1, 3, 64, 5000), (5, 1000, 20_000, 60_000, 10**10)):
        found, asked = search(line, sizes, start, room)
        assert found == max((n for n in sizes if line(n) <= room), default=None)
        assert len(asked) == len(set(asked))


def test_on_a_line_three_tries_are_enough():
    _, asked = search(LINES["a line"], range(1, 2**31), 64, 1000 + 7 * 123_456)
    assert asked == [64, 123_456, 123_457]


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_bad_guess_costs_no_more_than_twice_a_search_by_halves(line):
    _, asked = search(line, range(1, 2**20), 1, 60_000)
    assert len(asked) <= 2 * 20 + 2
