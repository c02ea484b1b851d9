"""Frozen parts keep nothing for backward and get no gradient; the model's own names name them."""

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.errors import VramBudgetError

GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 64, "n_head": 2, "vocab_size": 500}
LAYERS = ["transformer.wte", "transformer.wpe", "transformer.h.0", "transformer.h.1"]


def frozen(names, **fields):
    return vrambudget.estimate(GPT2, batch=4, block=32, freeze=names, precision="fp32", **fields)


def test_what_is_frozen_is_not_counted_as_trained():
    # 12 hidden^2 + 13 hidden for a layer of GPT-2
    layer = 12 * 64**2 + 13 * 64
    whole = frozen(())
    assert whole.parameters.total - frozen(["transformer.h.1"]).parameters.trainable == layer


def test_the_more_is_frozen_from_the_front_the_less_is_kept():
    peaks = [frozen(LAYERS[:n]).peak.requested_bytes for n in (0, 2, 3, 4)]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[-1]


def test_states_are_those_of_what_is_trained():
    budget = frozen(LAYERS)
    assert budget.breakdown["optimizer states"] == 2 * 4 * budget.parameters.trainable


def test_an_unknown_name_is_said_with_the_nearest():
    with pytest.raises(VramBudgetError, match="no such module") as caught:
        frozen(["transformer.wtf"])
    assert "transformer.wte" in caught.value.hint


def test_something_must_be_trained():
    with pytest.raises(VramBudgetError, match="nothing to train"):
        frozen(["transformer"])  # the head shares its weight


def test_the_command_takes_names_separated_by_commas(capsys):
    words = ["gpt2", "--block", "8", "--freeze", "transformer.wte,transformer.wpe"]
    assert main([*words, "--format", "json"]) == 0
    saved = vrambudget.Budget.from_json(capsys.readouterr().out)
    asked = vrambudget.estimate("gpt2", block=8, freeze=["transformer.wte", "transformer.wpe"])
    assert (saved.job, saved.peak) == (asked.job, asked.peak)
