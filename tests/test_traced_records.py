"""Model types without rules of their own, followed and held against their rehearsals.

Every ninth record is followed here, and Swin, whose stages are checkpoints around its layers';
docs/trace.md has the errors of all.
"""

from pathlib import Path

import pytest
from rehearsed import assert_equal, each, records_of

from vrambudget.config.gpus import find_gpu
from vrambudget.config.record import job_of_record
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError
from vrambudget.scenario import platform_of
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

ROOT = Path(__file__).parents[1]
RECORDS = records_of("model_types.jsonl")

OFF: dict[str, float] = {
    "longformer": -0.005,
    "led": 0.01,
    "convnextv2": 0.078,
}
"""The model types whose peaks differ, with the error of allocated bytes in percent."""


@each([*RECORDS[::9], *(record for record in RECORDS if record["id"].startswith("swin-"))])
@pytest.mark.filterwarnings("ignore")  # PEFT's own
def test_a_followed_model_equals_its_rehearsal(record):
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.17")
    pytest.importorskip("peft")
    job = job_of_record(record).model_copy(update={"torch": "2.11"})
    from vrambudget.traced.config import traced_config  # noqa: PLC0415 - it may have no torch

    config = traced_config(find_model(record["model"]), NotModelledError(""))
    job = job.resolve(config)
    platform = platform_of(find_gpu("a100-80gb"), "2.11")
    peak = replay(simulate(config, job, platform).tape).peak

    off = OFF.get(record["model"]["model_type"])
    if off is None:
        assert_equal(peak, record)
    else:
        error = 100 * (peak.allocated_bytes / record["measured"]["peak_allocated"] - 1)
        assert error == pytest.approx(off, abs=6e-4)


def test_the_page_has_a_row_for_each_record():
    page = (ROOT / "docs" / "trace.md").read_text(encoding="utf-8")
    for record in RECORDS:
        assert f"| {record['model']['model_type']} |" in page
    exact = len(RECORDS) - len(OFF)
    assert f"{len(RECORDS)} model types" in page
    assert f"{exact} are equal in requested, allocated and reserved bytes" in page
