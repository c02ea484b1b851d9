"""What ranks allocate: shards, buckets, tables, streams. Records of whole jobs: test_records.py."""

from itertools import pairwise

import pytest

from vrambudget import advise, estimate
from vrambudget.budget import Budget
from vrambudget.config.gpus import find_gpu
from vrambudget.dtypes import float32
from vrambudget.engine.context import Platform, recording
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError
from vrambudget.parallel.ddp import assigned
from vrambudget.parallel.fsdp2.collectives import _chunk_cat_table_bytes, _split_table_bytes
from vrambudget.parallel.group import Group
from vrambudget.parallel.zero1 import partitioned
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 1000}
MIXED = {"precision": "fp32", "param_dtype": "bf16", "reduce_dtype": "fp32"}


def tape_of(**fields):
    scenario = resolve(SMALL, gpu="a100-80gb", block=32, **fields)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def small(**fields):
    return estimate(SMALL, gpu="a100-80gb", block=32, **fields)


def test_the_last_ranks_have_fewer_rows_or_none():
    # 10 rows on 4 ranks, 3 each: 3, 3, 3, 1; on 8 ranks, 2 each: five have some
    assert [Group(4, r).local(10) for r in range(4)] == [3, 3, 3, 1]
    assert [Group(8, r).local(10) for r in range(8)] == [2, 2, 2, 2, 2, 0, 0, 0]


def test_tables_of_blocks_are_as_large_as_pytorch_makes_them():
    # the root of a Llama of 1B on 8 A100s: embedding and head [128256, 2048], norm [2048]
    rows = [128256 * 2048 // 8, 2048 // 8, 128256 * 2048 // 8]
    with recording(Platform()):
        assert _split_table_bytes([n * 2 for n in rows], 8) == 27_120
    assert _chunk_cat_table_bytes([n * 4 for n in rows]) == 1_026_216


def test_a_bucket_closes_when_it_is_full():
    with recording(Platform()):
        tensors = [Parameter((n,), float32) for n in (4, 1, 1, 9, 1)]
        buckets = assigned(tensors, [16, 8], in_order=True)
    # 16 bytes fill the first; then 4 + 4, then 36 at once; 4 are left
    assert [[x.numel for x in bucket] for bucket in buckets] == [[4], [1, 1], [9], [1]]


def test_parameters_go_to_the_rank_that_has_least():
    with recording(Platform()):
        parameters = [Parameter((n,), float32) for n in (5, 9, 4, 3)]
        ranks = partitioned(parameters, Group(2))
    assert [[p.numel for p in rank] for rank in ranks] == [[9, 3], [5, 4]]


def test_gradients_lie_twice_with_ddp_unless_buckets_hold_them():
    one, twice = small(), small(ranks=2, parallel="ddp")
    once = small(ranks=2, parallel="ddp", gradient_as_bucket_view=True)
    gradients = one.breakdown["gradients"]
    assert twice.breakdown["communication buffers"] >= gradients
    assert once.breakdown["communication buffers"] == 0
    assert once.peak.requested_bytes < twice.peak.requested_bytes


def test_fsdp2_uses_three_streams_and_ddp_one():
    fsdp2 = {e.stream for e in tape_of(ranks=4, parallel="fsdp2", **MIXED).read()}
    assert fsdp2 == {0, 1, 2}
    assert tape_of(ranks=4, parallel="ddp").is_fast


def test_more_ranks_take_less_of_each():
    peaks = [
        small(ranks=n, parallel="fsdp2", **MIXED).peak.requested_bytes for n in (1 + 1, 4, 8, 16)
    ]
    assert all(a > b for a, b in pairwise(peaks))


def test_a_layer_that_stays_gathered_takes_more():
    def peak(reshard):
        job = small(ranks=4, parallel="fsdp2", reshard_after_forward=reshard, **MIXED)
        return job.peak.requested_bytes

    assert peak(reshard=True) < peak(reshard=2) < peak(reshard=False)


def test_offloaded_shards_are_in_main_memory():
    on_gpu = small(ranks=4, parallel="fsdp2")
    offloaded = small(ranks=4, parallel="fsdp2", cpu_offload=True)
    assert on_gpu.distributed is not None
    assert offloaded.distributed is not None
    assert on_gpu.distributed.host_bytes == 0
    assert offloaded.breakdown["weights"] == 0
    # shards, gradients and AdamW's two states
    assert offloaded.distributed.host_bytes == 4 * on_gpu.breakdown["weights"]


def test_ranks_with_uneven_shards_are_told_apart_and_the_fullest_is_shown():
    budget = small(ranks=7, parallel="fsdp2", optimizer_impl="foreach").check()
    assert budget.distributed is not None
    assert [peak.rank for peak in budget.distributed.peaks] == list(range(7))
    most = max(budget.distributed.peaks, key=lambda peak: peak.peak_allocated_bytes)
    assert budget.peak.allocated_bytes == most.peak_allocated_bytes
    assert budget.job["rank"] == most.rank


def test_a_budget_of_ranks_survives_json_and_tells_what_is_outside():
    budget = small(ranks=8, parallel="zero1")
    assert Budget.from_json(budget.to_json()) == budget
    assert "batch 1 each" in " ".join(str(budget).split())
    assert "buffers of NCCL" in str(budget)


@pytest.mark.parametrize("layout", [{}, {"ranks": 4, "parallel": "fsdp2"}])
def test_lora_trains_adapters_alone(layout):
    budget = small(lora_rank=4, precision="bf16", **layout)
    assert budget.parameters.trainable < budget.parameters.total / 10
    assert budget.breakdown["optimizer states"] < budget.breakdown["weights"]


def test_evaluation_shards_too():
    budget = small(ranks=4, parallel="fsdp2", mode="eval")
    assert budget.breakdown["gathered weights"] > 0


def test_one_gpu_has_no_lines_of_ranks():
    budget = small()
    assert budget.distributed is None
    assert "gathered weights" not in str(budget)
    assert find_gpu("a100-80gb").name in str(budget)


def test_advice_names_buckets_and_what_else_would_help():
    advice = advise("gpt2", gpu="2GiB", ranks=4, parallel="ddp", block=256, batch=2)
    assert "buffer of bucket" in " ".join(held.description for held in advice.largest)
    assert "--checkpointing full" in [option.options for option in advice.options]


def test_trainer_under_ddp_has_its_logits_in_float32_twice():
    tape = tape_of(ranks=2, parallel="ddp", loop="trainer", precision="amp-bf16")
    clones = [size for i, size in enumerate(tape.sizes) if tape.operations[i] == "clone"]
    assert 32 * 1000 * 4 in clones  # DDP's, of what accelerate made float32


def test_checkpoints_of_inputs_that_fsdp2_casts_in_the_first_forward_alone_are_refused():
    model = {"model_type": "olmo2", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    model |= {"intermediate_size": 128, "num_attention_heads": 2, "max_position_embeddings": 64}
    job = {"ranks": 2, "parallel": "fsdp2", "block": 16, **MIXED}
    assert estimate(model, **job).peak.allocated_bytes > 0
    assert small(ranks=2, parallel="fsdp2", checkpointing="full", **MIXED).peak.allocated_bytes > 0
    with pytest.raises(NotModelledError, match=r"CheckpointError: .* float32 input"):
        estimate(model, checkpointing="full", **job)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"parallel": "zero3", "loop": "sft", "quant": "int8", "lora_rank": 4},
            "quantised weights",
        ),
        ({"parallel": "fsdp1", "loop": "sft", "precision": "amp-fp16"}, "found_inf has the shape"),
        ({"parallel": "ddp", "loop": "trainer", "eval_batches": 2}, "a library's evaluation"),
        ({"parallel": "ddp", "loop": "trainer", "mode": "eval"}, "the loop of trainer"),
    ],
)
def test_other_loops_on_several_ranks_are_refused_by_name(fields, says):
    with pytest.raises(NotModelledError, match=says):
        small(ranks=2, **fields)
