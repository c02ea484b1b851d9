"""The largest batch of a script by bisection, and the jobs of models that no estimate follows."""

import json
import os

import pytest

from vrambudget.cli import main
from vrambudget.cli import rehearse as command
from vrambudget.errors import VramBudgetError
from vrambudget.measure.record import record_of
from vrambudget.rehearse.largest import read_bounds
from vrambudget.rehearse.models import job_of
from vrambudget.rehearse.record import Rehearsal
from vrambudget.scenario import resolve

GIB = 2**30


def rehearsal(batch, *, room=40, ended=None, steps=1):
    """Return what a script says that takes a GiB for each of its batch."""
    fits = batch <= room
    return Rehearsal(
        command=("python", "t.py"),
        gpu="a card",
        capacity_bytes=room * GIB,
        context_bytes=0,
        versions={},
        ended=ended or ("finished" if fits else "out of memory"),
        exit_code=0 if fits else 1,
        error="ValueError: no" if ended else None,
        seconds=1.0,
        steps=steps,
        step_unit="optimizer step",
        peak_requested_bytes=batch * GIB,
        peak_allocated_bytes=batch * GIB,
        peak_reserved_bytes=batch * GIB,
        peak=None,
        phases=(),
        out_of_memory=(),
        warnings=(),
    )


@pytest.fixture
def search(monkeypatch, capsys):
    """Return the command, on rehearsals that take no time; `tried` are the batches, in order."""

    def call(bounds, *words, **options):
        tried = []

        def rehearsed(words, _card, _options):
            tried.append(int(words[-1].rpartition("=")[2]))
            return rehearsal(tried[-1], **options)

        monkeypatch.setattr(command, "rehearse_command", rehearsed)
        line = ["rehearse", "--gpu", "t4", "--batch-from", bounds, *words, "--", "python", "t.py"]
        code = main([*line, "--batch={batch}"])
        return code, tried, capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("bounds", "room", "tried", "largest"),
    [
        pytest.param("1:64", 40, [1, 64, 32, 48, 40, 44, 42, 41], 40, id="between"),
        pytest.param("1:8", 40, [1, 8], 8, id="all fit"),
        pytest.param("5:5", 40, [5], 5, id="one"),
        pytest.param("3:4", 3, [3, 4], 3, id="the smaller of two"),
        pytest.param("1:64", 0, [1], None, id="none"),
    ],
)
def test_the_largest_batch_is_found_by_bisection(search, bounds, room, tried, largest):
    code, batches, (out, _) = search(bounds, "--format", "json", room=room)
    found = json.loads(out)
    assert (batches, found["largest"]) == (tried, largest)
    assert code == (1 if largest is None else 0)
    assert all(one["fits"] == (one["batch"] <= room) for one in found["tries"])


def test_the_search_is_shown_as_a_table(search):
    _, _, (out, err) = search("1:4", room=2)
    assert out.splitlines()[-1].startswith("largest batch: 2 on ")
    assert ["2", "2.00", "GiB", "fits"] in [line.split() for line in out.splitlines()]
    assert "python t.py --batch=4" in err


def test_a_script_that_fails_for_another_reason_ends_the_search(search):
    code, tried, (_, err) = search("2:4", ended="failed")
    assert (code, tried) == (2, [2])
    assert "with a batch of 2 it failed: ValueError: no" in err


def test_a_time_limit_that_was_too_short_ends_the_search(search):
    code, tried, (_, err) = search("2:4", ended="timeout", steps=0)
    assert (code, tried) == (2, [2])
    assert "with a batch of 2 it ran until the time limit" in err


def test_the_batch_may_stand_in_a_variable(search, monkeypatch):
    monkeypatch.setenv("SIZES", "{batch},{batch}")
    seen = []
    monkeypatch.setattr(command, "_say", lambda _: seen.append(os.environ["SIZES"]))
    search("1:4", room=2)
    assert seen == ["1,1", "4,4", "2,2", "3,3"]


@pytest.mark.parametrize("bounds", ["", "8", "0:8", "8:4", "1:x", "-1:4"])
def test_bounds_that_name_no_batches_are_refused(bounds):
    with pytest.raises(VramBudgetError, match="names no batches"):
        read_bounds(bounds)


def test_a_command_without_a_place_for_the_batch_is_refused(capsys):
    words = ["rehearse", "--gpu", "t4", "--batch-from", "1:4", "--", "python", "t.py"]
    assert main(words) == 2
    assert "{batch}" in capsys.readouterr().err


UNKNOWN = {"model_type": "brand_new", "architectures": ["BrandNewForCausalLM"], "hidden_size": 64}


def test_a_model_without_rules_becomes_a_job_of_its_own_class():
    job = job_of(UNKNOWN, {"batch": 2})
    assert job["model"] == UNKNOWN
    assert (job["task"], job["batch"], job["block"]) == ("causal-lm", 2, 1024)
    short = {**UNKNOWN, "architectures": ["XForMaskedLM"], "max_position_embeddings": 128}
    assert (job_of(short, {})["task"], job_of(short, {})["block"]) == ("masked-lm", 128)
    assert job_of(short, {"task": "seq-cls"})["task"] == "seq-cls"


def test_a_model_with_rules_is_the_job_that_its_estimate_has():
    assert job_of("gpt2", {"batch": 4}) == record_of(resolve("gpt2", batch=4))


def test_mistakes_in_a_job_are_still_named():
    with pytest.raises(VramBudgetError, match="model_type is missing"):
        job_of({"hidden_size": 64}, {})
    with pytest.raises(VramBudgetError, match="there is no model"):
        job_of("no-such-model", {})
