"""What a config.json says about the job is honoured, or told: nothing of it is dropped."""

import pytest
from test_laws import TINY

from vrambudget.config.record import job_of_record
from vrambudget.estimator import estimate
from vrambudget.scenario import resolve

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


def test_attentions_that_a_recorded_encoder_returns_make_the_numbers_a_lower_bound():
    found = estimate({"model_type": "bert", "output_attentions": True}, block=16)
    assert found.not_modelled == ("config key 'output_attentions'",)


@pytest.mark.parametrize(
    ("key", "value"), [("pruned_heads", {"0": [1]}), ("quantization_config", {"bits": 4})]
)
def test_a_key_that_a_recorded_encoder_does_not_read_is_named(key, value):
    found = estimate({"model_type": "bert", key: value}, block=16)
    assert found.not_modelled == (f"config key {key!r}",)


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


@pytest.mark.parametrize(
    ("keys", "fields", "caches"),
    [
        pytest.param({}, {}, True, id="transformers' default"),
        pytest.param({"use_cache": True}, {}, True, id="on"),
        pytest.param({"use_cache": False}, {}, False, id="off"),
        pytest.param({}, {"use_cache": False}, False, id="the job says off"),
        pytest.param({"use_cache": False}, {"use_cache": True}, True, id="the job says on"),
        pytest.param({}, {"loop": "accelerate"}, True, id="accelerate"),
        pytest.param({}, {"loop": "lightning"}, True, id="lightning"),
        pytest.param({}, {"loop": "trainer"}, False, id="Trainer turns it off"),
        pytest.param({"use_cache": True}, {"loop": "sft"}, False, id="TRL turns it off"),
        pytest.param({}, {"mode": "eval"}, True, id="evaluation"),
        pytest.param({}, {"mode": "generate", "block": None}, False, id="generation has --cache"),
    ],
)
def test_a_decoder_caches_keys_and_values_unless_the_configuration_or_the_loop_says_no(
    keys, fields, caches
):
    assert resolve({**LLAMA, **keys}, **{"block": 16, **fields}).job.use_cache is caches


@pytest.mark.parametrize("model", ["nanogpt", "bert-base-uncased"])
def test_models_that_are_no_decoders_of_transformers_are_said_to_cache_nothing(model):
    assert resolve(model).job.use_cache is False


def test_a_record_that_says_nothing_of_a_cache_means_off_as_the_reference_script_has_it():
    record = {"id": "x", "model": LLAMA, "batch": 2, "block": 16}
    assert job_of_record(record).use_cache is False
    assert job_of_record({**record, "use_cache": True}).use_cache is True


def test_a_cache_is_told_with_the_option_that_turns_it_off():
    def is_told(**fields):
        found = estimate(LLAMA, block=16, **fields)
        return any("--no-use-cache" in warning for warning in found.warnings)

    assert is_told()
    assert not is_told(use_cache=False)
    assert not is_told(loop="trainer")
    assert not is_told(checkpointing="full")


def test_a_cache_of_keys_and_values_is_counted():
    without, filled = (
        estimate(LLAMA, batch=2, block=64, use_cache=on).peak.requested_bytes
        for on in (False, True)
    )
    assert filled > without
