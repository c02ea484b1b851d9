"""`vrambudget measure --suite`: jobs that fit, shown at once, kept one by one, not run twice."""

import json
from pathlib import Path

import pytest
from virtual import VIRTUAL_GPU, run

from vrambudget.cli import main, measure_suite
from vrambudget.config.gpus import find_gpu
from vrambudget.config.record import gpu_of_record, read_records
from vrambudget.errors import VramBudgetError
from vrambudget.measure import record as record_module
from vrambudget.measure import suite
from vrambudget.measure.record import as_record, found_on, record_of
from vrambudget.measure.suite import QUICK, SuiteRow, rows_of, sized
from vrambudget.scenario import resolve
from vrambudget.validate import validate

VERSIONS = {"torch": "2.11.0+cu130", "transformers": "5.17.0", "cuda": "13.0"}
MACHINE = {
    "card": "Tesla T4",
    "capacity_bytes": find_gpu("t4").capacity_bytes,
    "outside_bytes": 137_363_456,
    "compute_capability": [7, 5],
    "multiprocessors": 40,
    "versions": VERSIONS,
}
TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 100}


# ---- what is in it ------------------------------------------------------------------------------


def test_the_quick_suite_is_about_25_jobs_of_all_kinds():
    assert 24 <= len(QUICK) <= 28
    fields = [{"optimizer": "adamw", "loop": "plain", "mode": "train", **r.fields} for r in QUICK]
    assert {f["loop"] for f in fields} >= {"plain", "trainer", "accelerate"}
    assert {f["mode"] for f in fields} == {"train", "eval", "generate", "forward"}
    assert len({f["optimizer"] for f in fields}) >= 6
    assert {f.get("precision") for f in fields} >= {"amp", "half", "fp32"}
    assert any(f.get("quant") for f in fields)
    assert any(f.get("eval_batches") for f in fields)
    assert len({resolve(r.models[0]).config.model_type for r in QUICK}) >= 12
    assert sum(row.is_too_large for row in QUICK) == 1


def test_the_full_suite_has_the_quick_one_and_every_method():
    names = [row.id for row in rows_of("full")]
    assert names[: len(QUICK)] == [row.id for row in QUICK]
    assert len(names) == len(set(names)) > 150


@pytest.mark.sampled(5)
@pytest.mark.parametrize("card", ["rtx-2060", "t4", "rtx-4090", "h100-80gb"])
def test_a_row_leaves_a_tenth_of_any_gpu_free_and_one_does_not_fit(card):
    gpu = find_gpu(card)
    jobs = [job for row in QUICK if (job := sized(row, gpu, VERSIONS))]
    assert len(jobs) >= 22
    checks = {job["id"]: job for job in jobs}
    assert len(checks) == len(jobs)
    narrow = "bf16" if gpu.compute_capability >= (8, 0) else "fp16"
    assert {job["precision"] for job in jobs} == {"fp32", narrow, f"amp-{narrow}"}


def test_a_row_takes_the_largest_of_its_sizes_that_fits():
    row = SuiteRow("x", ("gpt2-xl", "gpt2"), {"precision": "fp32", "block": 512}, (64, 8, 1))
    large, small = (sized(row, find_gpu(card), VERSIONS) for card in ("h100-80gb", "rtx-2060"))
    assert large["id"].startswith("x gpt2-xl b8")
    assert small["id"] == "x gpt2 b1 t512"
    assert sized(row, find_gpu("1GiB"), VERSIONS) is None


# ---- running it ---------------------------------------------------------------------------------


class Card:
    """A GPU that answers with the estimate; at `stops` it is interrupted."""

    def __init__(self, *, stops: int | None = None) -> None:
        self.ran: list[str] = []
        self.stops = stops

    def measure(self, job, *, machine):
        if len(self.ran) == self.stops:
            raise KeyboardInterrupt
        self.ran.append(job["id"])
        measured = {"oom": "CUDA out of memory."} if "large" in job["id"] else {"peak_allocated": 1}
        if "bad" in job["id"]:
            raise VramBudgetError("the job failed: it said nothing")
        record = as_record(job, measured=measured, **found_on(machine))
        (check,) = validate([record])
        if "oom" not in measured:
            peaks = {f"peak_{k}": n for k, n in check.predicted.items() if k != "trajectory"}
            record["measured"] = peaks
        return record


@pytest.fixture
def suite_on(monkeypatch):
    rows = (
        SuiteRow("a", ("gpt2",), {"precision": "fp32", "block": 64}, (2, 1)),
        SuiteRow("b", ("gpt2",), {"precision": "amp", "block": 64}, (2, 1), ("no-such-package",)),
        SuiteRow("c", ("gpt2",), {"precision": "half", "block": 32, "optimizer": "sgd"}, (2, 1)),
        SuiteRow("too large", ("gpt2",), {"precision": "fp32", "block": 1024}, is_too_large=True),
    )

    def on(card, extra=()):
        monkeypatch.setattr(suite, "QUICK", (*rows, *extra))
        monkeypatch.setattr(measure_suite, "look", lambda: MACHINE)
        monkeypatch.setattr(measure_suite, "measure_job", card.measure)

    return on


def test_a_suite_shows_each_job_and_keeps_its_record(suite_on, tmp_path, capsys):
    file = tmp_path / "t4.jsonl"
    suite_on(card := Card())
    assert main(["measure", "--suite", "quick", "-o", str(file)]) == 0
    out, err = capsys.readouterr()
    assert [r["id"] for r in read_records(file)] == card.ran
    assert all(r["source"] == "real" and r["versions"] == VERSIONS for r in read_records(file))
    lines = {line.split("  ")[0]: line for line in out.splitlines()}
    assert lines["a gpt2 b2 t64"].count("exact") == 2
    assert "out of memory, foreseen" in out
    assert "3 jobs: 2 equal to the byte; 1 out of memory, 1 of them foreseen; 1 not measured" in out
    assert "b gpt2: not measured: needs no-such-package" in err


def test_an_interrupted_suite_goes_on_where_it_was(suite_on, tmp_path, capsys):
    file = tmp_path / "t4.jsonl"
    suite_on(Card(stops=1))
    assert main(["measure", "--suite", "quick", "-o", str(file)]) == 130
    assert len(read_records(file)) == 1
    suite_on(rest := Card())
    assert main(["measure", "--suite", "quick", "-o", str(file)]) == 0
    assert [name.split()[0] for name in rest.ran] == ["c", "too"]
    assert "3 jobs: 2 equal" in capsys.readouterr().out
    assert len(read_records(file)) == 3


class Clock:
    """Time that passes when a job is measured."""

    def __init__(self, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds

    def monotonic(self) -> float:
        return self.now

    def on(self, card: Card) -> Card:
        measure = card.measure

        def slowly(job, *, machine):
            self.now += self.seconds
            return measure(job, machine=machine)

        card.measure = slowly
        return card


@pytest.mark.parametrize(
    "case",
    [
        pytest.param((199, None, 3), id="quick ends within ten minutes"),
        pytest.param((250, None, 2), id="a third job would end later"),
        pytest.param((250, 60, 3), id="an hour is enough"),
        pytest.param((40, 1, 1), id="a minute is enough for one"),
    ],
)
def test_a_suite_ends_in_time(suite_on, tmp_path, monkeypatch, case):
    seconds, minutes, ran = case
    clock = Clock(seconds)
    monkeypatch.setattr(measure_suite, "time", clock)
    suite_on(card := clock.on(Card()))
    command = ["measure", "--suite", "quick", "-o", str(tmp_path / "x.jsonl")]
    command += [] if minutes is None else ["--minutes", str(minutes)]
    assert main(command) == 0
    assert len(card.ran) == ran
    assert clock.now <= 60 * (minutes or 10)


def test_a_suite_that_ran_out_of_time_says_so_and_goes_on(suite_on, tmp_path, capsys, monkeypatch):
    clock = Clock(250)
    monkeypatch.setattr(measure_suite, "time", clock)
    suite_on(card := clock.on(Card()))
    command = ["measure", "--suite", "quick", "-o", str(tmp_path / "x.jsonl")]
    main(command)
    assert "1 left as time was up: the same command goes on" in capsys.readouterr().out
    main(command)
    assert "left" not in capsys.readouterr().out
    assert len(card.ran) == 3


def test_records_of_another_gpu_or_version_are_no_reason_not_to_run(suite_on, tmp_path):
    file = tmp_path / "t4.jsonl"
    suite_on(Card())
    main(["measure", "--suite", "quick", "-o", str(file)])
    others = [{**r, "versions": {**VERSIONS, "torch": "2.8.0"}} for r in read_records(file)]
    file.write_text("".join(f"{json.dumps(r)}\n" for r in others))
    suite_on(again := Card())
    main(["measure", "--suite", "quick", "-o", str(file)])
    assert len(again.ran) == 3


def test_a_job_that_fails_is_named_and_hides_no_other(suite_on, tmp_path, capsys):
    bad = SuiteRow("bad", ("gpt2",), {"precision": "fp32", "block": 16}, (1,))
    suite_on(Card(), (bad,))
    assert main(["measure", "--suite", "quick", "-o", str(tmp_path / "x.jsonl")]) == 2
    out, err = capsys.readouterr()
    assert "bad gpt2: error: the job failed" in err
    assert "1 not measured, 1 failed" in out


def test_a_gpu_that_the_table_does_not_have_says_itself_what_it_is():
    unknown = {**MACHINE, "card": "NVIDIA RTX 9999", "compute_capability": [12, 0]}
    gpu = gpu_of_record(unknown)
    assert (gpu.name, gpu.capacity_bytes, gpu.multiprocessors) == (
        "NVIDIA RTX 9999",
        MACHINE["capacity_bytes"],
        40,
    )
    assert gpu.compute_capability == (12, 0)
    job = record_of(resolve(TINY, gpu=gpu, batch=1, block=8, precision="fp32"))
    record = as_record(job, measured={"peak_allocated": 7}, **found_on(unknown))
    (check,) = validate([record])
    assert check.problem is None
    with pytest.raises(VramBudgetError, match="is not a known GPU"):
        gpu_of_record({"card": "NVIDIA RTX 9999", "measured": {}})


@pytest.mark.parametrize(
    "words",
    [
        ["--suite", "quick", "gpt2"],
        ["--suite", "quick", "--context"],
        ["--suite", "quick", "--batch", "3"],
        ["--context", "--lora-rank", "3"],
        ["gpt2", "--minutes", "3"],
        ["--suite", "quick", "--minutes", "0"],
    ],
)
def test_what_a_suite_cannot_be_combined_with_is_said(words, capsys):
    assert main(["measure", *words]) == 2
    err = capsys.readouterr().err
    told = ("name either a model", "cannot be combined with --suite", "--minutes is of a --suite")
    assert any(words in err for words in told)


# ---- the context --------------------------------------------------------------------------------


def test_the_context_is_told_step_by_step(monkeypatch, tmp_path, capsys):
    steps = {
        "start": {"mem_get_info": 110_100_480, "nvml": None},
        "product": {"mem_get_info": 137_363_456, "nvml": 137_363_456},
    }

    def answered(command):
        Path(command[-1]).write_text(json.dumps(steps))
        return record_module.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(record_module, "look", lambda _: MACHINE)
    monkeypatch.setattr(record_module, "_run", answered)
    assert main(["measure", "--context", "-o", str(tmp_path / "c.jsonl")]) == 0
    assert "start: 105.00 MiB by mem_get_info, unknown by nvml" in capsys.readouterr().err
    record = json.loads((tmp_path / "c.jsonl").read_text())
    assert (record["context"], record["card"]) == (steps, "Tesla T4")


@VIRTUAL_GPU[0]
@VIRTUAL_GPU[1]
@pytest.mark.parametrize("words", [["--context"], ["gpt2", "--batch", "1", "--block", "32"]])
def test_what_a_virtual_gpu_answers_is_no_real_record(words, tmp_path):
    file = tmp_path / "found.jsonl"
    seen = run("-m", "vrambudget", "measure", *words, "-o", str(file), gpu="t4")
    assert seen.exit_code == 0
    record = json.loads(file.read_text())
    assert (record["source"], record["card"]) == ("virtual", "Tesla T4")
