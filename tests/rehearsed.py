"""Records of rehearsed jobs in tests: what each job is held against, and how it is made again."""

import json
from pathlib import Path

import pytest
from virtual import VIRTUAL_GPU, run

HERE = Path(__file__).parent


def records_of(name):
    """Return the records of a file of followed jobs."""
    lines = (HERE / "records" / "traced" / name).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def each(records, one_in=3):
    """Run a test with one record in so many, and with each every night."""
    cases = pytest.mark.parametrize("record", records, ids=lambda record: record["id"])
    return lambda test: pytest.mark.sampled(one_in)(cases(test))


def each_on_the_virtual_gpu(records):
    """Run a test with each record, where a rehearsal is possible."""
    params = [pytest.param(record, marks=VIRTUAL_GPU, id=record["id"]) for record in records]
    return pytest.mark.parametrize("record", params)


def assert_equal(peak, record):
    """Hold a predicted peak against a record's, to the byte."""
    measured = record["measured"]
    assert peak.requested_bytes == measured["peak_requested"]
    assert peak.allocated_bytes == measured["peak_allocated"]
    assert peak.reserved_bytes == measured["peak_reserved"]


def assert_rehearsed(script, record, folder):
    """Hold a record against a rehearsal of `script ID FILE`, which writes its peaks to FILE."""
    told = folder / "peaks"
    run(HERE / script, record["id"], told, steps=100)
    assert told.read_text().split() == [str(n) for n in record["measured"].values()]
