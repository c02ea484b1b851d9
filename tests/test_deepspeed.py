"""DeepSpeed's ZeRO: whose elements are whose, what is gathered. Whole jobs: test_records.py."""

import pytest

from vrambudget import estimate
from vrambudget.config.job import Job
from vrambudget.dtypes import bfloat16
from vrambudget.engine.context import Platform, recording
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.parallel.deepspeed.partition import fullest_rank, joined, partition
from vrambudget.parallel.group import Group
from vrambudget.parallel.host import held_bytes
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.packing import EventKind
from vrambudget.tape.replay import replay

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 1000}


BF16 = {"precision": "bf16"}


def parameters(*sizes):
    with recording(Platform()):
        return [Parameter((n,), bfloat16) for n in sizes]


def made(operation, **fields):
    fields = {"block": 32, **BF16, **fields}
    scenario = resolve(SMALL, gpu="8xa100-80gb", **fields)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    return [n for name, n in zip(tape.operations, tape.sizes, strict=True) if name == operation]


def test_a_parameter_that_reaches_into_a_rank_s_part_is_its_own():
    # 5 + 9 + 4 = 18 elements, padded to 20 for 2 ranks: elements 0 to 9, and 10 to 19
    first, second = (partition(parameters(5, 9, 4), Group(2, rank)) for rank in (0, 1))
    assert (first.size, first.padding) == (10, 2)
    assert [p.numel for p in first.own] == [5, 9]
    assert first.own_elements() == [5, 5]
    assert [p.numel for p in second.own] == [9, 4]
    assert second.own_elements() == [4, 4]


def test_slices_of_a_bucket_are_joined_where_they_are_one_rank_s():
    found = partition(parameters(5, 9, 4), Group(2))
    each = [found.slices_of(p) for p in found.parameters]
    assert joined(slice_ for slices in reversed(each) for slice_ in slices) == [
        *((1, 4), (0, 5), (1, 4), (0, 5))
    ]
    assert joined(slice_ for slices in each for slice_ in slices) == [(0, 10), (1, 8)]


def test_the_fullest_rank_is_one_that_a_large_parameter_ends_in():
    # 16 elements of each of 4 ranks: the 40 end in the third's, which has all of the others, too
    assert fullest_rank(parameters(40, 4, 4, 16), 4) == 2


@pytest.mark.parametrize("stage", ["deepspeed1", "zero2"])
def test_the_bucket_is_as_large_as_it_is_said_to_be_whatever_the_model(stage):
    assert made("ipg_buffer", parallel=stage) == [2 * 500_000_000] * 3  # one in each step
    sizes = made("ipg_buffer", parallel=stage, reduce_bucket_size=1000, overlap_comm=True)
    assert sizes == [2000] * 6


def test_zero3_keeps_its_bucket():
    assert made("ipg_buffer", parallel="zero3") == [2 * 500_000_000]


def test_parameters_that_persist_are_gathered_once_a_step():
    longer, shorter = (
        len(made("all_gather", parallel="zero3", param_persistence_threshold=10**9, steps=n))
        for n in (4, 3)
    )
    assert longer - shorter == 28


def test_what_is_gathered_ahead_has_a_limit():
    def most(**fields):
        return max(
            made("all_gather_flat", parallel="zero3", param_persistence_threshold=0, **fields)
        )

    assert most(prefetch_bucket_size=0) == most(prefetch_bucket_size=1000) < most()


def test_a_gathered_parameter_lives_on_where_a_view_of_it_was_saved():
    scenario = resolve(SMALL, gpu="8xa100-80gb", block=32, parallel="zero3", **BF16)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    # What other streams may still read comes back later.
    assert any(event.kind is EventKind.RECORD_STREAM for event in tape.read())
    assert replay(tape).peak.allocated_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"precision": "amp-bf16"}, "autocast with DeepSpeed"),
        ({"mode": "eval"}, "evaluation with DeepSpeed"),
        ({"optimizer": "none"}, "DeepSpeed without an optimizer"),
        ({"loop": "lightning"}, "the loop of lightning"),
        ({"lora_rank": 8, "parallel": "zero3", "checkpointing": "full"}, "TRL makes reentrant"),
    ],
)
def test_what_zero_is_not_modelled_with_is_refused(fields, words):
    with pytest.raises(NotModelledError, match=words):
        estimate(SMALL, gpu="8xa100-80gb", **{"block": 32, "parallel": "zero2", **BF16, **fields})


def test_a_setting_of_stage_3_is_refused_elsewhere():
    with pytest.raises(VramBudgetError, match="prefetch_bucket_size is 5, a setting of ZeRO 3;"):
        Job.parse({"ranks": 8, "parallel": "zero2", "prefetch_bucket_size": 5})


def peaks(**fields):
    return estimate(SMALL, gpu="4xa100-80gb", block=32, **{**BF16, **fields})


@pytest.mark.parametrize("stage", ["deepspeed1", "zero2", "zero3"])
def test_offloaded_masters_and_states_leave_the_gpu_for_main_memory(stage):
    kept, offloaded = (
        peaks(parallel=stage, offload_optimizer=offload) for offload in (False, True)
    )
    assert kept.distributed.host_bytes == 0
    assert offloaded.distributed.host_bytes > 12 * 140_000 / 4  # float32 masters and two states
    assert offloaded.peak.allocated_bytes < kept.peak.allocated_bytes


def test_pinned_memory_comes_in_powers_of_two():
    # stage 3 of 4 ranks: what is pinned are weights, gradients, and float32 gradients
    parts = [2 * 40_000, 2 * 40_000, 4 * 40_000]
    assert held_bytes(parts, pinned=True) == 2 * 131_072 + 262_144
    assert held_bytes(parts, pinned=False) == sum(parts)


def test_offloaded_weights_are_copied_to_the_gpu_before_they_are_gathered():
    copies = {"parallel": "zero3", "offload_param": True, "param_persistence_threshold": 0}
    assert made("to_device", **copies) > made("to_device", **{**copies, "offload_param": False})
    assert made("lp_param_buffer", **copies) == []


def test_zero_3_s_own_linear_layer_keeps_no_gathered_weight_since_0_19():
    old, new = (
        estimate(
            {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "vocab_size": 64},
            gpu="4xa100-80gb",
            block=32,
            parallel="zero3",
            max_live_parameters=0,
            max_reuse_distance=0,
            deepspeed=version,
            **BF16,
        )
        for version in ("0.18", "0.19")
    )
    assert new.peak.requested_bytes < old.peak.requested_bytes


def test_offload_that_another_stage_has_is_refused():
    with pytest.raises(VramBudgetError, match="offload_param is True, a setting of ZeRO 3"):
        peaks(parallel="zero2", offload_param=True)


def test_auto_sizes_are_those_that_trainer_makes_of_the_hidden_size():
    scenario = resolve(
        SMALL,
        gpu="2xa100-80gb",
        parallel="zero3",
        reduce_bucket_size="auto",
        prefetch_bucket_size="auto",
        param_persistence_threshold="auto",
        **BF16,
    )
    job = scenario.job
    sizes = job.reduce_bucket_size, job.prefetch_bucket_size, job.param_persistence_threshold
    assert sizes == (64 * 64, 3686, 640)


@pytest.mark.parametrize("loop", ["trainer", "accelerate"])
def test_libraries_build_the_model_in_main_memory_and_move_it_as_16_bit_weights(loop):
    assert made("to_dtype", parallel="zero2", steps=1)[0] == 2 * 1000 * 64  # cast on the GPU
    moved = made("to_device", parallel="zero2", loop=loop, steps=1)
    assert moved[0] == 2 * 1000 * 64
    assert made("parameter", parallel="zero2", loop=loop, steps=1) == []


def test_trainer_gives_deepspeed_two_groups_of_parameters():
    own, trainer = (
        made("fp32_partition", parallel="zero2", loop=loop, steps=1)
        for loop in ("plain", "trainer")
    )
    assert (len(own), len(trainer)) == (1, 2)


def test_a_library_s_loop_over_fsdp_1_is_refused_by_name():
    with pytest.raises(NotModelledError, match="the loop of lightning with fsdp1"):
        peaks(parallel="fsdp1", loop="lightning", precision="fp32")
