"""A budget contradicts itself nowhere, and comes back from JSON as it was."""

import json
from dataclasses import replace

import pytest
from budgets import BREAKDOWN, budget, on_card

import vrambudget
from vrambudget.budget import Budget
from vrambudget.errors import VramBudgetError

SMALL = 12_552_044_544
LARGE = 85_097_971_712


@pytest.mark.parametrize("made", [budget(), on_card(SMALL), on_card(LARGE)], ids=["none", "s", "l"])
def test_json_round_trips(made):
    assert Budget.from_json(made.check().to_json()) == made


def test_the_key_of_several_gpus_until_0_3_is_read():
    made = vrambudget.estimate("gpt2", batch=1, block=8, ranks=2, parallel="ddp")
    values = json.loads(made.to_json())
    assert made.distributed is not None
    values["several"] = values.pop("distributed")
    assert Budget.from_json(json.dumps(values)) == made


def test_json_has_the_published_keys():
    saved = json.loads(on_card(SMALL).to_json())
    assert list(saved) == [
        *("schema", "model", "job", "parameters", "peak", "breakdown", "steps", "device"),
        *("out_of_memory", "not_modelled", "warnings", "distributed", "full_at"),
    ]
    assert saved["schema"] == 1
    assert list(saved["parameters"]) == ["total", "trainable"]
    assert list(saved["peak"]) == [
        *("requested_bytes", "allocated_bytes", "reserved_bytes", "step", "phase", "operation")
    ]
    assert list(saved["steps"][0]) == [
        *("after_forward_bytes", "after_backward_bytes"),
        *("peak_allocated_bytes", "peak_reserved_bytes"),
    ]
    assert list(saved["device"]) == [
        *("name", "capacity_bytes", "context_bytes", "peak_bytes", "headroom_bytes", "fits"),
        *("context_range", "context_source"),
    ]
    assert list(saved["out_of_memory"]) == [
        *("step", "phase", "operation", "requested_bytes", "allocated_bytes")
    ]
    assert json.loads(budget().to_json())["device"] is None


def test_fits_is_the_card_s_answer():
    assert budget().fits is None
    assert budget().verdict is None
    with pytest.raises(VramBudgetError, match="neither true nor false"):
        bool(budget())
    assert on_card(LARGE).fits
    assert not on_card(SMALL).fits


def _with(part, **changes):
    made = on_card(LARGE)
    return replace(made, **{part: replace(getattr(made, part), **changes)})


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (replace(budget(), breakdown=BREAKDOWN | {"inputs": 1}), "add up"),
        (replace(budget(), breakdown=BREAKDOWN | {"inputs": -1}), "add up"),
        (_with("peak", requested_bytes=10**12), "out of order"),
        (_with("peak", step=0), "no step"),
        (_with("peak", step=3), "no step"),
        (_with("parameters", trainable=10**12), "more parameters"),
        (_with("device", peak_bytes=1), "reserved"),
        (_with("device", headroom_bytes=1), "headroom"),
        (_with("device", fits=False), "one of them"),
        (replace(on_card(SMALL), device=None), "no GPU"),
        (replace(budget(), steps=budget().steps[:1]), "no step"),
        (replace(budget(), steps=budget().steps[::-1]), "last step"),
    ],
)
def test_a_contradiction_is_found_and_named(broken, words):
    with pytest.raises(AssertionError, match=words):
        broken.check()


def _edited(**changes):
    return json.dumps(json.loads(budget().to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "not a JSON object"),
        ("{}", "schema is None"),
        (_edited(schema=2), "schema is 2"),
        (_edited(peak={}), "peak.requested_bytes is None; it should be there"),
        (_edited(model=3), "model is 3; it should be a valid string"),
        (_edited(breakdown={"weights": "1"}), "breakdown.weights"),
        (_edited(breakdown={"weights": 1}), "contradicts itself: the parts add up to 1 of"),
        (_edited(job={}), "its job is that of no saved budget"),
        (_edited(job={**budget().job, "dropout": float("nan")}), "its job is that of no"),
        (_edited(job={"mode": ["train"]}), "its job is that of no saved budget"),
    ],
)
def test_what_is_no_saved_budget_is_refused(text, words):
    with pytest.raises(VramBudgetError, match=words) as caught:
        Budget.from_json(text, where="saved.json")
    assert caught.value.where == "saved.json"


def test_the_classes_of_an_image_s_head_are_told():
    told = vrambudget.estimate("vit-base-patch16-224", batch=1).warnings
    assert any(note.startswith("the head has 1000 classes") for note in told)


@pytest.mark.parametrize("made", [budget(), on_card(SMALL), on_card(LARGE)], ids=["none", "s", "l"])
def test_the_repr_of_a_budget_is_its_verdict_in_one_line(made):
    (line,) = repr(made).splitlines()
    assert line.startswith(f"<Budget of {made.model}: ")
    assert str(made).splitlines()[0] in line
