"""README.md, CONTRIBUTING.md and docs/ hold what they promise.

Every command is understood. The README's marked outputs are what its commands print. Of the other
pages' commands and outputs a sample runs, which changes with the commit, and all of them every
night, except those that need a GPU, PyTorch's CUDA build or a file of the reader's. Links, paths
and Python names exist.
"""

import ast
import json
import shlex
import tomllib

import pages
import pytest
import terminal_picture
import test_records
from test_trainers import AI_TOOLKIT, ONE_TRAINER

import vrambudget
from vrambudget.cli import DOES_NOT_FIT, DONE, main
from vrambudget.cli.job_options import add_job_options
from vrambudget.cli.parser import COMMANDS, Parser, parse
from vrambudget.config.versions import BASELINE, CHECKED

NEEDS_CUDA_TORCH = {"rehearse", "compare", "measure"}
COMPILES = "--compile"  # for as long as PyTorch's compiler takes
SERVES = {"page"}  # until it is interrupted; or downloads a wheel
NEEDS = {
    "sweep": "numpy",
    "timeline.png": "matplotlib",
    "run.yaml": "yaml",
    "axolotl.yaml": "yaml",
    "my_lora.yaml": "yaml",
    "picture": "diffusers",
}
"""A word of a command: what it imports."""
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 6.14 GiB. GPU 0 has a total"
    " capacity of 11.69 GiB of which 4.34 GiB is free. Including non-PyTorch memory, this process"
    " has 7.35 GiB memory in use. Of the allocated memory 6.78 GiB is allocated by PyTorch, and"
    " 358.46 MiB is reserved by PyTorch but unallocated.\n"
)
GPT2 = '{"model_type": "gpt2"}'
RUN_FILES = {
    "run.yaml": "model_name_or_path: gpt2\nmax_length: 64\n",
    "axolotl.yaml": "base_model: gpt2\nsequence_len: 64\n",
    "job.toml": 'model = "gpt2"\nblock = 64\n',
    "my_lora.toml": 'pretrained_model_name_or_path = "stabilityai/stable-diffusion-xl-base-1.0"\n'
    'network_module = "networks.lora"\nnetwork_dim = 8\nmixed_precision = "bf16"\n',
    "my_lora.yaml": AI_TOOLKIT,
    "config.json": json.dumps(ONE_TRAINER),
}

each_page = pytest.mark.parametrize("page", pages.PAGES, ids=pages.name_of)


COMMANDS_OF_PAGES = [*dict.fromkeys(c for page in pages.PAGES for c in pages.commands(page))]
README = pages.ROOT / "README.md"


def _shown() -> set[str]:
    """Return the commands whose output is marked, without the part that is shown of it."""
    return {c.partition(" | ")[0] for page in pages.PAGES for c, _ in pages.outputs(page)}


def _runs(command: str) -> bool:
    words = shlex.split(command)
    files = [
        w for w in words if w.endswith((".json", ".jsonl")) and words[words.index(w) - 1] != "-o"
    ]
    own = all(word == "path/to/config.json" or (pages.ROOT / word).exists() for word in files)
    slow = NEEDS_CUDA_TORCH | SERVES | {"record", "ghost"}  # which build a model
    return words[0] not in slow and not {"auto", COMPILES, "--rehearse"} & set(words) and own


def _outputs() -> list[object]:
    """Return each command with what a page shows of it; all records at once take a minute."""
    every = "validate tests/records --by"
    return [
        pytest.param(
            command,
            shown,
            id=f"{pages.name_of(page)}: {command}",
            marks=[pytest.mark.nightly] if every in command else [],
        )
        for page in pages.PAGES
        if page != README
        for command, shown in pages.outputs(page)
    ]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "command", [c for c in COMMANDS_OF_PAGES if _runs(c) and f"vrambudget {c}" not in _shown()]
)
def test_a_command_runs(command, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.log").write_text(OUT_OF_MEMORY, encoding="utf-8")
    (tmp_path / "path" / "to").mkdir(parents=True)
    (tmp_path / "path" / "to" / "config.json").write_text(GPT2, encoding="utf-8")
    for name, text in RUN_FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    words = [
        str(pages.ROOT / w) if w.startswith("tests/") else w
        for w in shlex.split(command, comments=True)
    ]
    for word in NEEDS.keys() & set(words):
        pytest.importorskip(NEEDS[word])
    assert main(words) in {DONE, DOES_NOT_FIT}
    assert "error:" not in capsys.readouterr().err


def test_every_command_is_understood(tmp_path, monkeypatch):
    for name, text in RUN_FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for command in COMMANDS_OF_PAGES:
        assert callable(parse(shlex.split(command, comments=True)).run), command


@pytest.mark.parametrize(("command", "shown"), pages.outputs(README))
def test_the_readme_shows_what_its_commands_print(command, shown):
    assert pages.printed(command) == shown


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("command", "shown"), _outputs())
def test_an_output_is_what_the_command_prints(command, shown):
    if "--as-plain" in command:  # Ministral at batch 1 without a cache, which no recording has
        pytest.importorskip("transformers")
    assert pages.printed(command) == shown


@each_page
def test_every_link_leads_to_a_file_and_a_heading(page):
    for target in pages.links(page):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        assert not anchor or anchor in pages.anchors(linked), target


@each_page
def test_every_file_that_is_named_exists(page):
    assert [path for path in pages.paths(page) if not any(pages.ROOT.glob(path.rstrip("/")))] == []


@each_page
def test_python_examples_use_names_of_the_api(page):
    for block in pages.blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "vrambudget":
                assert node.attr in vrambudget.__all__
            if isinstance(node, ast.ImportFrom) and node.module == "vrambudget":
                assert {alias.name for alias in node.names} <= set(vrambudget.__all__)


def test_every_page_is_linked_from_the_index_and_stands_in_the_site():
    index = pages.ROOT / "docs" / "index.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in pages.links(index)}
    assert {page for page in pages.PAGES if page.parent == index.parent} - {index} <= linked
    assert "docs/index.md" in pages.links(pages.ROOT / "README.md")
    site = pages.text_of(pages.ROOT / "mkdocs.yml")
    docs = {page.name for page in pages.PAGES if page.parent == index.parent}
    assert {name for name in docs if name not in site} == set()


@pytest.mark.nightly
def test_the_picture_of_a_terminal_shows_what_is_printed():
    assert pages.text_of(terminal_picture.PICTURE) == terminal_picture.svg(terminal_picture.shown())


def test_every_command_has_an_example():
    shown = {command.split()[0] for page in pages.PAGES for command in pages.commands(page)}
    assert set(COMMANDS) - {"estimate"} <= shown  # `estimate` is what runs without a name


def test_every_option_of_a_job_is_documented():
    parser = Parser()
    add_job_options(parser)
    text = pages.text_of(pages.ROOT / "docs" / "commands.md")
    options = {action.option_strings[0] for action in parser._actions}  # noqa: SLF001
    assert [option for option in sorted(options - {"-h"}) if f"`{option}" not in text] == []


def test_nothing_else_is_installed_as_the_readme_says():
    project = tomllib.loads(pages.text_of(pages.ROOT / "pyproject.toml"))["project"]
    text = " ".join(pages.text_of(pages.ROOT / "README.md").split())
    assert ("it needs no other package." in text) == (project["dependencies"] == [])


def test_the_readme_stays_short():
    assert len(pages.text_of(pages.ROOT / "README.md").splitlines()) <= 120


def test_the_readme_counts_the_records():
    records = [param.values[0] for param in test_records.job_records()]
    out_of_memory = sum("oom" in record["measured"] for record in records)
    peaks = len(records) - out_of_memory
    text = " ".join(pages.text_of(pages.ROOT / "README.md").split())
    models = [record["model"] for record in records if isinstance(record.get("model"), dict)]
    families = {model["model_type"] for model in models}
    assert f"{len(records):,} jobs of {len(families)} model families" in text
    assert f"{out_of_memory} ran out of memory" in text
    assert f"For {peaks - len(test_records.KNOWN):,} of the other {peaks:,}" in text


def test_the_accuracy_page_counts_the_jobs_drawn_at_random():
    drawn = sum("drawn" in param.id for param in test_records.job_records())
    text = pages.text_of(pages.ROOT / "docs" / "accuracy.md")
    assert f"{drawn} of the jobs were sampled at random" in text


def test_the_checked_versions_are_listed():
    text = pages.text_of(pages.ROOT / "docs" / "versions.md")
    for package, name in (("torch", "PyTorch"), ("transformers", "transformers")):
        assert f"| {name} | {', '.join(CHECKED[package])} | {BASELINE[package]} |" in text
