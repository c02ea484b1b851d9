"""Steps that are served in turns, against an allocator that serves every event of each."""

import sys

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vrambudget.errors import VramBudgetError
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.full_steps import full_steps
from vrambudget.tape.replay import replay_on
from vrambudget.tape.small_and_large_pools import SmallAndLargePools
from vrambudget.tape.steady import run

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
    quick, plain = SmallAndLargePools(), CachingAllocator()
    assert outcome(tape, quick) == outcome(tape, plain)
    assert quick.peak_requested_bytes == plain.peak_requested_bytes
    assert quick.peak_allocated_bytes == plain.peak_allocated_bytes
    assert quick.peak_reserved_bytes == plain.peak_reserved_bytes
    assert (quick.peak_event, quick.peak_step) == (plain.peak_event, plain.peak_step)


@pytest.mark.parametrize("fields", JOBS)
@pytest.mark.parametrize("part", [0.7, 0.9, 0.95, 0.99])
def test_a_card_that_is_too_small_is_full_at_the_same_request(fields, part):
    tape, endless = tape_of(**fields), SmallAndLargePools()
    outcome(tape, endless)
    room = int(endless.peak_requested_bytes + part * endless.peak_reserved_bytes) // 2
    assert outcome(tape, SmallAndLargePools(room)) == outcome(tape, CachingAllocator(room))


def test_few_events_of_a_long_generation_have_to_be_served(monkeypatch):
    served, serve = [0], SmallAndLargePools.serve

    def token_counts(self, events, *rest):
        served[0] += len(events)
        serve(self, events, *rest)

    monkeypatch.setattr(SmallAndLargePools, "serve", token_counts)
    tape = tape_of({"model_type": "gpt2", "n_layer": 24}, prompt=800, new=100, batch=1)
    outcome(tape, SmallAndLargePools())
    [steps] = [mark.steps for mark in tape.marks if mark.steps]
    every = sum(s.count * len(s.patterns[0].events) for s in steps.stretches)
    assert served[0] < every / 2


def full_at(tape, room):
    """Return the step in which every event's replay fills a card: None, no step does."""
    full = outcome(tape, CachingAllocator(room))
    is_decoding = isinstance(full[0], str) and full[0].startswith("decode ")
    return int(full[0].removeprefix("decode ")) if is_decoding else None


def holds(tape, room):
    """Hold what is said of a card without a replay against one; return whether it says it all."""
    steps, full = full_steps(tape, room), full_at(tape, room)
    assert steps.stop == sys.maxsize or not steps if full is None else full in steps
    return len(steps) < 2


@pytest.mark.parametrize("fields", JOBS)
def test_steps_that_have_room_for_certain_never_fill_a_card(fields):
    tape = tape_of(**fields)
    endless = SmallAndLargePools()
    outcome(tape, endless)
    needed = endless.peak_reserved_bytes
    sure = [part / 10 for part in range(1, 60) if not full_steps(tape, needed * part // 10)]
    assert sure
    assert min(sure) >= 1
    outcome(tape, SmallAndLargePools(int(min(sure) * needed)))


WIDE = {"model_type": "gpt2", "n_layer": 4, "n_embd": 512, "n_head": 8, "vocab_size": 500}


def test_for_most_cards_the_step_that_fills_them_needs_no_replay():
    tape = tape_of({**WIDE, "n_layer": 24, "n_positions": 2000}, prompt=64, new=300, batch=96)
    endless = SmallAndLargePools()
    outcome(tape, endless)
    found = [holds(tape, endless.peak_requested_bytes * part // 40) for part in range(39, 61, 3)]
    assert sum(found) > len(found) // 2


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_step_that_is_said_to_fill_a_card_does(data):
    sizes = {"n_layer": st.integers(1, 9), "n_head": st.sampled_from([2, 8])}
    llama = {"model_type": "llama", "hidden_size": 128, "num_attention_heads": 4, "head_dim": 64}
    llama |= {"num_key_value_heads": 4, "intermediate_size": 96, "vocab_size": 90}
    model = data.draw(
        st.one_of(
            st.fixed_dictionaries({key: st.just(value) for key, value in WIDE.items()} | sizes),
            st.just({**llama, "num_hidden_layers": 9}),
            st.just({**llama, "model_type": "mistral", "sliding_window": 200}),
        )
    )
    fields = {
        "prompt": data.draw(st.integers(1, 400), "prompt"),
        "new": data.draw(st.integers(12, 90), "new"),
        "batch": data.draw(st.sampled_from([1, 7, 40, 90]), "batch"),
        "cache": data.draw(st.sampled_from(["dynamic", "dynamic", "quantized", "static"]), "cache"),
        "padding": data.draw(st.sampled_from([None, "left"]), "padding"),
        "num_beams": data.draw(st.sampled_from([1, 1, 1, 3]), "beams"),
        "return_scores": data.draw(st.booleans(), "scores"),
    }
    fields["padding"] = fields["padding"] if fields["batch"] > 1 else None
    try:
        tape = tape_of(model, **{key: value for key, value in fields.items() if value})
    except VramBudgetError:
        assume(False)
    endless = SmallAndLargePools()
    outcome(tape, endless)
    for part in data.draw(st.lists(st.floats(0.4, 1.8), min_size=4, max_size=4), "parts"):
        holds(tape, int(part * endless.peak_requested_bytes))


def test_steps_of_a_tiny_model_on_a_large_card_are_not_replayed(monkeypatch):
    monkeypatch.setattr("vrambudget.tape.quick_steps.run_steps", None)
    tape = tape_of({**GPT2, "n_positions": 4000}, prompt=20, new=3000, batch=1)
    assert replay_on(tape, 8 << 30) is None
