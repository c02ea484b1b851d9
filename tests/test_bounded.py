"""Other people's files: every one through the bounded reader, and what is out of bounds is named.

A bound that does not hold shows as a test that does not end: these files stand for hours.
"""

import ast
import contextlib
import json
import time
from pathlib import Path

import pytest

import vrambudget
from vrambudget.bounded import DEEPEST, check, read_json
from vrambudget.config.foreign.run_file import is_run_file, read_run_file
from vrambudget.config.gpus import find_gpu
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.largest import read_bounds
from vrambudget.units import whole_number

PACKAGE = Path(vrambudget.__file__).parent
READS = {"open", "read_text", "read_bytes", "fdopen", "mmap", "open_code", "loadtxt", "fromfile"}
OWN = {
    "files.py": "the reader, and the writer",
    "cli/streams.py": "/dev/null",
    "compiled/cache.py": "this package's own code, for a digest",
    "compiled/inductor.py": "code that Inductor wrote in this process",
    "compiled/process.py": "the pipe to its parent",
    "cudnn/answers.py": "this package's own table",
    "measure/runner.py": "the job that its parent wrote, in its own process",
    "planner/site.py": "this package's own files",
    "planning/forked.py": "pipes to our own children",
    "recording/ghost.py": "the files that it writes",
    "rehearse/elf.py": "maps a library that `open_file` opened",
    "rehearse/stub_libraries.py": "this package's own C sources, for a digest",
    "rehearse/supervisor.py": "/proc, and runs without this package",
    "rehearse/workplace.py": "a lock",
}
"""Files that open something by themselves, and what."""


def reads(path):
    """Return whether a module opens or reads a file by itself."""
    tree = ast.walk(ast.parse(path.read_text()))
    calls = [node.func for node in tree if isinstance(node, ast.Call)]
    return any(
        getattr(call, "attr", "") in READS or (isinstance(call, ast.Name) and call.id == "open")
        for call in calls
    )


def test_every_file_is_read_through_the_bounded_reader():
    modules = [path for path in PACKAGE.rglob("*.py") if "hook" not in path.parts]
    found = {path.relative_to(PACKAGE).as_posix() for path in modules if reads(path)}
    assert found == OWN.keys()


NESTED = "a0: &a0 [1]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 11)
)
MERGED = "a0: &a0 {k: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 11)
)
DIGITS = "9" * 5000


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.yaml", NESTED, "more than 30,000 values, its aliases counted"),
        ("a.yaml", MERGED, "more than 30,000 values, its aliases counted"),
        ("a.yaml", "a: &a [*a]", "may refer to itself"),
        ("a.yaml", "a: &a {<<: *a}", "may refer to itself"),
        ("a.yaml", "[" * 100_000, "may refer to itself"),
        ("a.yaml", "a: 1\n" * 150_000, "more than 30,000 values"),
        ("a.yaml", "".join(f"k{n}: 1\n" for n in range(14_000)) + "k7: 2", "'k7' stands twice"),
        ("a.yaml", "a: {b: 1, c: [{d: 1, d: 2}]}", "'a.c[0].d' stands twice"),
        ("a.yaml", "lr: !!bool 'x'", "lr is 'x', which is no bool"),
        ("a.yaml", "lr: !!null 'x'", "lr is 'x', which is no null"),
        ("a.yaml", 'lr: !!int ""', "lr is '', which is no int"),
        ("a.yaml", "lr: !!float ''", "lr is '', which is no float"),
        ("a.yaml", "lr: !!timestamp 'x'", "lr is 'x', which is no timestamp"),
        ("a.yaml", "lr: 2026-13-41", "lr is '2026-13-41', which is no timestamp"),
        ("a.yaml", "lr: !!python/object/apply:os.system [ls]", "lr has the tag"),
        ("a.yaml", f"lr: {DIGITS}", "lr is a number of 5,000 digits"),
        ("a.yaml", f"lr: {':59' * 300_000}"[:4] + "1" + ":59" * 300_000, "a number of 900,001"),
        ("a.toml", f"lr = {DIGITS}", "lr is a number of 5,000 digits"),
        ("a.toml", "a" + ".a" * 400_000 + " = 1", "line 1 has more than 20 parts"),
        ("a.toml", "\n[" + '"a".' * 200_000 + "b]", "line 2 has more than 20 parts"),
        ("a.toml", "a = " + "[" * 400_000, "this is nested too deep: at most 64"),
        ("a.toml", "a = 2026-13-41", "not TOML"),
        ("a.json", f'{{"lr": [1, {DIGITS}]}}', "lr[1] is a number of 5,000 digits"),
        (
            "a.json",
            '{"a":' * 100 + "1" + "}" * 100,
            "what a.a.a holds is nested too deep: at most 64",
        ),
        ("a.json", '{"a":' * 100_000, "this is nested too deep: at most 64"),
        ("a.json", '{"' + "k" * 5000 + '": 1}', "has 5,000 characters"),
    ],
    ids=lambda value: value[:24].strip() if isinstance(value, str) else "",
)
def test_what_a_run_file_may_not_hold_is_an_error_at_once(tmp_path, name, text, words):
    if name.endswith("yaml"):
        pytest.importorskip("yaml")
    file = tmp_path / name
    file.write_text(text)
    started = time.process_time()
    with pytest.raises(VramBudgetError) as raised:
        read_run_file(file)
    assert words in raised.value.message
    assert raised.value.where == str(file)
    assert is_run_file(file) == (not name.endswith("json"))
    assert time.process_time() - started < 20  # a call that hangs, as the fuzzer counts it


def test_values_are_checked_wherever_they_come_from():
    values = {"a": [1, {"b": None}]}
    values["a"].append(values)
    with pytest.raises(VramBudgetError, match="nested too deep"):
        find_model({"model_type": "gpt2", **values})
    check([[]] * 1000)
    with pytest.raises(VramBudgetError, match="more than 2,000,000 values"):
        check([[[0] * 1000] * 1000] * 3)
    assert read_json("[" * DEEPEST + "]" * DEEPEST)


@pytest.mark.parametrize("name", ["t4\0", "t4\x1b", "t\u200b4", "t4\u202e"])
def test_a_name_with_a_character_that_nobody_sees_is_no_name(name):
    with pytest.raises(VramBudgetError, match="cannot be printed"):
        find_gpu(name)
    with pytest.raises(VramBudgetError, match="cannot be printed"):
        find_model(f"gpt2{name[-1]}" if name.startswith("t4") else "gpt\u200b2")


def test_an_array_of_one_element_is_no_number():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(VramBudgetError, match=r"batch is array\(\[3\]\); it should be one value"):
        vrambudget.estimate("gpt2", batch=numpy.array([3]))
    with pytest.raises(VramBudgetError, match=r"n_layer is array\(\[3\]\); it should be"):
        vrambudget.estimate({"model_type": "gpt2", "n_layer": numpy.array([3])})
    assert vrambudget.estimate("gpt2", block=8, batch=numpy.int64(3)).peak.requested_bytes
    with pytest.raises(VramBudgetError, match=r"compile is array\(\[1, 2\]\); it should"):
        vrambudget.estimate("gpt2", compile=numpy.array([1, 2]))
    assert vrambudget.sweep("gpt2", batch=numpy.array(3), block=8)


@pytest.mark.parametrize("digits", ["\u00b2", "\u0661", "9" * 5000, "-1", "1_0", ""])
def test_what_is_no_number_of_some_digits_is_said_by_every_door(digits):
    assert whole_number(digits) is None
    for call in (
        lambda: find_gpu(digits or "?"),
        lambda: vrambudget.estimate("gpt2", ranks=2, parallel=f"tp={digits}"),
        lambda: vrambudget.estimate("gpt2", block=f"{digits}:8"),
        lambda: read_bounds(f"1:{digits}"),
    ):
        with pytest.raises(VramBudgetError):
            call()


@pytest.mark.parametrize(
    "config",
    [
        {"dtype": {"a": 1}, "model_type": "gpt2"},
        {"torch_dtype": ["bfloat16"], "model_type": "gpt2"},
        {"model_type": {}},
        {"model_type": "llama", "quantization_config": ["fp8"]},
    ],
)
def test_a_value_of_another_kind_is_no_traceback(config, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with contextlib.suppress(VramBudgetError):
        vrambudget.estimate(tmp_path, block=8)
    with pytest.raises(VramBudgetError):
        vrambudget.serve(tmp_path, gpu="h100")


def test_two_spellings_of_a_field_that_disagree_are_an_error_in_a_job_s_file(tmp_path):
    file = tmp_path / "job.toml"
    file.write_text('model = "gpt2"\ngrad_accum = 3\ngradient_accumulation_steps = 4\n')
    with pytest.raises(VramBudgetError, match="grad_accum is given twice"):
        vrambudget.estimate(file, block=8)
