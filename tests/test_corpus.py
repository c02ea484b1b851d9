"""The list of public scripts, what each gave, and the page that says it: their form."""

import importlib.util
import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "corpus"


def module(name):
    spec = importlib.util.spec_from_file_location(f"corpus_{name}", HERE / f"{name}.py")
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope="module")
def corpus():
    pytest.importorskip("pty")  # no Windows
    return module("run")


def test_each_script_names_its_commit_its_command_and_data_that_can_be_made(corpus):
    data = module("data")
    scripts = corpus.scripts()
    assert len(scripts) == corpus.SCRIPTS.read_text().count("[[script]]") >= 40
    for script in scripts.values():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", script["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", script["commit"])
        assert re.match(r"python|torchrun|accelerate launch|deepspeed", script["command"])
        assert all(callable(getattr(data, made.split()[0])) for made in script.get("data", []))


def test_each_script_has_a_result_and_what_is_not_right_fails_with_a_reason(corpus):
    scripts, results = corpus.scripts(), corpus.results()
    assert list(scripts) == list(results)
    for name, result in results.items():
        if corpus.is_right(result):
            assert (result["exit_code"], "why" in scripts[name]) == (0, False)
            assert result["steps"] == scripts[name].get("steps", corpus.STEPS)
            assert result["peak_reserved_bytes"] >= 2 << 20
        else:
            assert result["exit_code"] != 0
            assert result["error"]
            assert scripts[name]["why"]


def test_the_page_has_the_table_and_its_counts(corpus):
    page, results = corpus.PAGE.read_text(), corpus.results()
    assert f"<!-- corpus -->\n{corpus.table()}\n<!-- end -->" in page
    right = sum(map(corpus.is_right, results.values()))
    assert f"{right} of {len(results)}" in page
