"""The trainers' callbacks predict what preflight does, warn or stop, and keep what was measured."""

import json
import logging
import random
import sys
from types import SimpleNamespace

import pytest

import vrambudget
from vrambudget.config.record import read_records
from vrambudget.errors import DoesNotFit, NotModelledError, VramBudgetError
from vrambudget.integrations import live_batch, live_trl, measured, watch
from vrambudget.validate import validate

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import trainer_setups  # noqa: E402 - it needs them
import virtual  # noqa: E402

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
        loop="trainer",
        steps=4,  # max_steps
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


UNPREDICTED = {
    "a wrapped module": "Wrapped in loop 'trainer' is not modelled",
    "compiled": "torch.compile",
}
NAMED = UNPREDICTED | {
    "ragged rows": "not modelled: rows of 5 to 16 tokens",
    "a loss of its own": "not modelled: Weighted.compute_loss",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", trainer_setups.SETUPS)
@pytest.mark.filterwarnings("ignore")  # PEFT's and the compiler's own
def test_a_training_ends_as_it_would_without_the_callback(name, tmp_path, caplog):
    pytest.importorskip("peft")
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    watched = trainer_setups.train(name, callback, tmp_path, use_cpu=True)
    alone = trainer_setups.train(name, None, tmp_path, use_cpu=True)
    assert watched.state.global_step == 3
    assert losses(watched) == losses(alone)
    assert (callback.budget is None) == (name in UNPREDICTED)
    assert NAMED.get(name, "") in caplog.text
    assert ("vrambudget rehearse --gpu 12GB" in caplog.text) == (name in UNPREDICTED)


def losses(trainer):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_the_first_batches_say_length_and_padding(tmp_path):
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    trainer_setups.train("ragged rows", callback, tmp_path, use_cpu=True)
    assert callback.budget.job["block"] == 16
    assert callback.budget.job["rows"] == "padded"


@pytest.mark.parametrize("name", ["bf16 weights with bf16", "peft"])
@pytest.mark.filterwarnings("ignore")
def test_bf16_weights_under_autocast_are_seen(name, tmp_path):
    pytest.importorskip("peft")
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    trainer_setups.train(name, callback, tmp_path, use_cpu=True)
    assert (callback.budget.job["precision"], callback.budget.job["weights"]) == (
        "amp-bf16",
        "bf16",
    )


def test_evaluation_and_label_smoothing_are_read(tmp_path):
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    trainer_setups.train("evaluation", callback, tmp_path, use_cpu=True)
    job = callback.budget.job
    assert (job["eval_batch"], job["eval_batches"], job["eval_gather"]) == (8, 2, True)
    trainer_setups.train("label smoothing", callback, tmp_path, use_cpu=True)
    job = callback.budget.job
    assert (job["loop"], job["label_smoothing"], job["eval_batches"]) == ("trainer", 0.1, None)


def test_a_stream_of_rows_is_not_read(model, tmp_path, caplog):
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(rows())

    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    train(model, callback, tmp_path, Stream())
    assert callback.budget is None
    assert "pass block=..., the length of the longest sequence" in caplog.text
    callback = vrambudget.VramBudgetCallback(gpu="12GB", block=16)
    train(model, callback, tmp_path, Stream())
    assert callback.budget.job["block"] == 16


def test_a_look_at_the_rows_draws_no_random_numbers():
    class Augmented:
        def __len__(self):
            return 4

        def __getitem__(self, _):
            return {"input_ids": [random.getrandbits(3)] * int(torch.randint(2, 9, ()))}

    loader = SimpleNamespace(
        dataset=Augmented(), collate_fn=lambda rows: {"input_ids": torch.ones(2, len(rows))}
    )
    random.seed(0)
    torch.manual_seed(0)
    expected = random.getrandbits(32), torch.rand(())
    random.seed(0)
    torch.manual_seed(0)
    live_batch.read_batch(loader, 2)
    assert (random.getrandbits(32), torch.rand(())) == expected


def test_a_misspelt_option_is_said_before_any_training():
    with pytest.raises(VramBudgetError, match="attenton is no option of a job") as error:
        vrambudget.VramBudgetCallback(attenton="eager")
    assert "attention" in error.value.hint


def test_strict_stops_what_cannot_be_predicted(tmp_path):
    callback = vrambudget.VramBudgetCallback(gpu="12GB", strict=True)
    with pytest.raises(NotModelledError, match="Wrapped"):
        trainer_setups.train("a wrapped module", callback, tmp_path, use_cpu=True)


@pytest.mark.usefixtures("counters")
def test_a_full_disk_ends_no_training(model, tmp_path, caplog):
    callback = vrambudget.VramBudgetCallback(gpu="12GB", record=tmp_path / "no" / "r.jsonl")
    train(model, callback, tmp_path)
    assert "cannot write the record" in caplog.text


@pytest.mark.usefixtures("counters")
def test_the_trainers_log_has_both(tmp_path):
    callback = vrambudget.VramBudgetCallback(gpu="12GB")
    trainer = trainer_setups.train("plain", callback, tmp_path, use_cpu=True)
    found = [entry for entry in trainer.state.log_history if any("vram" in key for key in entry)]
    peak = callback.budget.peak
    assert found == [
        {
            "vram_allocated_predicted": peak.allocated_bytes,
            "vram_reserved_predicted": peak.reserved_bytes,
            "step": 0,
        },
        {"vram_allocated_measured": 512, "vram_reserved_measured": 2**21, "step": 3},
    ]


@pytest.mark.virtual_gpu
@pytest.mark.skipif(virtual.why_not() is not None, reason="needs a CUDA build of PyTorch")
def test_on_a_gpu_the_callback_moves_no_byte(tmp_path):
    result = virtual.run(trainer_setups.__file__, str(tmp_path), gpu="rtx-3060")
    assert result.exit_code == 0, result.error
    lines = (tmp_path / "peaks.jsonl").read_text(encoding="utf-8").splitlines()
    found = {entry["name"]: entry["peaks"] for entry in map(json.loads, lines)}
    assert found.keys() == trainer_setups.SETUPS.keys()
    assert all(alone == watched for alone, watched in found.values())
    predicted = {entry["name"]: entry["predicted"] for entry in map(json.loads, lines)}
    for name in EXACT:
        assert predicted[name] == found[name][0], name


EXACT = (
    "plain",
    "bf16 weights with bf16",
    "peft",
    "label smoothing",
    "checkpointing and accumulation",
)
"""Predicted to the byte by the callback; others are named, bounded, or of a smaller batch."""


def of_trl(name, *bases, **methods):
    """Return a class as TRL defines it: a Trainer by its name and module."""
    return type(name, bases or (transformers.Trainer,), {"__module__": "trl.trainer", **methods})


SFT = of_trl("SFTTrainer", compute_loss=lambda *_: None)


class Own(SFT):
    """A script's own class, with another loss."""

    def compute_loss(self, *_):
        """Return nothing: only its name is asked for."""


@pytest.mark.parametrize(
    ("kind", "loop"), [(transformers.Trainer, "trainer"), (SFT, "sft"), (Own, "sft")]
)
def test_a_trainer_is_known_by_the_library_s_class_that_it_is(kind, loop):
    trainer = kind.__new__(kind)
    assert live_trl.loop_of(trainer) == loop
    assert list(live_trl.overridden(trainer)) == (["compute_loss"] if kind is Own else [])


def test_what_of_trl_is_not_counted_is_named():
    reward = of_trl("RewardTrainer")
    with pytest.raises(NotModelledError, match="TRL's RewardTrainer, which has a loss of its own"):
        live_trl.loop_of(reward.__new__(reward))
    usual = SimpleNamespace(packing=False, loss_type=["sigmoid"], precompute_ref_log_probs=True)
    assert live_trl.trl_fields(usual, "dpo") == {"precompute_ref_log_probs": True}
    assert live_trl.trl_fields(usual, "trainer") == {}
    for name, value in (("loss_type", ["ipo"]), ("use_weighting", True)):
        with pytest.raises(NotModelledError, match=f"TRL's {name} = "):
            live_trl.trl_fields(SimpleNamespace(**{name: value}), "sft")


def test_packed_rows_are_read_as_trl_s_collator_lays_them_end_to_end():
    def collate(rows):
        ids = torch.cat([torch.tensor(row["input_ids"]) for row in rows])[None]
        labels = ids.clone()
        labels[0, 0] = -100
        ends = torch.tensor([0, ids.shape[1]])
        packed = {"position_ids": ids, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        return {"input_ids": ids, "labels": labels, **packed, "max_length_q": 7, "seq_idx": ids}

    rows = [{"input_ids": [1] * 10}, {"input_ids": [1] * 9}]
    loader = SimpleNamespace(dataset=rows, collate_fn=collate)
    fields, not_modelled = live_batch.read_batch(loader, 2, has_completions=True)
    assert fields == {
        "block": 10,
        "attention_mask": "none",
        "rows": "packed",
        "completion_len": 9,
    }
    (ragged,) = not_modelled
    assert "rows of 9 to 10 tokens" in ragged


def test_pairs_are_read_as_trl_s_collator_makes_them():
    prompt, answers = [1] * 5, {"chosen_ids": [1] * 4, "rejected_ids": [1] * 7}
    rows = [{"prompt_ids": prompt, **answers}] * 2

    def collate(rows):
        length = max(len(row["prompt_ids"] + row["rejected_ids"]) for row in rows)
        mask = torch.ones(2 * len(rows), length, dtype=torch.long)
        completion = mask.clone()
        completion[:, : len(prompt)] = 0
        return {"input_ids": mask, "attention_mask": mask, "completion_mask": completion}

    loader = SimpleNamespace(dataset=rows, collate_fn=collate)
    fields, not_modelled = live_batch.read_batch(loader, 2, has_completions=True)
    assert fields == {"block": 12, "attention_mask": "ones", "completion_len": 7}
    assert not_modelled == ()


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
    assert (callback.budget.job["loop"], callback.budget.job["model_mode"]) == (
        "lightning",
        "train",
    )
    assert callback.measured == MEASURED


def test_without_lightning_it_says_so(monkeypatch):
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(VramBudgetError, match="Lightning is not installed"):
        vrambudget.lightning_callback(batch=1)
