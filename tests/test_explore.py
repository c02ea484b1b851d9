"""Sliders in a notebook: what they show is the budget's own, and mistakes are shown, not raised."""

import sys
import types

import pytest

import vrambudget
from vrambudget.errors import VramBudgetError
from vrambudget.integrations.explore import explore
from vrambudget.report.notebook import budget_html

SMALL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}


class Widget:
    """What ipywidgets' widgets have in common: a value that can be watched."""

    def __init__(self, children=(), **traits):
        self.children, self.seen = children, []
        vars(self).update({"value": "", **traits})

    def observe(self, function, names):
        assert names == "value"
        self.seen.append(function)

    def move(self, value):
        assert value in [each[1] if isinstance(each, tuple) else each for each in self.options]
        self.value = value
        for function in self.seen:
            function({"new": value})


@pytest.fixture
def widgets(monkeypatch):
    kinds = dict.fromkeys(("HTML", "SelectionSlider", "Dropdown", "VBox"), Widget)
    monkeypatch.setitem(sys.modules, "ipywidgets", types.SimpleNamespace(**kinds))


@pytest.fixture
def controls(widgets):
    del widgets
    found = explore(SMALL, gpu="12GB", block=96, clip=1.0)
    rows, html = found.box.children
    assert html is found.html
    return found, {each.description: each for each in rows.children}


def test_what_is_shown_is_the_budget_of_the_sliders(controls):
    explored, sliders = controls
    job = {"block": 96, "clip": 1.0}
    assert explored.html.value == budget_html(vrambudget.estimate(SMALL, gpu="12GB", **job))
    for name, value in {"batch": 8, "precision": "bf16", "lora_rank": 4, "quant": "nf4"}.items():
        sliders[name].move(value)
        job[name] = value
        assert explored.html.value == budget_html(vrambudget.estimate(SMALL, gpu="12GB", **job))
    assert explored.job == job


def test_outside_a_notebook_it_prints_the_job_and_no_widgets(controls):
    explored, _ = controls
    assert repr(explored) == f"Explored(job={explored.job!r})"
    assert explored.job["block"] == 96


def test_a_slider_begins_where_the_job_is_and_ends_where_the_model_does(controls):
    _, sliders = controls
    assert sliders["block"].value == 96
    assert max(value for _, value in sliders["block"].options) == 1024


def test_a_mistake_is_shown(controls):
    explored, sliders = controls
    sliders["precision"].move("amp-fp16")
    sliders["optimizer"].move("muon")
    assert "muon under amp-fp16 is not modelled" in explored.html.value
    sliders["precision"].move("bf16")
    assert "12" in explored.html.value


def test_without_ipywidgets_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with pytest.raises(VramBudgetError, match="ipywidgets") as raised:
        vrambudget.explore("gpt2")
    assert "vrambudget[notebook]" in raised.value.hint


def test_the_real_widgets_take_these_sliders():
    pytest.importorskip("ipywidgets")
    explored = vrambudget.explore(SMALL, gpu="12GB", block=96)
    explored.box.children[0].children[0].value = 4
    assert explored.job == {"block": 96, "batch": 4}
