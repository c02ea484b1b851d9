"""What the explanation of an out-of-memory message says, from the card's arithmetic to the tensor.

The crash below is nanoGPT's GPT-2 124M, batch 64, block 1024, bf16 autocast, compiled, in the
evaluation loop on a 12 GB card: the numbers that were reported, in PyTorch's wording.
"""

import io
import itertools
import json
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.oom.explain import explain, phase_of, render_explanation
from vrambudget.oom.gpu_ledger import GpuLedger
from vrambudget.oom.message import Printed, parse_oom
from vrambudget.oom.request_match import Request, match_request, segment_bytes

GIB = 2**30
MIB = 2**20
_LINES = (Path(__file__).parent / "records" / "oom_messages.jsonl").read_text().splitlines()
RECORDS = [json.loads(line) for line in _LINES]

CRASH = """\
Traceback (most recent call last):
  File "train.py", line 264, in <module>
    losses = estimate_loss()
  File "train.py", line 224, in estimate_loss
    logits, loss = model(X, Y)
  File "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1779, in _call_impl
    return forward_call(*args, **kwargs)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total capacity \
of 11.69 GiB of which 2.68 GiB is free. Including non-PyTorch memory, this process has 7.04 GiB \
memory in use. Of the allocated memory 6.78 GiB is allocated by PyTorch
"""
LOGITS = Request(64 * 1024 * 50304 * 2, "logits as bf16, 64·1024 x 50304", "evaluation forward")
LOSS_COPY = Request(64 * 1024 * 50304 * 4, "the loss's float32 logits, 64·1024 x 50304", "loss")
HIDDEN = Request(64 * 1024 * 768 * 2, "hidden states as bf16", "evaluation forward")
WEIGHTS = 124_373_760 * 4  # 50304·768 + 1024·768 + 12·(12·768² + 2·768) + 768, without biases


def of(name):
    record = next(r for r in RECORDS if r["source"].endswith(name))
    return explain(parse_oom(record["text"]))


def titles(explanation):
    return [finding.title for finding in explanation.findings]


def finding(explanation, words):
    return next(f for f in explanation.findings if words in f.title)


def in_gib(n):
    return f"{n / GIB:.2f}"


def test_the_ledger_of_the_crash_adds_up():
    rows = {row.label: row.bytes for row in explain(parse_oom(CRASH)).ledger}
    # 11.69 = 2.68 + 7.04 + 1.97 and 7.04 = 6.78 + 0.26
    assert {label: in_gib(n) for label, n in rows.items()} == {
        "the GPU": "11.69",
        "free": "2.68",
        "this process": "7.04",
        "tensors (allocated by PyTorch)": "6.78",
        "CUDA context, libraries and cache": "0.26",
        "other processes": "1.97",
    }


def test_the_crash_is_explained_completely_with_its_job():
    explanation = explain(parse_oom(CRASH), [HIDDEN, LOSS_COPY, LOGITS], resident_bytes=WEIGHTS)
    assert explanation.phase == "evaluation"
    assert (explanation.where.line, explanation.where.function) == (224, "estimate_loss")
    assert titles(explanation) == [
        "The request: logits as bf16, 64·1024 x 50304 (evaluation forward)",
        "The last iteration's result is still held",
        "Too big for what the GPU had left",
        "Other processes use this GPU",
        "Later the job would request more than the whole GPU",
    ]
    asked, held, _, others, later = explanation.findings
    assert asked.bytes == 6_593_445_888
    assert "can hold 1 more" in held.text  # 6.78 - 0.46 GiB = 6.32, 6.14 GiB each
    assert in_gib(others.bytes) == "1.97"
    assert in_gib(later.bytes) == "12.28"
    assert "del logits" in explanation.next_steps[0]


def test_without_a_job_the_held_result_is_only_a_sign():
    explanation = explain(parse_oom(CRASH))
    assert titles(explanation)[0] == "A second one may still be held"
    assert "the evaluation loop" in explanation.findings[0].text


def test_with_enough_in_use_otherwise_no_second_copy_is_claimed():
    explanation = explain(parse_oom(CRASH), [LOGITS], resident_bytes=WEIGHTS + GIB)
    assert not [title for title in titles(explanation) if "still" in title]


@pytest.mark.parametrize(
    ("requested", "segment"),
    [
        pytest.param(1, 2 * MIB, id="the smallest"),
        pytest.param(MIB, 2 * MIB, id="1 MiB is small"),
        pytest.param(MIB + 1, 20 * MIB, id="just above"),
        pytest.param(10 * MIB - 512, 20 * MIB, id="just below 10 MiB"),
        pytest.param(10 * MIB - 511, 10 * MIB, id="512 bytes at a time it is 10 MiB"),
        pytest.param(10 * MIB + 5, 12 * MIB, id="rounded to 2 MiB"),
        pytest.param(6_593_445_888, 6_593_445_888, id="the logits are 3144 times 2 MiB"),
    ],
)
def test_the_message_names_the_segment(requested, segment):
    assert segment_bytes(requested) == segment


def test_requests_are_matched_exactly_or_by_their_segment():
    small = Request(3 * MIB, "a", "forward")
    exact = Request(20 * MIB, "b", "forward")
    (first, second) = match_request(Printed.read("20.00", "MiB"), [small, exact, LOGITS])
    assert (first.request, first.how) == (exact, "exact")
    assert (second.request, second.how) == (small, "rounded")
    odd = Request(100 * MIB + 5, "c", "forward")  # prints as 102.00 MiB
    assert [m.how for m in match_request(Printed.read("102.00", "MiB"), [odd])] == ["rounded"]
    assert match_request(Printed.read("104.00", "MiB"), [odd]) == ()


def test_two_tensors_of_one_size_are_both_named():
    fp32 = Request(32 * 1024 * 50304 * 4, "logits as fp32, 32·1024 x 50304", "forward")
    named = explain(parse_oom(CRASH), [LOGITS, fp32]).findings[0]
    assert "logits as bf16" in named.title
    assert "logits as fp32, 32·1024 x 50304 (forward)" in named.text


@pytest.mark.parametrize(
    ("source", "first"),
    [
        pytest.param("issues/35901", "Fragmentation", id="11.47 GiB cached, 10.84 asked for"),
        pytest.param(
            "issues/152135", "Fragmentation", id="3.87 GiB unallocated, 250 MiB asked for"
        ),
        pytest.param("issues/316", "Fragmentation", id="5.18 GiB cached, 1.93 asked for"),
        pytest.param("issues/3214", "The GPU is full", id="0.07 GiB would be left"),
        pytest.param("trl/issues/5750", "Other processes", id="10.47 GiB of others"),
        pytest.param("issues/88081", "Much of the GPU", id="22.47 GiB not PyTorch's"),
        pytest.param("issues/4", "Too big", id="0.69 GiB short when packed"),
        pytest.param("issues/481", "Too big", id="128 GiB asked for"),
        pytest.param("issues/2118", "A limit that the program set", id="1.05 GiB allowed"),
        pytest.param("NetLLM/issues/11", "More was already in use", id="22 GiB on an 8 GiB card"),
        pytest.param("issues/9529", "The GPU had enough", id="7 GiB free, 432 MiB asked for"),
        pytest.param("issues/1083", "The driver ran out", id="no numbers"),
    ],
)
def test_the_cause_comes_first(source, first):
    assert titles(of(source))[0].startswith(first)


def test_a_process_in_a_container_is_recognised_among_the_others():
    assert "'Process 22056' is most likely this process itself" in titles(of("trl/issues/5750"))
    others = finding(of("trl/issues/5750"), "Other processes")
    assert "22056" not in others.text
    assert "process 22047: 9.17 GiB" in others.text
    assert "would have fit" in others.text


def test_memory_outside_the_allocator_and_in_graphs_is_told():
    explanation = of("issues/42")
    # 61.46 - 22.97 - 37.00 GiB
    assert in_gib(finding(explanation, "outside PyTorch's allocator").bytes) == "1.49"
    assert in_gib(finding(explanation, "CUDA graphs").bytes) == "2.14"


def test_drivers_that_do_not_know_the_process_are_not_believed():
    (zero,) = parse_oom(next(r for r in RECORDS if "sagemaker" in r["source"])["text"])
    assert zero.this_process.bytes == 0
    assert GpuLedger.of(zero).this_process is None
    assert GpuLedger.of(zero).unnamed is not None


def parts_of(rows, i):
    depth = rows[i].depth
    below = itertools.takewhile(lambda row: row.depth > depth, rows[i + 1 :])
    return [row.bytes for row in below if row.depth == depth + 1]


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: "/".join(r["source"].split("/")[-3:]))
def test_every_ledger_adds_up_and_every_explanation_fits_80_columns(record):
    explanation = explain(parse_oom(record["text"]))
    assert explanation.findings
    assert explanation.next_steps
    assert max(map(len, render_explanation(explanation).splitlines())) <= 80
    for i, row in enumerate(explanation.ledger):
        parts = parts_of(explanation.ledger, i)
        if len(parts) > 1 and not GpuLedger.of(explanation.message).spilled:
            assert sum(parts) == row.bytes


def growing_log(sizes):
    lines = [f"iter {i}: loss 3.1, allocated {size} GiB" for i, size in enumerate(sizes)]
    return "\n".join([*lines, CRASH])


def test_memory_that_grows_over_the_log_is_a_leak():
    explanation = explain(parse_oom(growing_log([1.5, 3.0, 4.5, 6.0])))
    leak = finding(explanation, "grows")
    assert in_gib(leak.bytes) == "5.28"  # 6.78 - 1.50
    assert "loss.item()" in leak.step
    assert "at step 3" in finding(explanation, "did not fail at once").title


@pytest.mark.parametrize("sizes", [[6.0], [3.0, 6.0, 3.0], [7.5, 6.9]], ids=str)
def test_memory_that_goes_up_and_down_is_not(sizes):
    assert not [t for t in titles(explain(parse_oom(growing_log(sizes)))) if "grows" in t]


def test_a_leak_shows_in_repeated_messages_too():
    log = "".join(CRASH.replace("6.78 GiB", f"{size} GiB") for size in ("6.18", "6.48", "6.78"))
    explanation = explain(parse_oom(log))
    assert in_gib(finding(explanation, "grows").bytes) == "0.60"
    assert "3 messages" in render_explanation(explanation)


@pytest.mark.parametrize(
    ("function", "code", "phase"),
    [
        ("main", "loss.backward()", "backward"),
        ("train", "optimizer.step()", "optimizer step"),
        ("load", "AutoModel.from_pretrained(name)", "loading"),
        ("eval_step", "out = model(x)", "evaluation"),
        ("retrieval", "out = model(x)", None),
    ],
)
def test_the_traceback_tells_the_phase(function, code, phase):
    text = f'  File "run.py", line 3, in {function}\n    {code}\nRuntimeError: CUDA out of memory'
    assert phase_of(parse_oom(text)[0].frames) == phase


def run_command(*argv):
    return main(["explain", *argv])


def test_the_command_explains_a_file(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_text(CRASH)
    assert run_command(str(log)) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Out of memory on GPU 0 during evaluation: 6.14 GiB asked for, 2.68 GiB free."
    )
    assert "Next steps" in out


def test_the_command_reads_powershells_utf_16(tmp_path, capsys):
    log = tmp_path / "train.log"
    log.write_bytes(CRASH.encode("utf-16"))
    assert run_command(str(log)) == 0
    assert "6.14 GiB asked for" in capsys.readouterr().out


def test_the_command_gives_json_in_bytes_from_stdin(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(CRASH.encode())))
    assert run_command("-", "--format", "json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["message"]["asked"]["bytes"] == 6592774799
    assert record["findings"][0]["title"] == "A second one may still be held"
    assert record["next_steps"]


@pytest.mark.parametrize("text", ["", "loss 3.2\n", None], ids=["empty", "no message", "no file"])
def test_the_command_refuses_nonsense_with_a_tip(tmp_path, capsys, text):
    log = tmp_path / "train.log"
    if text is not None:
        log.write_text(text)
    assert run_command(str(log)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "tip: " in captured.err
    assert str(log) in captured.err


def test_the_last_message_of_a_log_of_many_is_read():
    many = "CUDA out of memory\n" * 2**19
    found = parse_oom(f"{many}{CRASH}")
    assert found[-1].asked == parse_oom(CRASH)[-1].asked
    assert found[-1].line == parse_oom(CRASH)[-1].line + 2**19


def test_no_messages_is_an_error():
    with pytest.raises(VramBudgetError, match="no message"):
        explain([])


@pytest.mark.parametrize("unit", ["a\r", "x", "memory\n"])
def test_a_log_of_many_lines_is_read_around_its_message(unit):
    noise = unit * (2**23 // len(unit))
    (found,) = parse_oom(f"{noise}\n{CRASH}\n{noise}")
    (alone,) = parse_oom(CRASH)
    assert found.frames == alone.frames
    before = f"{noise}\n".replace("\r\n", "\n").replace("\r", "\n")
    assert found.line == alone.line + before.count("\n")
