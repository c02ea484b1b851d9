"""How many GPUs a job needs, and what the layouts cost: by hand arithmetic and by estimates."""

import json
import shlex

import pytest

from vrambudget import plan_gpus
from vrambudget.cli import main
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError
from vrambudget.planning.layouts import Traffic, layouts, traffic
from vrambudget.planning.plan import _fewest

LAYERS = {"model_type": "gpt2", "n_layer": 2, "n_embd": 512, "n_head": 8, "vocab_size": 8000}
LARGER = {**LAYERS, "n_layer": 8, "n_embd": 1024}


def job(**fields):
    return Job.parse({"precision": "fp32", **fields})


@pytest.mark.parametrize(
    ("fields", "moved"),
    [
        ({}, Traffic(0)),
        # 800 fp32 gradients, there and back: 2 * 3200 * 3 / 4
        ({"parallel": "ddp", "ranks": 4}, Traffic(4800)),
        # and the parameters once
        ({"parallel": "zero1", "ranks": 4}, Traffic(7200)),
        # two gathers and a reduction: 3 * 3200 * 3 / 4
        ({"parallel": "fsdp2", "ranks": 4}, Traffic(7200)),
        ({"parallel": "fsdp2", "ranks": 4, "reshard_after_forward": False}, Traffic(4800)),
        # gathered as bf16, reduced as fp32: (2 * 1600 + 3200) * 3 / 4
        (
            {"parallel": "fsdp2", "ranks": 4, "param_dtype": "bf16", "reduce_dtype": "fp32"},
            Traffic(4800),
        ),
        # shards of 2, copied twice: 3 * 3200 / 2, and an all-reduce of 1600 between two
        ({"parallel": "fsdp2", "ranks": 4, "replicate": 2}, Traffic(6400)),
        # besides, two gathers and the gradients of a fourth between main memory and the GPU
        ({"parallel": "fsdp2", "ranks": 4, "cpu_offload": True}, Traffic(7200, 2400)),
    ],
)
def test_a_step_sends_what_its_collectives_send(fields, moved):
    assert traffic(job(**fields), 800, 800) == moved


def test_accumulation_without_reducing_reduces_once():
    often = job(parallel="ddp", ranks=2, grad_accum=4)
    once = job(parallel="ddp", ranks=2, grad_accum=4, no_sync=True)
    assert traffic(often, 800, 800).network_bytes == 4 * traffic(once, 800, 800).network_bytes


@pytest.mark.parametrize(
    ("needed", "most", "fewest"),
    [
        (1, 8, 1),
        (3, 8, 4),
        (5, 6, 6),
        (17, 64, 24),
        (40, 1024, 40),
        (65, 64, 0),
        (120, 128, 120),
    ],
)
def test_the_fewest_gpus_are_found_by_whole_machines(needed, most, fewest):
    class Planner:
        def can(self, gpus):
            return gpus >= needed

    assert _fewest(Planner(), most, lambda: None) == fewest


def test_adapters_of_4_bit_weights_are_not_sharded():
    names = [layout.name for layout in layouts(job(), 8, "qlora", has_bfloat16=True)]
    assert names == ["DDP, qlora", "DDP, qlora, checkpointing"]


def test_a_plan_is_the_fewest_gpus_that_do():
    job = {"gpu": "1800MiB", "block": 64, "optimizer": "adam"}
    found = plan_gpus(LARGER, **job)
    assert found.gpus > 1
    assert all(choice.gpus == found.gpus and choice.left_bytes >= 0 for choice in found.choices)
    assert not plan_gpus(LARGER, most=found.gpus - 1, **job).choices


def test_a_job_that_fits_needs_one_gpu():
    found = plan_gpus(LAYERS, gpu="12GB", block=64, goal="any")
    assert found.gpus == 1
    assert found.choices[0].layout == "one GPU"
    assert {choice.trains for choice in found.choices} == {"full", "lora", "qlora"}


def test_more_than_the_most_is_said(capsys):
    assert main(["plan", "gpt2-xl", "--gpu", "2GiB", "--block", "64", "--most", "2"]) == 1
    assert "does not fit on 2 x" in capsys.readouterr().out


def test_a_plan_is_printed_with_commands_that_run(capsys):
    assert main(["plan", "gpt2", "--gpu", "4GiB", "--block", "64", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for choice in found["choices"]:
        name, *words = shlex.split(choice["command"])
        assert name == "vrambudget"
        assert main([*words, "--format", "json"]) == 0
        device = json.loads(capsys.readouterr().out)["device"]
        assert device["peak_bytes"] == choice["peak_bytes"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"goal": "all"}, "goal is 'all'"),
        ({"most": 0}, "most is 0"),
        ({"ranks": 2, "parallel": "ddp"}, "leave out|were given"),
        ({"mode": "eval"}, "a plan is for training"),
    ],
)
def test_what_no_plan_is_for_is_an_error(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        plan_gpus(LAYERS, gpu="12GB", block=64, **fields)
