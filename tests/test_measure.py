"""Jobs become records and come back; what cannot be measured is said in two lines."""

import json
import sys
from dataclasses import replace
from importlib.util import find_spec
from inspect import getsource
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.cli import measure as measure_command
from vrambudget.cli import rehearse as rehearse_command
from vrambudget.cli.parser import parse
from vrambudget.config.fields.generation import Generation
from vrambudget.config.fields.ranks import Ranks
from vrambudget.config.job import Job
from vrambudget.config.record import job_of_record, read_records
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.measure import record as record_module
from vrambudget.measure.record import (
    DECIDED_BY_THE_RUN,
    as_record,
    measure_job,
    record_of,
    record_of_job,
    runnable,
)
from vrambudget.rehearse.events import JobRehearsal
from vrambudget.scenario import resolve
from vrambudget.validate import validate

MEASURE = Path(record_module.__file__).parent
TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 100}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 300,
}


def options(**changes):
    return pytest.param(changes, id=" ".join(f"{k}={v}" for k, v in changes.items()) or "plain")


# One row for each field of a job, and for values that a record writes in its own way.
JOBS = [
    options(),
    options(batch=3, block=7),
    options(mode="eval", keep_outputs=False),
    options(precision="fp32", optimizer="sgd-momentum", optimizer_impl="for-loop"),
    options(precision="amp-fp16", clip=0.5, grad_accum=4),
    options(attention="eager", dropout=0.0),
    options(dropout=0.3, steps=1),
    options(checkpointing="full", lora_rank=8),
    options(lora_rank=4, lora_targets=("q_proj", "v_proj")),
    options(freeze=("model.embed_tokens", "model.layers.0")),
    options(quant="nf4", double_quant=False, lora_rank=8, precision="bf16"),
    options(optimizer="paged-adamw-8bit"),
    options(optimizer="none"),
    options(attention_mask="padding"),
    options(attention_mask="ones"),
    options(rows="padded"),
    options(task="seq-cls"),
]


def back(scenario):
    """Return the job that a scenario's record is, and its own, without what a run decides."""
    record = json.loads(json.dumps(record_of(scenario)))
    job = job_of_record(record)
    job = job.resolve(scenario.config.for_job(job))
    own = set(DECIDED_BY_THE_RUN)
    return job.model_dump(exclude=own), scenario.job.model_dump(exclude=own)


@pytest.mark.parametrize("fields", JOBS)
def test_a_job_comes_back_from_its_record(fields):
    scenario = resolve(LLAMA, **{"block": 16, **fields})
    came, went = back(scenario)
    assert came == went


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        pytest.param("nanogpt", {"dropout": 0.2}, id="nanogpt"),
        pytest.param("t5-small", {"block": 64, "target_len": 32}, id="target"),
        pytest.param("vit-base-patch16-224", {"image_size": 96}, id="image"),
        pytest.param("mixtral-8x7b", {"block": 8, "experts": "eager"}, id="experts"),
        pytest.param("bert-base-uncased", {"task": "masked-lm"}, id="task"),
    ],
)
def test_a_model_of_another_kind_comes_back_too(model, fields):
    scenario = resolve(model, **fields)
    came, went = back(scenario)
    assert came == went
    record = record_of(scenario)
    again = resolve(record["model"], block=8).config
    assert {**again.model_dump(), "programs": 0} == {**scenario.config.model_dump(), "programs": 0}


def test_every_job_of_the_records_comes_back():
    seen = 0
    for file in sorted((Path(__file__).parent / "records").glob("*.jsonl")):
        if '"measured"' not in file.read_text().partition("\n")[0]:
            continue  # single operations or messages
        for record in read_records(file):
            model = find_model(record["model"])
            job = job_of_record(record)
            try:
                scenario = resolve(record["model"], block=job.block or 8)
            except NotModelledError:
                assert find_spec("torch") is None, record["id"]  # else it is traced
                continue
            scenario = replace(scenario, job=job.resolve(scenario.config), values=model.values)
            came, went = back(scenario)
            assert came == went, record["id"]
            seen += 1
    assert seen > 45


def test_the_runner_knows_every_field_of_a_job():
    source = "".join(
        file.read_text("utf-8") for file in MEASURE.rglob("*.py") if file.stem != "record"
    )
    in_the_model = {"experts", "channels_last"}  # as transformers has it; of programs alone
    # with the mode "generate", and with several ranks
    refused = set(Generation.model_fields) | set(Ranks.model_fields)
    fields = set(Job.model_fields) - DECIDED_BY_THE_RUN - in_the_model - refused
    assert {name for name in fields if f'"{name}"' not in source} == set()
    assert '"experts_implementation"' in getsource(record_of_job)


def test_a_named_model_runs_as_its_configuration():
    rows = {"batch": 1, "block": 8}
    assert runnable({"model": "gpt2", **rows})["model"]["model_type"] == "gpt2"
    for model in ("nanogpt", TINY):
        assert runnable({"model": model, **rows}) == {"model": model, **rows}
    with pytest.raises(VramBudgetError, match="gpt-3"):
        runnable({"model": "gpt-3"})
    with pytest.raises(VramBudgetError, match="several ranks") as refused:
        runnable({"model": "gpt2", "batch": 1, "parallel": {"method": "ddp", "world": 8}})
    assert "rehearse --gpu GPU --ranks" in str(refused.value.hint)


def test_a_record_keeps_the_job_and_forgets_its_last_run():
    old = {"id": "x", "batch": 2, "measured": {"peak_allocated": 1}, "machine": {}, "card": "t4"}
    new = as_record(old, measured={"peak_allocated": 2}, source="real")
    assert new == {"id": "x", "batch": 2, "measured": {"peak_allocated": 2}, "source": "real"}


# ---- the commands -------------------------------------------------------------------------------


def test_without_a_gpu_measuring_is_exit_code_two_and_names_what_needs_none(monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert main(["measure", "gpt2", "--batch", "1"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: cannot measure: PyTorch sees no GPU" in err
    assert "tip: `vrambudget rehearse` needs no GPU" in err


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-in Python is a shell script")
def test_a_python_without_torch_is_named_by_its_own_words(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -S -c "import torch"\n')
    python.chmod(0o755)
    with pytest.raises(VramBudgetError, match="No module named 'torch'"):
        measure_job({"model": TINY}, python=str(python))


TORCH = """
from types import SimpleNamespace
__version__, version = "2.11.0", SimpleNamespace(cuda="13.0")
def empty(*_, **__): pass
cuda = SimpleNamespace(
    is_available=lambda: True,
    mem_get_info=lambda: (700, 1000),
    memory_reserved=lambda: 100,
    get_device_name=lambda _: "Tesla T4",
    get_device_properties=lambda _: SimpleNamespace(major=7, minor=5, multi_processor_count=40),
)
"""


def test_the_machine_s_own_part_is_what_lies_outside_pytorch_s_segments(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = record_module.look(sys.executable)  # what a GPU would answer
    assert (found["card"], found["capacity_bytes"]) == ("Tesla T4", 1000)
    assert found["outside_bytes"] == 200  # 300 taken, 100 of them PyTorch's
    assert found["versions"]["cuda"] == "13.0"
    assert (found["compute_capability"], found["multiprocessors"]) == ([7, 5], 40)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure"], "name either a model or"),
        (["measure", "gpt2", "--jobs", "x.jsonl"], "either a model or"),
        (["measure", "--jobs", "no-such-file.jsonl"], "cannot read the records"),
        (["rehearse"], "name one of"),
        (["rehearse", "gpt2"], "name the GPU"),
        (["rehearse", "gpt2", "--gpu", "t4", "--", "train.py"], "name one of"),
        (["rehearse", "gpt2", "--gpu", "t4", "--ranks", "2"], "--ranks needs a command"),
        (["rehearse", "train.py", "--gpu", "t4"], "train.py is a script"),
        (["rehearse", "--gpu", "t4", "python", "train.py"], "unexpected argument 'train.py'"),
        (
            ["rehearse", "--gpu", "t4", "--batch", "8", "--", "train.py"],
            "--batch is an option for a model",
        ),
        (["rehearse", "--jobs", "x.jsonl", "--batch", "8"], "cannot be combined"),
        (["rehearse", "--gpu", "t4", "--"], "nothing to rehearse"),
        (["rehearse", "gpt2", "--gpu", "t4", "--bacth", "8"], "unrecognized arguments: --bacth"),
        (["rehearse", "--gpu", "t4", "--", "mpirun", "-n", "2", "t.py"], "no such command"),
        (
            ["rehearse", "--gpu", "t4", "--rank", "2", "--ranks", "2", "--", "t.py"],
            "no rank 2",
        ),
        (["compare", "gpt2", "--gpu", "no-such-card"], "no-such-card"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_exit_code_two_and_two_lines(words, said, capsys):
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err


def test_what_follows_the_dashes_is_the_command_s_own():
    args = parse(["rehearse", "--gpu", "t4", "--steps", "2", "--", "python", "t.py", "--", "--gpu"])
    assert args.command == ["python", "t.py", "--", "--gpu"]
    assert (args.gpu, args.steps) == ("t4", 2)


@pytest.fixture
def jobs(tmp_path):
    file = tmp_path / "jobs.jsonl"
    job = {"id": "one", "model": TINY, "batch": 1, "block": 8, "card": "t4"}
    bad = {"id": "two", "model": TINY, "batch": 1, "block": 8}
    file.write_text(f"{json.dumps(job)}\n{json.dumps(bad)}\n")
    return file


def test_a_file_of_jobs_is_rehearsed_into_records_that_validate_reads(
    jobs, tmp_path, monkeypatch, capsys
):
    measured = {"peak_requested": 5, "peak_allocated": 512, "peak_reserved": 2**21}

    def rehearsed(job, *, gpu, **_options):
        return JobRehearsal(job, gpu.name, {"torch": "2.11.0"}, measured, ())

    monkeypatch.setattr(rehearse_command, "rehearse_job", rehearsed)
    out = tmp_path / "records.jsonl"
    assert main(["rehearse", "--jobs", str(jobs), "-o", str(out)]) == 2  # the other has no card
    assert "two: error: name the GPU" in capsys.readouterr().err
    assert main(["rehearse", "--jobs", str(jobs), "--gpu", "11.69GiB", "-o", str(out)]) == 0
    records = read_records(out)
    assert [(r["id"], r["source"]) for r in records] == [
        (i, "virtual") for i in ("one", *("one", "two"))
    ]
    assert records[0]["versions"] == {"torch": "2.11.0"}
    assert all(check.problem is None for check in validate(records))


def test_measured_jobs_go_to_stdout_a_line_each(jobs, monkeypatch, capsys):
    facts = {"peak_requested": 5, "peak_allocated": 512, "peak_reserved": 2**21}

    def measured(job):
        if job["id"] == "two":
            raise VramBudgetError("the job failed: driver")
        return {**job, "measured": facts, "card": "Tesla T4", "source": "real"}

    monkeypatch.setattr(measure_command, "measure_job", measured)
    assert main(["measure", "--jobs", str(jobs)]) == 2
    out, err = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.splitlines()] == ["one"]
    assert "512 B allocated" in err
    assert "the job failed: driver" in err


def test_records_that_cannot_be_written_are_an_error(jobs, monkeypatch, tmp_path, capsys):
    facts = {"oom": "CUDA out of memory."}
    monkeypatch.setattr(
        measure_command, "measure_job", lambda job: {**job, "measured": facts, "card": "t4"}
    )
    assert main(["measure", "--jobs", str(jobs), "-o", str(tmp_path)]) == 2
    assert "cannot write the record" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["jobs.jsonl"]
