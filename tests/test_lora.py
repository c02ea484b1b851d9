"""What PEFT trains: adapters around the layers that it chooses, and for a classifier its head.

Whole jobs are held against PEFT itself in records (ids that begin with `lora-`).
"""

import pytest

from vrambudget import estimate
from vrambudget.config.fields.adapters import PEFT_TARGETS
from vrambudget.errors import VramBudgetError
from vrambudget.report.phrases import job_text

C, FF, LAYERS, RANK, LABELS = 64, 128, 2, 4, 3
BERT = {"model_type": "bert", "hidden_size": C, "intermediate_size": FF, "vocab_size": 100}
BERT |= {"num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_labels": LABELS}
DISTILBERT = {"model_type": "distilbert", "dim": C, "hidden_dim": FF, "vocab_size": 100}
DISTILBERT |= {"n_layers": LAYERS, "n_heads": 4, "num_labels": LABELS}
JOB = {"batch": 2, "block": 16, "lora_rank": RANK}
LAYER = 4 * (C + C) + 2 * (C + FF)  # per rank: query, key, value, output; up and down


def test_a_masked_language_model_s_output_embeddings_take_no_adapter():
    budget = estimate(BERT, **JOB, task="masked-lm")
    transform = C + C
    assert budget.parameters.trainable == RANK * (LAYERS * LAYER + transform)


def test_a_classifier_s_head_is_trained_in_a_copy():
    head = C * LABELS + LABELS
    without = estimate(BERT, **{**JOB, "lora_rank": None}, task="seq-cls").parameters.total
    pooler = C + C
    adapters = RANK * (LAYERS * LAYER + pooler)
    parameters = estimate(BERT, **JOB, task="seq-cls").parameters
    assert parameters.trainable == adapters + head
    assert parameters.total == without + adapters + head


def test_what_is_trained_in_a_copy_takes_no_adapter():
    with pytest.raises(VramBudgetError, match="a copy of pre_classifier"):
        estimate(DISTILBERT, **JOB, task="seq-cls")
    parameters = estimate(DISTILBERT, **JOB, task="seq-cls", lora_targets=["q_lin"]).parameters
    heads = C * C + C + C * LABELS + LABELS
    assert parameters.trainable == RANK * LAYERS * 2 * C + heads


def test_a_report_says_which_layers_get_adapters():
    everywhere = estimate(BERT, **JOB, task="masked-lm")
    assert "LoRA rank 4 on all linear layers," in job_text(everywhere)
    two = estimate(BERT, **JOB, task="masked-lm", lora_targets=["query", "value"])
    assert "LoRA rank 4 on query and value," in job_text(two)


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"loop": "trainer"}, True),
        ({}, False),
        ({"loop": "trainer", "lora_targets": "query"}, False),
    ],
)
def test_a_library_s_loop_is_told_what_peft_adapts_by_itself(fields, is_told):
    warnings = estimate(BERT, **JOB, task="seq-cls", **fields).warnings
    assert any("--lora-targets query,value" in warning for warning in warnings) is is_told


def test_peft_s_own_modules_are_those_of_the_installed_peft():
    constants = pytest.importorskip("peft.utils.constants")
    theirs = constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    assert {name: tuple(theirs[name]) for name in PEFT_TARGETS} == PEFT_TARGETS
