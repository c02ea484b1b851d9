"""Pictures show what the budget says: the page, the timeline, and PyTorch's own memory viewer."""

import io
import json
import pickle
import re
import sys
from itertools import pairwise

import pytest

import vrambudget
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import follow
from vrambudget.report.html import page
from vrambudget.report.ledger import ledger
from vrambudget.report.memory_curve import PARTS, memory_curve
from vrambudget.report.snapshot import snapshot, snapshot_bytes
from vrambudget.scenario import resolve
from vrambudget.tape.trace import trace
from vrambudget.units import format_bytes

JOBS = {
    "fits": resolve("nanogpt", batch=4, block=256, gpu="24GB"),
    "full": resolve("nanogpt", batch=16, block=1024, gpu="12GB"),
    "no card": resolve("llama-3.2-1b", batch=1, block=128, checkpointing="full"),
    "evaluation": resolve("gpt2", batch=2, block=64, mode="eval", gpu="t4"),
    "generation": resolve(
        "gpt2", batch=4, prompt=16, new=300, mode="generate", return_scores=True, gpu="12GB"
    ),
}
FOLLOWED = {name: follow(scenario) for name, scenario in JOBS.items()}
each_job = pytest.mark.parametrize("followed", FOLLOWED.values(), ids=FOLLOWED)


@each_job
def test_a_trace_comes_to_the_peaks_of_the_replay(followed):
    actions, peak = trace(followed.tape).actions, followed.budget.peak
    assert max(action.allocated_bytes for action in actions) == peak.allocated_bytes
    assert max(action.reserved_bytes for action in actions) == peak.reserved_bytes


def test_on_a_full_card_a_trace_ends_with_the_request_that_failed():
    followed = FOLLOWED["full"]
    failed = trace(followed.tape, followed.room_bytes).out_of_memory
    assert failed.size_bytes == followed.budget.out_of_memory.requested_bytes
    assert failed.allocated_bytes == followed.budget.out_of_memory.allocated_bytes


@each_job
def test_the_highest_column_is_the_budgets_breakdown(followed):
    drawn = memory_curve(followed.tape, followed.scenario.job)
    peak = drawn.columns[drawn.peak]
    assert dict(zip(PARTS, peak.parts, strict=True)) == followed.budget.breakdown
    assert drawn.span_of(drawn.peak).phase == followed.budget.peak.phase


@each_job
def test_every_column_adds_up_and_lies_in_one_phase(followed):
    drawn = memory_curve(followed.tape, followed.scenario.job)
    for column in drawn.columns:
        assert sum(column.parts) == column.allocated_bytes <= column.reserved_bytes
        named = sum(n * drawn.groups[group].size_bytes for group, n in column.largest)
        assert 0 < named <= column.allocated_bytes
    assert [span.stop for span in drawn.spans[:-1]] == [span.start for span in drawn.spans[1:]]
    assert drawn.spans[-1].stop == len(drawn.columns) <= 1000


def test_the_cache_grows_along_steps_that_are_not_on_the_tape():
    followed = FOLLOWED["generation"]
    drawn = memory_curve(followed.tape, followed.scenario.job)
    [span] = [span for span in drawn.spans if span.phase == "decode 2 to 298"]
    assert (span.stop - span.start) / len(drawn.columns) == pytest.approx(0.5, abs=0.01)
    columns = drawn.columns[span.start : span.stop]
    token = 2 * 12 * 4 * 768 * 2  # keys and values, layers, rows, width, bytes
    cached = [column.parts[PARTS.index("KV cache")] for column in columns]
    assert cached[-1] == (16 + 298) * token
    assert {b - a for a, b in pairwise(cached)} == {0, token}
    assert columns[-1].operation == "after decode 298"
    assert max(c.reserved_bytes for c in drawn.columns) == followed.budget.peak.reserved_bytes


@each_job
def test_the_page_needs_no_network_and_has_the_numbers(followed):
    text, budget = page(followed), followed.budget
    assert "http:" not in text
    assert "https:" not in text
    assert not re.search(r"(?:src|href)=|url\(|@import|import\(", text)
    unit = ledger(budget).amounts.unit
    assert f"peak {format_bytes(budget.peak.allocated_bytes, unit)}" in text
    word = "PEAK" if budget.device is None else "FITS" if budget.fits else "DOES NOT FIT"
    assert f">{word}</h1>" in text
    assert ("out of memory here" in text) == (budget.out_of_memory is not None)


def test_the_page_carries_every_moment_as_data():
    text = page(FOLLOWED["fits"])
    data = json.loads(re.search(r'id="curve">(.*?)</script>', text)[1])
    operation, allocated, *_ = data["columns"][data["peak"]]
    assert operation == FOLLOWED["fits"].budget.peak.operation
    assert allocated == FOLLOWED["fits"].budget.peak.allocated_bytes


def test_a_models_name_cannot_break_out_of_the_page():
    scenario = resolve({"model_type": "gpt2", "n_layer": 1, "n_embd": 64, "n_head": 1}, block=8)
    hostile = type(scenario)("</script><img src=x>", scenario.config, scenario.job, scenario.gpu)
    assert "<img" not in page(follow(hostile))


@each_job
def test_a_snapshot_holds_together(followed):
    taken = snapshot(followed)
    alive, reserved = {}, 0
    for entry in taken["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in alive
            alive[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_completed":
            assert alive.pop(entry["addr"]) == entry["size"]
        elif entry["action"].startswith("segment"):
            reserved += entry["size"] if entry["action"] == "segment_alloc" else -entry["size"]
    blocks = [block for segment in taken["segments"] for block in segment["blocks"]]
    held = {b["address"]: b["requested_size"] for b in blocks if b["state"] == "active_allocated"}
    assert held == alive
    assert sum(segment["total_size"] for segment in taken["segments"]) == reserved
    assert sum(block["size"] for block in blocks) == reserved


def test_a_snapshot_says_who_asked_for_a_block():
    entries = snapshot(FOLLOWED["full"])["device_traces"][0]
    last = entries[-1]
    assert last["action"] == "oom"
    assert [frame["name"] for frame in last["frames"]] == [
        *("to_copy", "float32 [16384, 50304]", "logits and loss", "forward")
    ]
    assert last["device_free"] < last["size"]


def test_a_snapshot_is_of_plain_types_in_a_protocol_that_the_viewer_reads():
    data = snapshot_bytes(FOLLOWED["fits"])
    assert data[:2] == b"\x80\x04"

    class Plain(pickle.Unpickler):
        def find_class(self, module, name):
            raise AssertionError(f"{module}.{name}")

    taken = Plain(io.BytesIO(data)).load()
    assert {entry.get("category") for entry in taken["device_traces"][0]} >= {"unknown", "weights"}


def test_pytorchs_own_viewer_opens_a_snapshot():
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    taken = snapshot(FOLLOWED["full"])
    assert "snapshot.pickle" in viewer.trace_plot(taken)
    assert "snapshot.pickle" in viewer.segment_plot(taken)
    assert "raise OutOfMemoryError # 3.1GiB requested" in viewer.trace(taken)


@pytest.mark.parametrize(
    ("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_timeline_is_a_picture(kind, start, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"timeline.{kind}"
    budget = vrambudget.draw(path, "nanogpt", batch=16, block=1024, gpu="12GB")
    assert path.read_bytes().startswith(start)
    assert budget == FOLLOWED["full"].budget


def test_without_matplotlib_the_timeline_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(VramBudgetError, match="matplotlib") as caught:
        vrambudget.draw(tmp_path / "t.png", "gpt2", block=8)
    assert "vrambudget[pictures]" in caught.value.hint


def test_a_kind_that_is_none_is_refused_before_the_work():
    with pytest.raises(VramBudgetError, match=r"'\.bmp'"):
        vrambudget.draw("t.bmp", "no such model")


def test_a_notebook_shows_the_bar_and_a_terminal_the_table():
    made = FOLLOWED["full"].budget
    assert "DOES NOT FIT" in made._repr_html_()
    assert 'class="bar"' in made._repr_html_()
    assert "http" not in made._repr_html_()
    assert str(made).startswith("DOES NOT FIT: 18.49 of 11.69 GiB")
