"""Predictions against what other people's real GPUs measured, and what those records say."""

from pathlib import Path
from statistics import median

import pytest

from vrambudget.config.record import read_records
from vrambudget.validate import side_by_side, validate

RECORDS = read_records(Path(__file__).parent / "records" / "published" / "real_cards.jsonl")
ALLOCATED, RESERVED = 0.003, 0.03
"""The largest errors that there are: on real cards, fragmentation moves reserved bytes."""


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_real_gpu_measured_what_is_predicted(record):
    (found,) = validate([record])
    assert found.problem is None
    assert abs(found.error("allocated")) <= ALLOCATED
    assert abs(found.error("reserved")) <= RESERVED


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_published_record_names_its_page_its_digits_and_what_was_assumed(record):
    assert record["source"] == "published"
    assert record["page"].startswith("https://")
    assert record["rounding_bytes"] >= 1
    assert record["assumed"]
    assert {"torch", "transformers"} <= record["versions"].keys()


def test_the_median_error_is_the_one_that_the_readme_names():
    checks = list(validate(RECORDS))
    assert 100 * median(abs(check.error("allocated")) for check in checks) < 0.0035
    assert median(abs(check.error("reserved")) for check in checks) == 0
    assert len(checks) == 14


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
