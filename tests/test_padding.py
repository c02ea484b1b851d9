"""Padding masks: what they change, and who has none. The records hold their bytes."""

import pytest

import vrambudget
from vrambudget.errors import NotModelledError

JOB = {"batch": 2, "block": 64, "precision": "bf16", "gpu": "a100-80gb"}


def peak(model, **fields):
    return vrambudget.estimate(model, **JOB, **fields).peak


def test_padding_takes_more_than_rows_that_need_no_mask():
    assert (
        peak("gpt2", attention_mask="padding").requested_bytes
        > peak("gpt2", causal_mask="skipped").requested_bytes
    )


def test_with_padding_it_does_not_matter_whether_rows_look_packed():
    looks = [
        peak("gpt2", attention_mask="padding", causal_mask=mask) for mask in ("built", "skipped")
    ]

    assert looks[0] == looks[1]
    budget = vrambudget.estimate("gpt2", attention_mask="padding", **JOB)
    assert not any("causal mask" in warning for warning in budget.warnings)


def test_a_masks_rows_make_an_encoder_take_another_kernel():
    plain, padded = (
        vrambudget.estimate("bert-base-uncased", attention_mask=mask, **JOB)
        for mask in ("none", "padding")
    )

    assert plain.job["attention_kernel"] == "flash"
    assert padded.job["attention_kernel"] == "efficient"


@pytest.mark.parametrize("model", ["nanogpt", "vit-base-patch16-224"])
def test_models_that_read_no_mask_are_refused(model):
    with pytest.raises(NotModelledError, match="with a padding mask is not modelled"):
        vrambudget.estimate(model, batch=2, attention_mask="padding")
