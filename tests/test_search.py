"""The search finds the border of everything that rises, in few tries, wherever it starts."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from vrambudget.planning import fit as fit_module
from vrambudget.planning import search as search_module
from vrambudget.planning.search import Try, largest_that_fits
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

MODEL = search_module._OF_NO_BATCH  # noqa: SLF001 - what a batch does not change
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

    return largest_that_fits(sizes, attempt, start=start, limit=room), asked


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


def test_where_the_line_misleads_halves_are_tried():
    found, asked = search(lambda n: 1000 + 7 * (n // 100 * 100) // 4, range(1, 2**31), 2, 12_900)
    assert found == 6899
    assert len(asked) <= 24  # in steps by one as often as by halves it would be 33


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_a_bad_guess_costs_no_more_than_twice_a_search_by_halves(line):
    _, asked = search(line, range(1, 2**20), 1, 60_000)
    assert len(asked) <= 2 * 20 + 2


def scaled(tape, batch):
    """Return the tape of a batch `batch` times as large, as a compiler might lay it."""
    pairs = zip(tape.sizes, tape.purposes, strict=True)
    return replace(tape, sizes=[s if p in MODEL else batch * s for s, p in pairs])


def test_one_tape_says_which_size_to_try(monkeypatch):
    scenario = resolve("nanogpt", block=64, gpu="A100", compile=True, batch=3, steps=3)
    job = scenario.job.model_copy(update={"compile": False, "batch": 1})
    one = simulate(scenario.config, job, scenario.platform).tape
    asked = []

    def compiled(_config, job, _platform):
        asked.append(job.batch)
        return SimpleNamespace(tape=scaled(one, job.batch))

    monkeypatch.setattr(fit_module, "simulate", compiled)
    needs = replay(scaled(one, 29)).peak.reserved_bytes
    monkeypatch.setattr(type(scenario.gpu), "available_bytes", property(lambda _gpu: needs))
    found = fit_module.fit(scenario).batch
    peaks = [replay(scaled(one, n)).peak.reserved_bytes for n in (found, found + 1)]
    assert peaks[0] <= needs < peaks[1]
    assert len(asked) <= 5
