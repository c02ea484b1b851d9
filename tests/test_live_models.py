"""`preflight` of live models that no family knows, each held against its rehearsal."""

import contextlib

import pytest
from rehearsed import (
    assert_equal,
    assert_rehearsed,
    each,
    each_on_the_virtual_gpu,
    records_of,
)

from vrambudget.errors import NotModelledError
from vrambudget.integrations.preflight import predict

torch = live_cases = head_cases = None
with contextlib.suppress(ImportError):
    import head_cases
    import live_cases
    import torch

pytestmark = [
    pytest.mark.skipif(live_cases is None, reason="torch or transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # PEFT's own
]
RECORDS, HEADS = records_of("live.jsonl"), records_of("heads.jsonl")


@each(RECORDS)
def test_a_live_model_equals_its_rehearsal(record, monkeypatch):
    pytest.importorskip("transformers", minversion="5.17")
    pytest.importorskip("peft")
    monkeypatch.setattr("vrambudget.integrations.preflight._versions", lambda: {"torch": "2.11"})
    model, told = live_cases.CASES[record["id"]]()
    assert_equal(predict(model, gpu="a100-80gb", **told).check().peak, record)


@each(HEADS)
def test_a_head_of_transformers_equals_its_rehearsal(record, monkeypatch):
    pytest.importorskip("transformers", minversion="5.17")
    monkeypatch.setattr("vrambudget.integrations.preflight._versions", lambda: {"torch": "2.11"})
    model, told = head_cases.CASES[record["id"]]()
    assert_equal(predict(model, gpu="a100-80gb", **told).check().peak, record)


@each_on_the_virtual_gpu(HEADS)
def test_the_records_of_heads_are_what_a_rehearsal_says(record, tmp_path):
    assert_rehearsed("head_cases.py", record, tmp_path)


@each_on_the_virtual_gpu(RECORDS)
def test_the_records_of_live_models_are_what_a_rehearsal_says(record, tmp_path):
    assert_rehearsed("live_cases.py", record, tmp_path)


def test_every_live_model_has_a_record():
    assert [record["id"] for record in RECORDS] == list(live_cases.CASES)


def test_recurrent_layers_are_refused_by_name():
    with pytest.raises(NotModelledError, match="recurrent layers run fused kernels"):
        predict(torch.nn.GRUCell(8, 8), inputs=[torch.zeros(2, 8)], loss=lambda y, _: y.sum())


def test_a_forward_of_its_own_is_followed_although_every_parameter_is_the_configurations():
    model, told = live_cases.llama(), live_cases.TOKENS
    traced = "its code was traced"
    assert traced not in " ".join(predict(model, gpu="a100-80gb", **told).warnings)
    model.model.layers[0].register_forward_hook(lambda _m, _in, out: out * 2.0)
    assert traced in " ".join(predict(model, gpu="a100-80gb", **told).warnings)
