"""The trainers' callbacks predict what preflight does, warn or stop, and keep what was measured."""

import json
import logging
import sys
from types import SimpleNamespace

import pytest

import vrambudget
from vrambudget.config.record import read_records
from vrambudget.errors import DoesNotFit, VramBudgetError
from vrambudget.integrations import measured, watch
from vrambudget.validate import validate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

MEASURED = {
    "peak_requested": 100,
    "peak_allocated": 512,
    "peak_reserved": 2**21,
    "device": "NVIDIA GeForce RTX 3060",
    "torch": "2.11.0",
}


@pytest.fixture
def model():
    config = transformers.GPT2Config(
        n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16, use_cache=False
    )
    config.bos_token_id = config.eos_token_id = 0
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.fixture
def counters(monkeypatch):
    monkeypatch.setattr(watch, "measure_peaks", lambda: dict(MEASURED))


def rows(lengths=(16,) * 12):
    return [{"input_ids": [1] * n, "labels": [1] * n} for n in lengths]


def train(model, callback, path, data=None, **arguments):
    pytest.importorskip("accelerate")
    args = transformers.TrainingArguments(
        output_dir=path,
        per_device_train_batch_size=2,
        max_steps=4,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        optim="adamw_torch",
        **arguments,
    )
    trainer = transformers.Trainer(
        model=model, args=args, train_dataset=data or rows(), callbacks=[callback]
    )
    trainer.train()


def test_the_trainers_callback_predicts_what_preflight_does(model, tmp_path):
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    train(model, callback, tmp_path, gradient_accumulation_steps=2, max_grad_norm=0.5)
    assert callback.budget == vrambudget.preflight(
        model,
        batch=2,
        block=16,
        gpu="12GB",
        optimizer=torch.optim.AdamW(model.parameters()),
        grad_accum=2,
        clip=0.5,
        forward_returns="loss",
    )
    assert callback.measured is None  # no GPU, nothing to measure


def test_it_warns_and_goes_on_or_stops(model, tmp_path, caplog):
    callback = vrambudget.VramBudgetCallback(gpu="40MiB")
    with caplog.at_level(logging.WARNING, "vrambudget"):
        train(model, callback, tmp_path)
    assert "DOES NOT FIT" in caplog.text
    with pytest.raises(DoesNotFit):
        train(model, vrambudget.VramBudgetCallback(gpu="40MiB", strict=True), tmp_path)


@pytest.mark.usefixtures("counters")
def test_what_was_measured_is_logged_and_kept(model, tmp_path, caplog):
    path = tmp_path / "measured.jsonl"
    callback = vrambudget.VramBudgetCallback(gpu="12GB", record=path, torch="2.11")
    with caplog.at_level(logging.INFO, "vrambudget"):
        train(model, callback, tmp_path)
    assert callback.measured == MEASURED
    assert "predicted, 2.00 MiB measured" in caplog.text
    (check,) = validate(read_records(path))
    assert check.problem is None
    assert check.measured["allocated"] == 512
    assert check.predicted["allocated"] == callback.budget.peak.allocated_bytes


def test_sequences_of_several_lengths_need_a_block(model, tmp_path):
    data = rows([8, 8, 16, 16, 8, 8, 16, 16])
    with pytest.raises(VramBudgetError, match="do not all have one length"):
        train(model, vrambudget.VramBudgetCallback(gpu="12GB"), tmp_path, data)
    callback = vrambudget.VramBudgetCallback(gpu="12GB", block=16)
    callback.on_train_begin(_arguments(), None, None, model=model)
    assert callback.budget.job["block"] == 16
    assert callback.budget.job["precision"] == "amp-bf16"


def _arguments():
    return SimpleNamespace(
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        max_grad_norm=0,
        bf16=True,
        fp16=False,
    )


def test_a_record_that_cannot_be_written_is_said(tmp_path):
    budget = vrambudget.estimate("gpt2", block=8)
    with pytest.raises(VramBudgetError, match="cannot write the record"):
        measured.append_record(tmp_path / "no" / "r.jsonl", budget, {}, MEASURED)


def test_a_record_is_one_line_of_plain_values(tmp_path):
    budget = vrambudget.estimate("gpt2", block=8)
    path = tmp_path / "r.jsonl"
    for _ in range(2):
        measured.append_record(path, budget, {"a": 1, "dtype": object()}, MEASURED)
    first, second = path.read_text().splitlines()
    assert first == second
    assert json.loads(first)["model"] == {"a": 1}


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.usefixtures("counters")
def test_lightnings_callback_predicts_and_measures(model, tmp_path):
    lightning = pytest.importorskip("lightning.pytorch")

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = model

        def training_step(self, batch, _):
            return self.model(input_ids=batch, labels=batch).loss

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), foreach=True)

    callback = vrambudget.lightning_callback(batch=2, block=16, gpu="12GB")
    loader = torch.utils.data.DataLoader(torch.ones(12, 16, dtype=torch.long), batch_size=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=4,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=0.5,
        default_root_dir=tmp_path,
    )
    trainer.fit(Module(), loader)
    assert callback.budget.job["optimizer_impl"] == "foreach"
    assert callback.budget.job["clip"] == 0.5
    assert callback.measured == MEASURED


def test_without_lightning_it_says_so(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(VramBudgetError, match="Lightning is not installed"):
        vrambudget.lightning_callback(batch=1)
