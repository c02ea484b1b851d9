"""`preflight` of live models that no family knows, each held against its rehearsal."""

import contextlib
import json
from pathlib import Path

import pytest
from virtual import VIRTUAL_GPU, run

from vrambudget.errors import NotModelledError
from vrambudget.integrations.preflight import predict

torch = live_cases = None
with contextlib.suppress(ImportError):
    import live_cases
    import torch

pytestmark = [
    pytest.mark.skipif(live_cases is None, reason="torch or transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # PEFT's own
]
HERE = Path(__file__).parent
RECORDS = [
    json.loads(line)
    for line in (HERE / "records" / "followed" / "live.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record["id"])
def test_a_live_model_equals_its_rehearsal(record, monkeypatch):
    pytest.importorskip("transformers", minversion="5.17")
    pytest.importorskip("peft")
    monkeypatch.setattr("vrambudget.integrations.preflight._versions", lambda: {"torch": "2.11"})
    model, told = live_cases.CASES[record["id"]]()
    peak = predict(model, gpu="a100-80gb", **told).check().peak
    measured = record["measured"]
    assert peak.requested_bytes == measured["peak_requested"]
    assert peak.allocated_bytes == measured["peak_allocated"]
    assert peak.reserved_bytes == measured["peak_reserved"]


@pytest.mark.parametrize(
    "record", [pytest.param(record, marks=VIRTUAL_GPU, id=record["id"]) for record in RECORDS]
)
def test_the_records_of_live_models_are_what_a_rehearsal_says(record, tmp_path):
    told = tmp_path / "peaks"
    run(HERE / "live_cases.py", record["id"], told, steps=100)
    assert told.read_text().split() == [str(n) for n in record["measured"].values()]


def test_every_live_model_has_a_record():
    assert [record["id"] for record in RECORDS] == list(live_cases.CASES)


def test_recurrent_layers_are_refused_by_name():
    with pytest.raises(NotModelledError, match="recurrent layers run fused kernels"):
        predict(torch.nn.GRUCell(8, 8), inputs=[torch.zeros(2, 8)], loss=lambda y, _: y.sum())


def test_a_forward_of_its_own_is_followed_although_every_parameter_is_the_configurations():
    model, told = live_cases.llama(), live_cases.TOKENS
    followed = "its code was followed"
    assert followed not in " ".join(predict(model, gpu="a100-80gb", **told).warnings)
    model.model.layers[0].register_forward_hook(lambda _m, _in, out: out * 2.0)
    assert followed in " ".join(predict(model, gpu="a100-80gb", **told).warnings)
