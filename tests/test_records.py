"""Predictions against what PyTorch's own allocator said, to the byte: peaks, and along the way.

Every job record of tests/records is predicted. A record that is not exact is in `KNOWN`, with the
largest error that it may have and the first event that differs.
"""

from pathlib import Path
from typing import Any

import pytest

from vrambudget.config.record import read_records, record_files
from vrambudget.config.versions import BASELINE
from vrambudget.validate import COUNTERS, Check, validate

RECORDS = Path(__file__).parent / "records"

TRACED = {"tiny-albert-groups-dropout"}
"""Records of models that no program answers: their own code is traced."""

# On a virtual card all rows go to no expert, and products of nothing need no workspace.
_EMPTY_GROUPS = "workspaces of grouped products"
# Each module that is called gathers ahead; Llama's activation is one, and no module here.
_ACTIVATIONS = "a gather that the activation's module begins"
_ANOTHER_STREAM = "a block that another stream used comes back at the next allocation, not at once"

KNOWN: dict[str, tuple[float, str]] = {
    "small-mixtral-4090-window torch 2.15": (0.0011, _EMPTY_GROUPS),
    "ds-zero3-hfllama1b-8-ckpt": (0.0032, _ACTIVATIONS),
    "fsdp1-drawn-qwen2-5-accum": (0.0054, _ANOTHER_STREAM),
}
"""name: (largest relative error, first event that differs)."""


def name_of(record: dict[str, Any]) -> str:
    """Return a record's id, and its version of torch where that is not the baseline's."""
    release = record["versions"]["torch"].rpartition(".")[0]
    return record["id"] if release == BASELINE["torch"] else f"{record['id']} torch {release}"


def job_records() -> list[Any]:
    found = []
    for file in record_files(RECORDS):
        found += [pytest.param(record, id=name_of(record)) for record in read_records(file)]
    return found


def check(record: dict[str, Any]) -> Check:
    (found,) = validate([record])
    assert found.problem is None, found.problem
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("record", job_records())
def test_a_prediction_equals_what_pytorch_said(record: dict[str, Any]) -> None:
    if record["id"] in TRACED:
        pytest.importorskip("transformers")
    found = check(record)

    if found.ran_out_of_memory:
        assert found.foreseen
        return
    errors = {counter: found.error(counter) for counter in COUNTERS}
    assert None not in errors.values(), errors
    bound, _ = KNOWN.get(name_of(record), (0.0, ""))
    off = {counter: error for counter, error in errors.items() if abs(error or 0) > bound}
    assert not off, (off, found.predicted, found.measured)


def test_the_known_residues_are_residues_still() -> None:
    records = {name_of(param.values[0]): param.values[0] for param in job_records()}
    for name in KNOWN:
        found = check(records[name])
        assert any(found.error(counter) for counter in COUNTERS), f"{name} is exact now: rejoice"
