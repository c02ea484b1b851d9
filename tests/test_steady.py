"""What is passed over changes nothing: a tape run in short is the tape run in full.

Held against the same tape without its periods, which is run event by event.
"""

from dataclasses import replace

import pytest

from vrambudget.config.gpus import find_gpu
from vrambudget.estimator import estimate
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay, replay_on
from vrambudget.tape.settling import MOST_STEPS
from vrambudget.tape.steady import run

GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 256, "n_head": 4, "vocab_size": 5000}
LLAMA = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 320}
LLAMA |= {"intermediate_size": 900, "num_attention_heads": 5, "vocab_size": 3000}
JOBS = {
    "many steps": (GPT2, {"batch": 5, "block": 300, "steps": 40}),
    "many micro-batches": (GPT2, {"batch": 3, "block": 200, "grad_accum": 24}),
    "both": (LLAMA, {"batch": 2, "block": 333, "grad_accum": 9, "steps": 12, "clip": 1.0}),
    "evaluation": (LLAMA, {"batch": 7, "block": 100, "steps": 30, "mode": "eval"}),
    "segments that grow": (
        GPT2,
        {"batch": 4, "block": 250, "grad_accum": 20, "expandable_segments": True},
    ),
    "no outputs held": (GPT2, {"batch": 5, "block": 256, "steps": 20, "keep_outputs": False}),
    "adapters": (LLAMA, {"batch": 2, "block": 90, "grad_accum": 15, "lora_rank": 4}),
}
each_job = pytest.mark.parametrize(("model", "fields"), JOBS.values(), ids=JOBS)


def tape_of(model, fields) -> Tape:
    scenario = resolve(model, gpu="t4", precision="amp-fp16", **{"use_cache": False, **fields})
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def in_full(tape: Tape) -> Tape:
    return replace(tape, marks=[mark._replace(period=0) for mark in tape.marks])


@each_job
def test_a_replay_in_short_is_the_replay_in_full(model, fields):
    tape = tape_of(model, fields)
    assert replay(tape) == replay(in_full(tape))


@each_job
def test_what_is_allocated_is_the_same_at_every_mark(model, fields):
    tape = tape_of(model, fields)
    short, full = (list(run(it, allocator_for(it))) for it in (tape, in_full(tape)))
    assert [allocated for _, allocated in short] == [allocated for _, allocated in full]


@each_job
def test_a_card_is_full_at_the_same_moment(model, fields):
    tape = tape_of(model, fields)
    reserved = replay(tape).peak.reserved_bytes
    rooms = [reserved * percent // 100 for percent in (50, 80, 90, 95, 98, 100)]
    short = [replay_on(tape, room) for room in rooms]
    assert short == [replay_on(in_full(tape), room) for room in rooms]
    assert short[0] is not None
    assert short[-1] is None


@each_job
def test_most_of_a_long_job_is_passed_over(model, fields, monkeypatch):
    tape, ran = tape_of(model, fields), 0
    kind = type(allocator_for(tape))
    run_all = kind.run

    def token_counts(self, events, sizes, start=0, stop=None):
        nonlocal ran
        ran += stop - start
        run_all(self, events, sizes, start, stop)

    monkeypatch.setattr(kind, "run", token_counts)
    replay(tape)
    assert ran < 0.8 * tape.marks[-1].position


def test_the_blocks_after_a_part_that_is_passed_over_are_those_of_a_full_run():
    tape = tape_of(*JOBS["both"])
    states = []
    for it in (tape, in_full(tape)):
        allocator = CachingAllocator()
        for _ in run(it, allocator):
            pass
        alive = set()
        for event in it.events[: it.marks[-1].position]:
            alive.add(event) if event >= 0 else alive.remove(~event)
        states.append((allocator.state(), allocator.blocks(sorted(alive))))
    assert states[0] == states[1]


LEFT_OPEN = {
    "goes on": (GPT2, {"batch": 5, "block": 300, "use_cache": True}),
    "settles": (LLAMA, {"batch": 2, "block": 128, "optimizer": "sgd"}),
    "micro-batches": (LLAMA, {"batch": 2, "block": 333, "grad_accum": 3, "clip": 1.0}),
    "evaluates": (GPT2, {"batch": 4, "block": 250, "eval_batches": 2}),
    "trainer": (GPT2, {"batch": 4, "block": 250, "loop": "trainer", "eval_batches": 3}),
    "eval": (LLAMA, {"batch": 7, "block": 100, "mode": "eval", "use_cache": True}),
}


@pytest.mark.parametrize(("model", "fields"), LEFT_OPEN.values(), ids=LEFT_OPEN)
def test_steps_that_nobody_counted_go_on_until_no_peak_is_new(model, fields):
    found = replay(tape_of(model, fields))
    assert found.peak.step <= len(found.steps) <= MOST_STEPS
    full = replay(tape_of(model, {**fields, "steps": MOST_STEPS}))
    assert found.steps == full.steps[: len(found.steps)]
    assert found.steps[-1].peak_reserved_bytes == full.peak.reserved_bytes
    assert (found.peak, found.breakdown) == (full.peak, full.breakdown)


def test_steps_that_somebody_counted_are_as_many():
    assert len(replay(tape_of(GPT2, {"batch": 5, "block": 300, "steps": 3})).steps) == 3


def test_a_job_that_settles_is_left_soon():
    assert len(replay(tape_of(*LEFT_OPEN["settles"])).steps) < MOST_STEPS


def test_a_budget_says_how_many_steps_were_replayed():
    known = estimate(GPT2, batch=5, block=300)
    assert known.job["steps"] == len(known.steps) == 3
    room = known.peak.reserved_bytes * 17 // 16  # it may not do, so steps go on
    context = find_gpu("12GB").context_bytes
    budget = estimate(GPT2, batch=5, block=300, gpu=f"{room + context}B")
    assert budget.job["steps"] == len(budget.steps) > 3
