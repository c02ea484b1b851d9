"""Steps that are served in turns, against an allocator that serves every event of each."""

import pytest

from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_card import OutOfDeviceMemoryError
from vrambudget.tape.replay import replay_on
from vrambudget.tape.room import has_room
from vrambudget.tape.steady import run
from vrambudget.tape.two_pools import TwoPools

GPT2 = {"model_type": "gpt2", "n_layer": 6}
CROSSING = {"prompt": 300, "new": 60, "batch": 2}  # keys and values become large at 341 tokens
JOBS = [
    pytest.param({"prompt": 200, "new": 90, "batch": 16}, id="large"),
    pytest.param({"prompt": 20, "new": 90, "batch": 2}, id="small"),
    pytest.param(CROSSING, id="small, then large"),
    pytest.param({"prompt": 200, "new": 90, "batch": 8, "padding": "left"}, id="eight alternate"),
    pytest.param({"prompt": 300, "new": 60, "num_beams": 5}, id="beams"),
]


def tape_of(model=GPT2, **fields):
    scenario = resolve(model, gpu="a100-80gb", mode="generate", **fields)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def outcome(tape, allocator):
    """Return what can be seen of a replay, and how the allocator stands in the end."""
    try:
        seen = [(mark.phase, allocated) for mark, allocated in run(tape, allocator)]
    except OutOfDeviceMemoryError as full:
        return full.phase, full.operation, full.requested_bytes, full.allocated_bytes
    return seen, allocator.state(), allocator.num_alloc_retries


@pytest.mark.parametrize("fields", JOBS)
def test_turns_end_where_events_one_by_one_end(fields):
    tape = tape_of(**fields)
    quick, plain = TwoPools(), CachingAllocator()
    assert outcome(tape, quick) == outcome(tape, plain)
    assert quick.peak_requested_bytes == plain.peak_requested_bytes
    assert quick.peak_allocated_bytes == plain.peak_allocated_bytes
    assert quick.peak_reserved_bytes == plain.peak_reserved_bytes
    assert (quick.peak_event, quick.peak_step) == (plain.peak_event, plain.peak_step)


@pytest.mark.parametrize("fields", JOBS)
@pytest.mark.parametrize("part", [0.7, 0.9, 0.95, 0.99])
def test_a_card_that_is_too_small_is_full_at_the_same_request(fields, part):
    tape, endless = tape_of(**fields), TwoPools()
    outcome(tape, endless)
    room = int(endless.peak_requested_bytes + part * endless.peak_reserved_bytes) // 2
    assert outcome(tape, TwoPools(room)) == outcome(tape, CachingAllocator(room))


def test_few_events_of_a_long_generation_have_to_be_served(monkeypatch):
    served, serve = [0], TwoPools.serve

    def counted(self, events, *rest):
        served[0] += len(events)
        serve(self, events, *rest)

    monkeypatch.setattr(TwoPools, "serve", counted)
    tape = tape_of({"model_type": "gpt2", "n_layer": 24}, prompt=800, new=100, batch=1)
    outcome(tape, TwoPools())
    [steps] = [mark.steps for mark in tape.marks if mark.steps]
    every = sum(s.count * len(s.patterns[0].events) for s in steps.stretches)
    assert served[0] < every / 2


@pytest.mark.parametrize("fields", JOBS)
def test_steps_that_have_room_for_certain_never_fill_a_card(fields):
    tape = tape_of(**fields)
    endless = TwoPools()
    outcome(tape, endless)
    needed = endless.peak_reserved_bytes
    sure = [part / 10 for part in range(1, 60) if has_room(tape, needed * part // 10)]
    assert sure
    assert min(sure) >= 1
    outcome(tape, TwoPools(int(min(sure) * needed)))


def test_steps_of_a_tiny_model_on_a_large_card_are_not_replayed(monkeypatch):
    monkeypatch.setattr("vrambudget.tape.quick_steps.run_steps", None)
    tape = tape_of({**GPT2, "n_positions": 4000}, prompt=20, new=3000, batch=1)
    assert replay_on(tape, 8 << 30) is None
