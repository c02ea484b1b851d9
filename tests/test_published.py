"""Predictions against what other people's real GPUs measured, and what those records say."""

import json
from pathlib import Path
from statistics import median

import pytest
from ladder import PAGE as LADDER
from ladder import TABLE, TABLES

import vrambudget
from vrambudget.config.record import read_records
from vrambudget.validate import side_by_side, validate

FOLDER = Path(__file__).parent / "records" / "published"
RECORDS = read_records(FOLDER / "real_cards.jsonl")
GENERATED = read_records(FOLDER / "generation.jsonl")
A6000 = read_records(FOLDER / "a6000.jsonl")
ANATOMY = read_records(FOLDER / "anatomy.jsonl")
FOLLOWED = [json.loads(line) for line in (FOLDER / "followed.jsonl").read_text().splitlines()]
PAGE = Path(__file__).parents[1] / "docs" / "accuracy.md"
ROWS = 105
CONTEXTS = 6  # rows that are in the table of GPUs
BOUNDS = {"NVIDIA GeForce RTX 4080": (0.01, 0.03), "Tesla T4": (0.001, 0.002)}
"""The largest errors, allocated and reserved, that a GPU's records may have."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_real_gpu_measured_what_is_predicted(record):
    (found,) = validate([record])
    assert found.problem is None
    allocated, reserved = BOUNDS[found.kinds["card"]]
    assert abs(found.error("allocated")) <= allocated
    assert abs(found.error("trajectory") or 0) <= allocated
    assert abs(found.error("reserved")) <= reserved


def test_each_row_is_in_a_record_or_the_table_of_gpus():
    said = sum(len(record["measured"]) for record in RECORDS + A6000 + ANATOMY)
    said += sum(len(record["printed"]) for record in FOLLOWED)
    assert said + CONTEXTS == ROWS
    assert f"Of the {ROWS} published rows found, {said} are in these records" in (PAGE.read_text())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record", FOLLOWED, ids=lambda record: record["id"])
def test_a_real_t4_took_for_resnet_50_what_follows_from_its_step(record):
    torch = pytest.importorskip("torch")
    from residual_net import Training  # noqa: PLC0415 - it needs torch

    step = Training(record["batch"], record["size"])
    given = {key: record[key] for key in ("steps", "driver_addresses", "warm_process")}
    peak = vrambudget.trace(step, gpu=record["card"], torch="2.11", **given).peak
    printed = record["printed"]
    assert abs(peak.allocated_bytes / printed["allocated"] - 1) < 0.0024
    assert abs(peak.reserved_bytes / printed["reserved"] - 1) < 0.011
    assert sum(p.numel() for p in step.model.parameters()) == 25_557_032
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("record", GENERATED, ids=lambda record: record["id"])
def test_a_real_a100_took_for_a_prompt_what_is_predicted_to_the_printed_digit(record):
    (found,) = validate([record])
    assert found.problem is None
    assert found.error("allocated") == 0
    assert found.error("reserved") is None  # which the page does not have


@pytest.mark.parametrize("record", A6000, ids=lambda record: record["id"])
def test_a_real_a6000_took_for_a_release_that_nobody_checked_what_is_predicted(record):
    (found,) = validate([record])
    assert found.problem is None
    if record.get("mode") == "forward":
        assert found.error("allocated") == 0
    assert abs(found.error("allocated")) <= 0.00007


def test_the_peak_stays_that_of_the_prompt_when_more_is_generated():
    record = next(r for r in GENERATED if r["id"] == "a100-qwen2.5-0.5b-prompt6144")
    (short,), (longer,) = validate([record]), validate([{**record, "new": 512}])
    assert longer.predicted["allocated"] == short.predicted["allocated"]


@pytest.mark.parametrize("record", ANATOMY, ids=lambda record: record["id"])
def test_the_ladder_of_torch_1_10_comes_out_as_it_was_printed(record):
    (found,) = validate([record])
    assert found.problem is None
    assert abs(found.error("device")) < 0.03


def test_the_page_on_the_ladder_shows_what_is_estimated_then_and_now():
    shown = {match["name"]: match["shown"] for match in TABLE.finditer(LADDER.read_text())}
    assert shown == {name: make() for name, make in TABLES.items()}


@pytest.mark.parametrize(
    "record", RECORDS + GENERATED + A6000 + ANATOMY + FOLLOWED, ids=lambda record: record["id"]
)
def test_a_published_record_names_its_page_its_digits_and_what_was_assumed(record):
    assert record["source"] == "published"
    assert record["page"].startswith("https://")
    assert record["rounding_bytes"] >= 1
    assert all(record["assumed"])
    assert {"torch", *(["transformers"] if "model" in record else [])} <= record["versions"].keys()


def test_the_median_error_is_the_one_that_the_readme_names():
    checks = list(validate(RECORDS))
    assert 100 * median(abs(check.error("allocated")) for check in checks) < 0.0042
    assert median(abs(check.error("reserved")) for check in checks) == 0
    assert len(checks) == 18


def test_closer_than_the_last_printed_digit_is_equal():
    record = next(r for r in RECORDS if r["id"].startswith("rtx-4080-q25-0.5b-qlora-s2048"))
    (found,) = validate([record])
    assert found.predicted["allocated"] != found.measured["allocated"]
    assert found.error("allocated") == 0
    (found,) = validate([{**record, "rounding_bytes": 1}])
    assert found.error("allocated") != 0


def test_a_rounding_that_is_no_number_is_said():
    (found,) = validate([{**RECORDS[0], "rounding_bytes": "0.1 MB"}])
    assert "rounding_bytes is '0.1 MB'; it should be bytes" in found.problem


def test_published_virtual_and_measured_stand_apart():
    twins = [{**RECORDS[-1], "source": source} for source in ("published", "virtual", "real")]
    twins[1]["measured"] = {"peak_allocated": 7}
    (row,) = side_by_side(list(validate(twins)))
    assert (row.published, row.virtual) == (RECORDS[-1]["measured"]["peak_allocated"], 7)
    assert row.real == row.published
