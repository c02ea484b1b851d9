"""Walks of a few layers bound a job's requested bytes from below."""

import pytest

from vrambudget.planning.few_layers import FewLayers
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 512,
    "vocab_size": 2000,
}
POLICY = {"param_dtype": "bf16", "reduce_dtype": "fp32"}


def bound_and_peak(model, **fields):
    scenario = resolve(model, gpu="8xh100", block=64, rank=0, **fields)
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    return FewLayers(scenario).least_bytes(scenario.job), replay(tape).peak.requested_bytes


@pytest.mark.parametrize(
    "fields",
    [
        {"parallel": "fsdp2", **POLICY},
        {"parallel": "fsdp2", "checkpointing": "full", **POLICY},
        {"parallel": "fsdp2", "replicate": 2, "lora_rank": 8, "precision": "bf16"},
        {"parallel": "fsdp2+tp=2", **POLICY},
        {"parallel": "fsdp1"},
        {"parallel": "ddp", "checkpointing": "full", "batch": 4},
    ],
)
def test_a_few_layers_tell_what_all_of_them_take_at_least(fields):
    bound, peak = bound_and_peak(LLAMA, **fields)
    assert 0.9 * peak < bound <= peak


def test_what_stops_growing_is_taken_off():
    small = {"max_live_parameters": 1000, "sub_group_size": 1000}
    fields = {"parallel": "zero3", "precision": "bf16", "reduce_bucket_size": 1000}
    with_limits, peak = bound_and_peak(LLAMA, **fields, **small)
    assert 0 < with_limits <= peak
    assert bound_and_peak(LLAMA, **fields)[0] < with_limits


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ({**LLAMA, "num_hidden_layers": 7}, {"parallel": "fsdp2"}),  # too few to spare any
        (LLAMA, {"parallel": "zero1"}),
        (LLAMA, {"parallel": "zero2", "precision": "bf16"}),
        ({**LLAMA, "model_type": "smollm3"}, {"parallel": "fsdp2"}),  # every fourth is another
    ],
)
def test_what_has_no_bound_gets_none(model, fields):
    assert bound_and_peak(model, **fields)[0] == 0
