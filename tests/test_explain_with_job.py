"""With its job, a crash is explained to the tensor, the moment, and what would have avoided it.

CRASH is nanoGPT's GPT-2 124M, batch 64, block 1024, bf16 autocast, compiled, in the evaluation loop
on a 12 GB card: the numbers that were reported. EAGER is what the same job says without
torch.compile; it holds more by then, and asks for another tensor of the same size.
"""

import json
from dataclasses import replace

import pytest

from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.oom.explain import explain
from vrambudget.oom.message import parse_oom
from vrambudget.oom.with_job import explain_with_job
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay_on
from vrambudget.units import format_bytes

GIB = 2**30
TRACE = """\
Traceback (most recent call last):
  File "train.py", line 264, in <module>
    losses = estimate_loss()
  File "train.py", line 224, in estimate_loss
    logits, loss = model(X, Y)
"""
NUMBERS = """\
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity \
of 11.69 GiB of which {free} is free. Including non-PyTorch memory, this process has {used} memory \
in use. Of the allocated memory {allocated} is allocated by PyTorch, and {cached} is reserved by \
PyTorch but unallocated.
"""
CRASH = TRACE + NUMBERS.format(
    asked="6.14 GiB", free="2.68 GiB", used="7.04 GiB", allocated="6.78 GiB", cached="6.00 MiB"
)
EAGER = TRACE + NUMBERS.format(
    asked="6.14 GiB", free="4.20 GiB", used="7.49 GiB", allocated="7.23 GiB", cached="6.00 MiB"
)
NANOGPT = {"batch": 64, "block": 1024}
LOGITS = "logits as bfloat16, 64·1024 x 50304"


def nanogpt(**fields):
    return resolve("nanogpt", gpu="RTX 3060", **NANOGPT, **fields)


def finding(explanation, words):
    return next(f for f in explanation.findings if words in f.title)


def test_the_crash_is_explained_completely():
    explanation = explain_with_job(parse_oom(CRASH), nanogpt(mode="eval"))
    assert [f.title for f in explanation.findings] == [
        f"The request: {LOGITS} (evaluation forward, second iteration)",
        "The last iteration's result is still held",
        "Too big for what the GPU had left",
        "Other processes use this GPU",
        "Later the job would request more than the whole GPU",
        "The job that ran is not quite the one described",
        "What would have avoided it",
        "Training at this batch and block takes far more than the evaluation",
    ]
    asked, held, _, others, _, unlike, avoided, training = explanation.findings
    assert asked.bytes == 64 * 1024 * 50304 * 2
    assert "log-probabilities as bfloat16" in asked.text
    assert "can hold 1 more" in held.text  # 6.78 - 0.46 GiB = 6.32, 6.14 GiB each
    assert f"{others.bytes / GIB:.2f}" == "1.97"
    assert "torch.compile" in unlike.text
    assert "--batch" in avoided.text
    assert "logits as float32, 64·1024 x 50304, 12.28 GiB" in training.text
    assert "del logits" in explanation.next_steps[0]


def test_without_compile_it_is_another_tensor_at_another_moment():
    explanation = explain_with_job(parse_oom(EAGER), nanogpt(mode="eval"))
    titles = [f.title for f in explanation.findings]
    assert titles[0] == (
        "The request: log-probabilities as bfloat16, 64·1024 x 50304 "
        "(evaluation forward, first iteration)"
    )
    assert not [title for title in titles if "still held" in title or "not quite" in title]


def test_what_would_have_avoided_it_fits_in_the_room_that_there_was():
    scenario = nanogpt(mode="eval")
    avoided = finding(explain_with_job(parse_oom(CRASH), scenario), "avoided")
    room = int((2.68 + 6.78) * GIB) + 6 * 2**20
    assert format_bytes(room) in avoided.text
    batch = int(avoided.text.partition("--batch ")[2].split()[0])
    runs = {}
    for n in (batch, batch + 1):
        job = scenario.job.model_copy(update={"batch": n})
        runs[n] = replay_on(simulate(scenario.config, job, scenario.platform).tape, room) is None
    assert runs == {batch: True, batch + 1: False}


def predicted_crash(scenario):
    """Return the message that the job would print on its empty card."""
    room = scenario.gpu.capacity_bytes - scenario.gpu.context_bytes
    full = replay_on(simulate(scenario.config, scenario.job, scenario.platform).tape, room)
    text = NUMBERS.format(
        asked=format_bytes(full.requested_bytes),
        free="1.00 MiB",
        used="11.40 GiB",
        allocated=format_bytes(full.allocated_bytes),
        cached="6.00 MiB",
    )
    return full, text


@pytest.mark.parametrize(
    ("model", "fields"),
    [
        ("gpt2", {"batch": 8, "block": 1024}),
        ("gpt2", {"batch": 12, "block": 512, "precision": "fp32", "attention": "eager"}),
        ("nanogpt", {"batch": 9, "block": 1024}),
    ],
)
def test_a_training_crash_is_traced_to_its_phase_and_iteration(model, fields):
    scenario = resolve(model, gpu="12GB", **fields)
    full, text = predicted_crash(scenario)
    explanation = explain_with_job(parse_oom(text), scenario)
    asked = explanation.findings[0]
    iteration = ("first iteration", "second iteration", "a later iteration")[full.step - 1]
    assert asked.title.startswith("The request: ")
    assert f"training {full.phase.replace('_', ' ')}" in asked.title
    assert iteration in asked.title
    assert not [f for f in explanation.findings if "not quite" in f.title]
    assert "--" in finding(explanation, "What would have avoided it").text


def test_a_job_that_would_have_fitted_is_told_so():
    explanation = explain_with_job(parse_oom(CRASH), replace_batch(nanogpt(mode="eval"), 2))
    assert "would have fit" in explanation.findings[-2].title


def replace_batch(scenario, batch):
    return replace(scenario, job=scenario.job.model_copy(update={"batch": batch}))


def test_a_message_without_numbers_is_explained_as_without_a_job():
    messages = parse_oom("RuntimeError: CUDA error: out of memory")
    assert explain_with_job(messages, nanogpt()) == explain(messages)


def test_no_message_is_refused():
    with pytest.raises(VramBudgetError, match="no message"):
        explain_with_job([], nanogpt())


@pytest.fixture
def run(capsys, tmp_path):
    log = tmp_path / "train.log"
    log.write_text(CRASH)

    def call(*words):
        code = main(["explain", str(log), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_the_command_takes_the_job_and_sees_that_it_evaluated(run):
    words = ["--model", "nanogpt", "--batch", "64", "--block", "1024", "--format", "json"]
    code, out, _ = run(*words)
    assert code == 0
    found = json.loads(out)
    assert found["findings"][0]["title"].endswith("(evaluation forward, second iteration)")
    assert run(*words, "--mode", "eval", "--gpu", "RTX 3060")[1] == out


def test_options_of_a_job_without_its_model_are_refused(run):
    code, out, err = run("--batch", "64")
    assert (code, out) == (2, "")
    assert "a job needs a model" in err
