"""Pipelines: what each rank keeps of its microbatches. Records of whole jobs: test_records.py."""

import pytest

from vrambudget import estimate
from vrambudget.errors import VramBudgetError
from vrambudget.parallel.pipeline.schedules import interleaved_order
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

TITAN = {
    "model_type": "titan",
    "dim": 128,
    "n_layers": 4,
    "n_heads": 4,
    "n_kv_heads": 2,
    "hidden": 256,
    "vocab_size": 1000,
}


def small(**fields):
    told = {"block": 64, "batch": 8, "precision": "bf16", "parallel": "pp=4", **fields}
    return estimate(TITAN, gpu="a100-80gb", **told)


def buffers(rank, **fields):
    told = {"block": 64, "batch": 8, "precision": "bf16", "parallel": "pp=4", **fields}
    scenario = resolve(TITAN, gpu="a100-80gb", rank=rank, **told)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    return [size for i, size in enumerate(tape.sizes) if tape.operations[i] == "recv_buffer"]


def test_buffers_receive_all_microbatches_once_at_each_end_of_a_stage():
    hidden = 2 * 64 * 128 * 2  # of a microbatch of two sequences
    assert buffers(0, microbatches=4) == [hidden] * 4  # gradients
    assert buffers(1, microbatches=4) == [hidden] * 8  # inputs and gradients
    assert buffers(3, microbatches=4) == [hidden] * 4  # inputs


def test_the_first_rank_of_1f1b_keeps_fewer_microbatches_than_that_of_gpipe():
    peaks = [small(rank=0, schedule=name).peak.requested_bytes for name in ("1F1B", "GPipe")]
    assert peaks[0] < peaks[1]


def test_the_last_rank_takes_most_for_it_keeps_all_logits():
    budget = small()
    assert budget.distributed is not None
    assert [peak.rank for peak in budget.distributed.peaks] == [0, 1, 2, 3]
    assert budget.job["rank"] == 3


def test_an_interleaved_rank_runs_each_microbatch_of_each_stage_once_each_way():
    order = list(interleaved_order(stages=2, ranks=2, rank=1, microbatches=4))
    assert sorted(order) == sorted(
        (way, stage, n) for way in (True, False) for stage in (0, 1) for n in range(4)
    )
    # the last rank warms up with its first stage's round of two, then one forward, one back
    assert order[:4] == [(True, 0, 0), (True, 0, 1), (True, 1, 0), (False, 1, 0)]


def test_what_pytorch_calls_interleaved_is_that_order():
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")

    class Interleaved(schedules.ScheduleInterleaved1F1B):
        def __init__(self, stages, ranks, microbatches):
            self.n_local_stages, self.pp_group_size = stages, ranks
            self._n_microbatches = microbatches
            self.microbatches_per_round = microbatches // max(1, microbatches // ranks)

    for stages, ranks, microbatches in ((2, 2, 8), (3, 2, 4), (2, 3, 6), (2, 4, 10)):
        theirs = Interleaved(stages, ranks, microbatches)
        for rank in range(ranks):
            actions = theirs._calculate_single_rank_operations(rank)  # noqa: SLF001
            told = [
                (a.computation_type.name == "FORWARD", a.stage_index // ranks, a.microbatch_index)
                for a in actions
                if a is not None
            ]
            assert told == list(interleaved_order(stages, ranks, rank, microbatches))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"microbatches": 3}, "3 microbatches do not divide"),
        ({"microbatches": 2}, "at least as many microbatches as stages"),
        ({"stages_per_rank": 2}, "schedule 1F1B has one"),
        ({"grad_accum": 2}, "accumulates by microbatches"),
        ({"parallel": "pp=8"}, "4 layers cannot be cut into 8 stages"),
        ({"schedule": "Interleaved1F1B", "microbatches": 8, "batch": 9}, "do not divide"),
        ({"mode": "eval"}, "evaluation"),
        ({"parallel": "ddp", "ranks": 2, "microbatches": 2}, "a setting of pipelines"),
    ],
)
def test_what_cannot_run_or_is_not_modelled_is_refused_by_name(fields, says):
    with pytest.raises(VramBudgetError, match=says):
        small(**fields)


def test_other_models_are_refused_by_name():
    with pytest.raises(VramBudgetError, match="a pipeline of GPT2LMHeadModel"):
        estimate("gpt2", gpu="a100-80gb", parallel="pp=2", batch=2, block=64)
