"""What a config.json says about the job is honoured, or told: nothing of it is dropped."""

import pytest
from test_laws import TINY

from vrambudget.estimator import estimate, resolve

LLAMA = {"model_type": "llama", **TINY["llama"]}


def job(**keys):
    return resolve({**LLAMA, **keys}, batch=2, block=16).job


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_the_configuration_s_attention_is_the_job_s(key):
    assert job(**{key: "eager"}).attention == "eager"
    assert resolve({**LLAMA, key: "eager"}, block=16, attention="sdpa").job.attention == "sdpa"


def test_an_attention_that_is_not_counted_makes_the_numbers_a_lower_bound():
    found = estimate({**LLAMA, "attn_implementation": "flex_attention"}, block=16)
    assert "config key 'attn_implementation'" in found.not_modelled
    assert found.job["attention"] == "sdpa"


def test_an_old_file_s_checkpointing_is_the_job_s():
    assert job(gradient_checkpointing=True).checkpointing == "full"
    assert job(gradient_checkpointing=False).checkpointing == "none"


@pytest.mark.parametrize("key", ["output_attentions", "output_hidden_states"])
def test_outputs_that_are_kept_besides_make_the_numbers_a_lower_bound(key):
    assert estimate({**LLAMA, key: True}, block=16).not_modelled == (f"config key {key!r}",)
    assert estimate({**LLAMA, key: False}, block=16).not_modelled == ()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        pytest.param({}, True, id="wider weights"),
        pytest.param({"weights": "bf16"}, False, id="its own"),
        pytest.param({"precision": "bf16"}, False, id="precision"),
        pytest.param({"transformers": "4.57"}, False, id="transformers 4"),
    ],
)
def test_a_dtype_that_from_pretrained_reads_is_told(fields, told):
    found = estimate({**LLAMA, "torch_dtype": "bfloat16"}, block=16, **fields)
    assert any("--weights bf16" in warning for warning in found.warnings) is told


def test_a_cache_that_the_configuration_turns_on_is_told_unless_the_job_says():
    def is_told(**fields):
        found = estimate({**LLAMA, "use_cache": True}, **{"block": 16, **fields})
        return any("--use-cache" in warning for warning in found.warnings)

    assert is_told()
    assert not is_told(use_cache=True)
    assert not is_told(loop="trainer")
    assert not is_told(mode="generate", prompt=8, new=4, block=None)


def test_a_cache_of_keys_and_values_is_counted():
    without, filled = (
        estimate(LLAMA, batch=2, block=64, use_cache=on).peak.requested_bytes
        for on in (False, True)
    )
    assert filled > without
