"""The planner: its answers are the command line's, its folder holds all, its server only that."""

import io
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

import vrambudget
from vrambudget.cli.job_options import job_fields
from vrambudget.cli.parser import parse
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError
from vrambudget.planner import site
from vrambudget.planner.answers import answer, choices
from vrambudget.planner.commands import command_line
from vrambudget.planner.server import serving
from vrambudget.report.plan import filled, held
from vrambudget.report.tools.script import training_arguments
from vrambudget.report.tools.words import OPTIMIZERS

SMALL = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 2, "vocab_size": 100}
DRAWN = random.Random(1)  # noqa: S311 - the same jobs every time


def asked(kind, **question):
    return json.loads(answer(json.dumps({"ask": kind, **question})))


def drawn_fields():
    rng = DRAWN
    fields = {"batch": rng.randrange(1, 65), "block": rng.choice([16, 64, 100])}
    choices = {
        "precision": ["fp32", "bf16", "amp-fp16"],
        "optimizer": ["sgd", "adafactor", "adamw-8bit"],
        "checkpointing": ["full"],
        "attention": ["eager"],
        "mode": ["eval"],
        "keep_outputs": [False],
        "expandable_segments": [True],
        "lora_rank": [4],
        "grad_accum": [3],
        "dropout": [0.25],
    }
    for name in rng.sample(sorted(choices), 4):
        fields[name] = rng.choice(choices[name])
    return fields


def test_a_plan_has_recipes_that_fit_and_keeps_what_is_not_searched():
    fields = {"block": 100, "batch": 4096, "precision": "fp32", "dropout": 0.25}
    found = asked("plan", model=SMALL, gpu="4GB", fields=fields)
    assert len(found["recipes"]) > 1
    for recipe in found["recipes"]:
        assert {"block": 100, "dropout": 0.25}.items() <= recipe["fields"].items()
        again = asked("estimate", model=SMALL, gpu="4GB", fields=recipe["fields"])
        assert again["fits"] is True
    none = asked("plan", model="llama-3.1-70b", gpu="4GB", fields={})
    assert none["recipes"] == []
    assert none["sentence"].startswith("does not fit on one NVIDIA")
    assert "no GPU" in asked("plan", model=SMALL, gpu="", fields={})["error"]


def test_where_nothing_fits_as_asked_a_plan_has_what_the_gpu_trains_with_less():
    model = {"model_type": "llama", "hidden_size": 256, "intermediate_size": 512}
    model |= {"num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 50000}
    found = asked("plan", model=model, gpu="1GiB", fields={"block": 2048})
    printed = str(vrambudget.plan(model, gpu="1GiB", block=2048))
    assert found["sentence"] == printed.splitlines()[0]
    assert found["recipes"][0]["fields"]["loop"] == "sft"
    assert found["recipes"][1]["block"] == found["recipes"][1]["fields"]["block"] == 512
    again = asked("estimate", model=model, gpu="1GiB", fields=found["recipes"][0]["fields"])
    assert again["fits"] is True


def test_a_recipe_that_fills_the_gpu_leaves_nothing_in_the_browser_and_in_the_terminal():
    full, roomy, ranks = (
        SimpleNamespace(gpus=gpus, peak_bytes=12, left_bytes=left)
        for gpus, left in ((1, -2), (1, 3), (2, -2))
    )
    assert [held(each) for each in (full, roomy, ranks)] == [(10, 0), (12, 3), (12, -2)]
    assert [len(filled([each])) for each in (full, roomy)] == [1, 0]


def test_the_ledger_comes_with_the_verdict_and_the_timeline_after_it():
    question = {"model": SMALL, "gpu": "12GB", "fields": {"batch": 2}}
    body = asked("estimate", **question)["body"]
    assert "peak reserved" in body
    assert '<div class="plotted"></div>' in body
    assert "<svg" in asked("drawing", **question)["plotted"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", range(50))
def test_an_answer_has_the_bytes_of_the_command_that_it_shows(number):
    del number
    fields = drawn_fields()
    model = DRAWN.choice([SMALL, "distilbert-base-uncased"])
    found = asked("estimate", model=model, gpu="12GB", fields=fields)
    if "error" in found:
        with pytest.raises(VramBudgetError, match=r".") as caught:
            vrambudget.estimate(model, gpu="12GB", **fields)
        assert found["error"] == caught.value.message
        return
    budget = vrambudget.estimate(model, gpu="12GB", **fields)
    assert found["peak"]["reserved_bytes"] == budget.peak.reserved_bytes
    assert found["peak"]["allocated_bytes"] == budget.peak.allocated_bytes
    words = shlex.split(found["commands"]["command line"])
    assert job_fields(parse(words[1:])) == fields
    drawing = asked("drawing", model=model, gpu="12GB", fields=fields)
    peak = drawing["curve"]["columns"][drawing["curve"]["peak"]]
    assert peak[1] == budget.peak.allocated_bytes


def test_near_the_gpu_s_limit_the_first_steps_answer_and_settled_memory_after_them():
    question = {"model": "gpt2", "gpu": "10GB", "fields": {"batch": 8, "block": 512}}
    first, settled = (asked(kind, **question) for kind in ("first", "estimate"))
    assert first["is_steady"] is False
    assert "left after 3 steps; counting on" in first["sentence"]
    assert first["peak"]["reserved_bytes"] < settled["peak"]["reserved_bytes"]  # from step 8 on
    budget = vrambudget.estimate("gpt2", gpu="10GB", **question["fields"])
    assert settled["peak"]["reserved_bytes"] == budget.peak.reserved_bytes


@pytest.mark.parametrize("batch", [1, 64])
def test_far_from_the_limit_the_first_answer_is_the_last(batch):
    question = {"model": SMALL, "gpu": "12GB", "fields": {"batch": batch}}
    first = asked("first", **question)
    assert first.pop("is_steady")
    assert first == asked("estimate", **question)


def test_the_largest_batch_and_the_advice_are_those_of_the_library():
    question = {"model": "gpt2", "gpu": "12GB", "fields": {"block": 512, "batch": 64}}
    fits = vrambudget.max_batch("gpt2", gpu="12GB", block=512)
    assert asked("largest", **question) == {"batch": fits}
    first = vrambudget.advise("gpt2", gpu="12GB", block=512, batch=64).options[0]
    assert first.options in asked("advice", **question)["body"]


def test_a_pasted_message_is_explained():
    log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. <b>"
    assert "2.00 GiB" in asked("explain", log=log)["body"]
    assert "error" in asked("explain", log="all is well")


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"model": "gtp2"}, "there is no model 'gtp2'"),
        ({"model": {"model_type": 5}}, "model_type"),
        ({"gpu": "no such card"}, "no such card"),
        ({"fields": {"batch": 0}}, "batch is 0"),
        ({"fields": {"bacth": 1}}, "bacth is not known"),
        ({"fields": {"batch": "8"}}, "batch is '8'"),
    ],
)
def test_what_makes_no_sense_is_an_answer_too(question, words):
    found = asked("estimate", **{"model": "gpt2", "gpu": "12GB", "fields": {}, **question})
    assert words in found["error"]


def test_every_field_of_a_job_can_be_chosen():
    groups = choices()["groups"]
    fields = {field["name"]: field for group in groups for field in group["fields"]}
    assert set(fields) == set(Job.model_fields)
    assert fields["batch"]["kind"] == "whole"
    assert fields["clip"]["kind"] == "number"
    assert fields["keep_outputs"]["kind"] == "switch"
    assert fields["lora_targets"]["kind"] == "text"
    assert "bf16" in fields["precision"]["choices"]


def test_a_switch_that_stays_as_it_is_is_no_word_of_the_command():
    assert command_line("gpt2", "", {"keep_outputs": True}) == "vrambudget gpt2"
    assert command_line("gpt2", "", {"double_quant": False}) == "vrambudget gpt2 --no-double-quant"


def test_training_arguments_say_the_job_in_transformers_words():
    fused = {"optimizer": "adamw", "optimizer_impl": "fused", "precision": "amp-bf16"}
    text = training_arguments(Job(batch=4, grad_accum=8, checkpointing="full", clip=1.0, **fused))
    for line in (
        "per_device_train_batch_size=4,",
        "gradient_accumulation_steps=8,",
        "bf16=True,",
        "gradient_checkpointing=True,",
        'optim="adamw_torch_fused",',
        "max_grad_norm=1.0,",
    ):
        assert f"    {line}\n" in text


def test_training_arguments_are_transformers_own():
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    from transformers.training_args import OptimizerNames  # noqa: PLC0415 - may be missing

    assert set(OPTIMIZERS.values()) <= {name.value for name in OptimizerNames}
    known = set(transformers.TrainingArguments.__dataclass_fields__)
    text = training_arguments(Job(grad_accum=2, checkpointing="full"))
    names = {line.split("=")[0].strip() for line in text.splitlines() if "=" in line}
    assert {name for name in names if not name.startswith("#")} <= known


@pytest.fixture
def pyodide(tmp_path):
    """Return a folder like Pyodide's."""
    folder = tmp_path / "pyodide"
    folder.mkdir()
    for name in site._RUNTIME:  # noqa: SLF001
        (folder / name).write_bytes(b"runtime")
    return folder


def test_the_folder_holds_all_that_the_page_loads(tmp_path, pyodide):
    site.write_site(tmp_path / "site", pyodide=pyodide)
    text = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    settings = json.loads(text.partition('id="settings">')[2].partition("</script>")[0])
    assert settings["pyodide"] == "pyodide/"
    for name in (settings["packages"], "planner.css", "planner.js", "worker.js"):
        assert (tmp_path / "site" / name).stat().st_size > 0
    assert json.loads((tmp_path / "site" / "choices.json").read_text()) == choices()
    assert (tmp_path / "site" / "pyodide" / "pyodide.mjs").read_bytes() == b"runtime"
    assert "http:" not in text
    assert "https:" not in text


def test_the_packages_are_pure_and_complete():
    with zipfile.ZipFile(io.BytesIO(site.packages())) as archive:
        names = set(archive.namelist())
    assert {"vrambudget/__init__.py", "vrambudget/model_cards/gpt2.toml"} <= names
    assert {"vrambudget/planner/answers.py", "vrambudget/report/page.js"} <= names
    assert {name.partition("/")[0] for name in names} == {"vrambudget"}
    assert not [name for name in names if name.endswith((".so", ".pyd", ".pyc"))]
    assert site.packages() == site.packages()


def test_without_a_runtime_the_page_names_its_public_address(tmp_path):
    site.write_site(tmp_path / "site")
    assert site.PUBLIC in (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert not (tmp_path / "site" / "pyodide").exists()


def test_a_folder_without_what_it_should_hold_is_named(tmp_path, run):
    empty = tmp_path / "empty"
    empty.mkdir()
    code, out, err = run("page", "-o", str(tmp_path / "site"), f"--pyodide={empty}")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert f"in   {empty}" in err


@pytest.fixture
def run(capsys):
    from vrambudget.cli import main  # noqa: PLC0415

    def run(*words):
        code = main(words)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def served(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("secret", encoding="utf-8")
    (folder / "index.html").write_text("<p>planner</p>" * 5000, encoding="utf-8")
    (folder / "pyodide.mjs").write_text("export {}", encoding="utf-8")
    with serving(Path(folder)) as address:
        yield address


def fetched(address):
    with urllib.request.urlopen(address, timeout=20) as response:  # noqa: S310 - ours
        return response.headers["Content-Type"], response.read()


def test_fifty_requests_at_once_are_answered(served):
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(fetched, [f"{served}index.html"] * 50))
    assert answers == [("text/html", b"<p>planner</p>" * 5000)] * 50
    assert fetched(f"{served}pyodide.mjs")[0] == "text/javascript"


def test_only_who_knows_the_path_gets_files_and_only_of_the_folder(served):
    root = served.rsplit("/", 2)[0]
    unknown = [root + path for path in ("/", "/index.html", "/x/index.html")]
    unknown += [served + path for path in ("../secret.txt", "%2e%2e/secret.txt", "missing")]
    for address in unknown:
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            fetched(address)
        caught.value.close()


def raw(address, request):
    """Send bytes; return all that comes back, until the server closes."""
    host, port = address.split("/")[2].split(":")
    with socket.create_connection((host, int(port)), timeout=20) as client:
        client.sendall(request)
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("a%00b", b"400"),
        ("/evil.example", b"404"),
        ("//evil.example/..", b"404"),
        ("folder", b"404"),
        ("%ff%fe", b"404"),
        ("x" * 60_000, b"404"),
        ("?a#b", b"200"),
    ],
    ids=lambda value: value[:12] if isinstance(value, str) else "",
)
def test_no_path_is_a_traceback_or_a_redirect(served, tmp_path, capfd, path, status):
    for name in ("folder", "evil.example"):
        (tmp_path / "site" / name).mkdir()
    token = served.split("/")[3]
    answer = raw(served, f"GET /{token}/{path} HTTP/1.0\r\n\r\n".encode())
    assert answer.split()[1] == status
    assert b"Location" not in answer
    assert capfd.readouterr() == ("", "")


def test_a_client_that_takes_its_time_is_dropped(served, monkeypatch, capfd):
    monkeypatch.setattr("vrambudget.planner.server.PATIENCE_SECONDS", 0.2)
    assert raw(served, b"GET /") == b""
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("number", ["SIGTERM", "SIGHUP"])
def test_a_page_that_is_ended_leaves_no_folder(tmp_path, pyodide, number):
    page = subprocess.Popen(
        [sys.executable, "-m", "vrambudget", "page", f"--pyodide={pyodide}"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
    )
    assert page.stdout is not None
    assert page.stdout.readline().startswith(b"http://127.0.0.1:")
    assert [*tmp_path.glob("vrambudget-*")]
    page.send_signal(getattr(signal, number))
    page.wait()
    page.stdout.close()
    assert not [*tmp_path.glob("vrambudget-*")]
