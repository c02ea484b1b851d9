"""Configurations and sizes that make no job: named at once, no traceback, never without end."""

import contextlib
import json
import time
from typing import Any

import pytest

from vrambudget import VramBudgetError, estimate
from vrambudget.cli import main
from vrambudget.cli.records import summary
from vrambudget.config.job import Job
from vrambudget.config.record import job_of_record
from vrambudget.measure.record import runnable
from vrambudget.tape import events

SMALL: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
GPT2 = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "mistral", "num_attention_heads": 32}, "by hidden_size / num_attention"),
        ({"model_type": "llama", "head_dim": 1}, "by head_dim, 1 of a head are rotated"),
        ({"model_type": "qwen3", "head_dim": 7}, "by head_dim, 7 of a head are rotated"),
        ({"model_type": "gpt_neox", "rotary_pct": 0.4}, "3 of a head are rotated"),
        ({"model_type": "phi3", "partial_rotary_factor": 0.4}, "3 of a head are rotated"),
        ({"model_type": "roberta", "max_position_embeddings": 2}, "max_position_embeddings is 2"),
        ({"model_type": "roberta", "pad_token_id": 511}, "the first 512 are padding's"),
        ({"model_type": "llama", "num_hidden_layers": 20_000}, "num_hidden_layers is 20000"),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_configuration_that_makes_no_model_names_its_key(values, words):
    config = {**SMALL, "max_position_embeddings": 512, "num_key_value_heads": 4, **values}
    if values["model_type"] in ("roberta", "gpt_neox"):
        del config["num_key_value_heads"]
    with pytest.raises(VramBudgetError, match=words) as caught:
        estimate(config, block=4)
    assert caught.value.where == "the given dict"


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        (GPT2, {"grad_accum": 2**16}),
        (GPT2, {"grad_accum": 2**12, "steps": 100}),
        ({**GPT2, "n_layer": 2**11}, {}),
    ],
)
def test_a_job_of_too_many_tensors_is_refused_by_name(model, fields, monkeypatch):
    monkeypatch.setattr(events, "MOST_STORAGES", 100_000)
    with pytest.raises(VramBudgetError, match="more than 100,000 tensors, too many to trace"):
        estimate(model, block=4, **fields)


def test_experts_that_no_token_reaches_cost_no_time():
    experts = {**SMALL, "model_type": "qwen3_moe", "num_experts": 2**31, "moe_intermediate_size": 4}
    started = time.process_time()
    assert estimate(experts, block=4, experts="eager").peak.requested_bytes > 2**40
    assert time.process_time() - started < 5


@pytest.mark.parametrize("value", [[], {}, [1], {"a": 1}, None, True])
@pytest.mark.parametrize("key", sorted({*Job.model_fields, "kind", "auto", "versions", "model"}))
def test_a_record_with_a_value_of_any_kind_is_read_or_refused(key, value):
    for words in ({"batch": 1, "block": 4}, {"kind": "generate", "batch": 1, "prompt": 4}):
        with contextlib.suppress(VramBudgetError):
            job_of_record({**words, key: value})


@pytest.mark.parametrize("card", [[], {}, [1], 7, True])
def test_a_job_to_rehearse_whose_card_is_no_text_is_refused(card, tmp_path, capsys):
    (file := tmp_path / "jobs.jsonl").write_text(json.dumps({"model": "gpt2", "card": card}))
    assert main(["rehearse", "--jobs", str(file)]) == 2
    assert "it should be text" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": "x"}, "batch is 'x'"),
        ({"block": None}, "the job has no block"),
        ({"steps": None}, "steps is None"),
        ({"optimizer": []}, "optimizer is \\[\\]"),
        ({"model": 7}, "a model is a name, a path or a dict, not 7"),
        ({"model": {**SMALL, "model_type": "llama", "num_attention_heads": 5}}, "does not divide"),
        ({"model": {**SMALL, "model_type": "llama", "num_hidden_layers": 10**8}}, "are too many"),
        ({"model": {"model_type": "none", "hidden_size": 4}, "steps": 1.5}, "steps is 1.5"),
        ({"kind": "generate", "prompt": -4}, "prompt is -4"),
    ],
)
def test_a_job_of_a_file_that_makes_no_sense_is_refused_before_pytorch_runs(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        runnable({"model": "gpt2", "batch": 1, "block": 4, **fields})


def test_a_class_that_has_no_rules_here_may_run():
    job = {"model": {"model_type": "none", "hidden_size": 4}, "batch": 1, "block": 4}
    assert runnable(job) == job


def test_a_record_without_an_id_is_summed_up():
    assert summary({"measured": {"oom": "..."}, "card": "t4"}) == "no id: out of memory on t4"
