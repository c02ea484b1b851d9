"""Padding masks: what they change, and who has none. The records hold their bytes."""

import pytest

import vrambudget
from vrambudget.errors import NotModelledError, VramBudgetError

JOB = {"batch": 2, "block": 64, "precision": "bf16", "gpu": "a100-80gb"}


def peak(model, **fields):
    return vrambudget.estimate(model, **JOB, **fields).peak


def test_padding_takes_more_than_rows_that_need_no_mask():
    assert peak("gpt2", attention_mask="padding").requested_bytes > peak("gpt2").requested_bytes


def test_a_mask_with_padding_and_rows_with_padding_are_one_thing():
    by_mask = vrambudget.estimate("gpt2", attention_mask="padding", **JOB)
    by_rows = vrambudget.estimate("gpt2", rows="padded", **JOB)
    assert by_mask == by_rows
    assert (by_rows.job["attention_mask"], by_rows.job["causal_mask"]) == ("padding", "built")


@pytest.mark.parametrize("model", ["gpt2", "smollm2-135m", "bert-base-uncased", "t5-small"])
def test_a_mask_of_ones_is_looked_at_and_left_out(model):
    plain, ones, padded = (
        vrambudget.estimate(model, attention_mask=mask, optimizer="none", **{**JOB, "block": 256})
        for mask in ("none", "ones", "padding")
    )
    assert ones.job["attention_kernel"] == plain.job["attention_kernel"]
    assert 0 < ones.peak.requested_bytes - plain.peak.requested_bytes <= 3 * 2 * 256 * 8
    assert ones.peak.requested_bytes < padded.peak.requested_bytes


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rows": "padded", "attention_mask": "ones"}, "attention_mask is 'ones'; rows with"),
        ({"rows": "full", "attention_mask": "padding"}, "full rows have none"),
        ({"rows": "padded", "causal_mask": "skipped"}, "need the mask"),
    ],
)
def test_rows_and_masks_that_contradict_each_other_are_refused(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        vrambudget.estimate("gpt2", **JOB, **fields)


def test_a_masks_rows_make_an_encoder_take_another_kernel():
    plain, padded = (
        vrambudget.estimate("bert-base-uncased", attention_mask=mask, **JOB)
        for mask in ("none", "padding")
    )

    assert plain.job["attention_kernel"] == "flash"
    assert padded.job["attention_kernel"] == "efficient"


@pytest.mark.parametrize("model", ["nanogpt", "vit-base-patch16-224"])
def test_models_that_read_no_mask_are_refused(model):
    with pytest.raises(NotModelledError, match="with an attention mask is not modelled"):
        vrambudget.estimate(model, batch=2, attention_mask="padding")
