"""`preflight` of live models of timm, diffusers, sentence-transformers: equal to their rehearsals.

A model whose library, or cuDNN, is not installed is left out.
"""

import contextlib

import pytest
from rehearsed import (
    assert_equal,
    assert_rehearsed,
    each,
    each_on_the_virtual_gpu,
    records_of,
)

from vrambudget.integrations.preflight import predict

library_cases = None
with contextlib.suppress(ImportError):
    import library_cases

pytestmark = [
    pytest.mark.skipif(library_cases is None, reason="torch or transformers is not installed"),
    pytest.mark.filterwarnings("ignore"),  # the libraries' own
]
RECORDS = records_of("library.jsonl")


def needs_its_library(record):
    pytest.importorskip("nvidia.cudnn")  # convolutions ask it for their workspaces
    pytest.importorskip(library_cases.NEEDED[record["id"].split("_")[0]], exc_type=ImportError)


@each(RECORDS)
def test_a_librarys_model_equals_its_rehearsal(record, monkeypatch):
    needs_its_library(record)
    monkeypatch.setattr("vrambudget.integrations.preflight._versions", lambda: {"torch": "2.11"})
    model, told = library_cases.CASES[record["id"]]()
    assert_equal(predict(model, gpu="a100-80gb", **told).check().peak, record)


@each_on_the_virtual_gpu(RECORDS)
def test_the_records_of_libraries_models_are_what_a_rehearsal_says(record, tmp_path):
    needs_its_library(record)
    assert_rehearsed("library_cases.py", record, tmp_path)


def test_every_model_of_a_library_has_a_record():
    assert [record["id"] for record in RECORDS] == list(library_cases.CASES)
