"""Out-of-memory messages as people posted them, and what a parser must take out of them."""

import json
from pathlib import Path

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.oom.message import Printed, parse_oom

_LINES = (Path(__file__).parent / "records" / "oom_messages.jsonl").read_text().splitlines()
RECORDS = [json.loads(line) for line in _LINES]
SIZES = (
    "asked",
    "capacity",
    "free",
    "allowed",
    "this_process",
    "allocated",
    "private_pools",
    "unallocated",
    "reserved",
)
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total "
    "capacity of 11.69 GiB of which 2.68 GiB is free. Including non-PyTorch memory, this process "
    "has 7.04 GiB memory in use. Of the allocated memory 6.78 GiB is allocated by PyTorch, and "
    "31.50 MiB is reserved by PyTorch but unallocated."
)


def short_name(record):
    return "/".join(record["source"].split("/")[-3:])


def fields(message):
    found = {"error": message.error, "backend": message.backend, "gpu": message.gpu}
    if message.rank is not None:
        found["rank"] = message.rank
    if message.processes:
        found["processes"] = [[use.pid, use.used.bytes] for use in message.processes]
    printed = {name: getattr(message, name) for name in SIZES}
    return found | {f"{name}_bytes": value.bytes for name, value in printed.items() if value}


def brief(frame):
    return frame.line, frame.function, frame.code


@pytest.mark.parametrize("record", RECORDS, ids=short_name)
def test_every_number_of_a_real_message_is_read(record):
    (message,) = parse_oom(record["text"])
    assert fields(message) == record["expected"]


@pytest.mark.parametrize("width", [17, 40, 79])
@pytest.mark.parametrize("record", RECORDS, ids=short_name)
def test_a_terminal_may_wrap_the_message_anywhere(record, width):
    text = record["text"].splitlines()
    wrapped = "\n".join(
        "\n".join(line[i : i + width] for i in range(0, len(line), width)) for line in text
    )
    (message,) = parse_oom(wrapped)
    sizes = {key: value for key, value in record["expected"].items() if key.endswith("_bytes")}
    assert {key: value for key, value in fields(message).items() if key.endswith("_bytes")} == sizes


@pytest.mark.parametrize(
    ("text", "nbytes", "low", "high"),
    [
        # 6.135 to 6.145 times 2**30
        pytest.param(("6.14", "GiB"), 6592774799, 6587406090, 6598143508, id="6.14 GiB"),
        pytest.param(("20.00", "MiB"), 20971520, 20966278, 20976762, id="20.00 MiB"),
        pytest.param(("512", "bytes"), 512, 512, 512, id="bytes are exact"),
    ],
)
def test_a_printed_number_stands_for_all_that_print_alike(text, nbytes, low, high):
    printed = Printed.read(*text)
    assert printed.bytes == nbytes
    assert printed.holds(low)
    assert printed.holds(high)
    assert not printed.holds(low - 2)
    assert not printed.holds(high + 2)


def test_the_logits_of_the_nanogpt_crash_print_as_6_14_gib():
    assert Printed.read("6.14", "GiB").holds(64 * 1024 * 50304 * 2)
    assert not Printed.read("6.15", "GiB").holds(64 * 1024 * 50304 * 2)


def test_colours_bars_and_ranks_are_kept_apart():
    log = f"""\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 31, in main
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 47, in evaluate
[rank1]:     loss = model(x)
[rank0]:     loss.backward()
[rank0]:     ^^^^^^^^^^^^^^^
Epoch 1:  23%|██▎       | 12/52 [00:03<00:10,  3.99it/s]\x1b[31m[rank0]: {MESSAGE}\x1b[0m
[rank1]: {MESSAGE.replace("GPU 0", "GPU 1")}
"""
    zero, one = parse_oom(log)
    assert (zero.rank, zero.gpu, zero.line, zero.step) == (0, 0, 8, 12)
    assert [brief(frame) for frame in zero.frames] == [(31, "main", "loss.backward()")]
    assert (one.rank, one.gpu, one.line) == (1, 1, 9)
    assert [brief(frame) for frame in one.frames] == [(47, "evaluate", "loss = model(x)")]


def test_a_bar_in_the_middle_of_a_wrapped_message_is_skipped():
    broken = MESSAGE.replace("total ", "to\n 23%|██▎   | 12/52 [00:03<00:10,  3.99it/s]\rtal ")
    (message,) = parse_oom(broken)
    assert message.capacity == Printed.read("11.69", "GiB")


def test_quoted_and_boxed_messages_are_read():
    words = MESSAGE.split()
    quoted = "\n".join(f"> # {' '.join(words[i : i + 7])}" for i in range(0, len(words), 7))
    boxed = "\n".join(f"│ {' '.join(words[i : i + 7]):60} │" for i in range(0, len(words), 7))
    plain = fields(*parse_oom(MESSAGE))
    assert fields(*parse_oom(quoted)) == plain
    assert fields(*parse_oom(boxed)) == plain


def test_frames_of_a_notebook_and_of_a_prefixed_log_are_read():
    notebook = f"""\
Traceback (most recent call last)
Cell In[5], line 3
File ~/gpt/model.py:30, in GPT.forward(self, x)
     29 h = self.blocks(x)
---> 30 logits = self.lm_head(h)
{MESSAGE}"""
    prefixed = f"""\
2026-08-12 14:58:03   File "/opt/feral/train.py", line 131, in main
2026-08-12 14:58:03     loss = train_one_epoch(
{MESSAGE}"""
    (frame,) = parse_oom(notebook)[0].frames
    assert (frame.line, frame.function, frame.code) == (
        30,
        "GPT.forward",
        "logits = self.lm_head(h)",
    )
    (frame,) = parse_oom(prefixed)[0].frames
    assert (frame.line, frame.code) == (131, "loss = train_one_epoch(")


def test_installed_code_is_told_from_the_users_own():
    record = next(r for r in RECORDS if "DALLE" in r["source"])
    (message,) = parse_oom(record["text"])
    assert [frame.is_library for frame in message.frames] == [False, True]
    assert message.step == 861430


def test_loading_bars_are_not_training_steps():
    loading = "Loading checkpoint shards:  50%|█████     | 2/4 [00:03<00:03,  1.5s/it]\n"
    assert parse_oom(loading + MESSAGE)[0].step is None


def test_what_a_script_logs_of_allocated_memory_goes_with_the_message():
    log = "iter 1: allocated 3.00 GiB\niter 2: allocated: 4.5GiB\n" + MESSAGE
    (message,) = parse_oom(log)
    assert message.logged_allocated == (3 * 2**30, 9 * 2**29)
    assert message.step == 2


def test_a_size_that_overflowed_is_a_message_too():
    (message,) = parse_oom("CUDA out of memory. Tried to allocate more than 1EB memory.")
    assert message.asked == Printed.read("1", "EB")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no CUDA out-of-memory message"),
        ("loss 3.2\nloss 3.1\n", r"lines read: 2"),
        ("advice: on CUDA out of memory errors lower the batch", r"lines read: 1"),
        ("\x00\x01\ufffd" * 50, "no CUDA out-of-memory message"),
    ],
)
def test_nonsense_is_refused_with_a_hint(text, words):
    with pytest.raises(VramBudgetError, match=words) as caught:
        parse_oom(text)
    assert "Tried to allocate" in caught.value.hint


def test_running_out_of_ram_is_not_taken_for_a_gpus():
    with pytest.raises(VramBudgetError) as caught:
        parse_oom("RuntimeError: [enforce fail] DefaultCPUAllocator: not enough memory")
    assert "RAM" in caught.value.hint
