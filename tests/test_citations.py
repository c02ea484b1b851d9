"""Each source that a docstring cites exists in the version that rules were written from.

tests/releases/digests.json has what was found there (`python -m tests.releases cited PACKAGE
VERSION --write`), so this needs none of the libraries.
"""

from pathlib import Path

import pytest
from releases.__main__ import BASELINE, digests, table
from releases.citations import Citation, citations, cited_in
from releases.replayed import _DEPEND, depending
from releases.sources import Sources, digest

_REPOSITORY = ("tools/", "tests/", "examples/")
"""Folders of repositories that no wheel has."""

ELSEWHERE = {
    "vrambudget/config/foreign/": "Axolotl, LLaMA-Factory, torchtune, torchtitan, nanoGPT",
    "vrambudget/config/loops.py": "nanoGPT",
    "vrambudget/models/families/titan.py": "torchtitan",
    "vrambudget/models/parts/quantized_cache.py": "optimum-quanto",
    "vrambudget/parallel/": "torchtitan",
    "vrambudget/pictures/training.py": "examples of diffusers",
    "vrambudget/serving/gguf_quants.py": "llama.cpp's repository",
    "vrambudget/rehearse/": "FlashInfer, and what stands in logs",
    "vrambudget/report/tools/": "Axolotl, LLaMA-Factory",
    "vrambudget/training/loops/": "nanoGPT, examples of transformers",
    "vrambudget/training/transformers_4_16.py": "transformers 4.16",
}
"""Where sources are cited that are not of the libraries of `BASELINE`: of which they are."""


def kept() -> set[tuple[str, str]]:
    """Return (file, name) of what was found in the baseline, name "" for a file.

    Of vLLM, whose rules are those of several versions, in each that was checked.
    """
    found = digests()
    keys = [key for name, version in BASELINE.items() for key in found[name][version]]
    keys += [key for version in found["vllm"].values() for key in version]
    return {(file, name) for file, _, name in (key.partition("::") for key in keys)}


def missing(citation: Citation, known: set[tuple[str, str]]) -> list[str]:
    """Return the cited names that the baseline does not have in a file that ends so."""
    own = {name for file, name in known if f"/{file}".endswith(f"/{citation.path}")}
    return [name for name in citation.names or ("",) if name not in own]


def test_every_cited_source_exists_in_the_baseline():
    known = kept()
    lost, excused = [], set()
    for citation in citations():
        if not citation.is_python or citation.path.startswith(_REPOSITORY):
            continue
        if names := missing(citation, known):
            places = [place for place in ELSEWHERE if citation.where.startswith(place)]
            excused.update(places)
            lost += [] if places else [(citation.where, citation.path, names)]
    assert lost == []
    assert excused == set(ELSEWHERE), "these cite nothing from elsewhere any more"


def test_the_libraries_that_were_read_are_listed():
    page = Path(__file__).parents[1] / "docs" / "versions.md"
    assert table() in page.read_text(encoding="utf-8")


def test_a_citation_s_file_and_names_are_read_and_its_prose_is_not():
    text = (
        "What it is.\n\nSource: torch/optim/adam.py (_multi_tensor_adam, and Adam.step), 2.11;\n"
        "aten/src/ATen/native/Dropout.cpp (dropout).\nNot modelled: a/b.py (c)."
    )
    adam, dropout = cited_in(text, "here")
    assert adam == Citation("here", "torch/optim/adam.py", ("_multi_tensor_adam", "Adam.step"))
    assert adam.is_python
    assert not dropout.is_python


@pytest.mark.parametrize(
    ("after", "same"),
    [
        ("def f(x):\n    '''New words.'''\n    return x + 1  # why", True),
        ("def f(x):\n    return x + 2", False),
    ],
)
def test_a_digest_changes_with_the_code_alone(after, same):
    before = "def f(x):\n    '''Words.'''\n    return x + 1"
    assert (digest(before) == digest(after)) is same


def test_a_definition_is_found_by_the_end_of_its_path_and_name(tmp_path):
    file = tmp_path / "library" / "optim" / "adam.py"
    file.parent.mkdir(parents=True)
    file.write_text("LIMIT = 3\nclass Adam:\n    def step(self):\n        return LIMIT\n")
    sources = Sources("library", tmp_path)
    found = sources.find("optim/adam.py", ("Adam.step", "LIMIT"))
    assert found == {
        "library/optim/adam.py::Adam.step": "    def step(self):\n        return LIMIT",
        "library/optim/adam.py::LIMIT": "LIMIT = 3",
    }
    assert sources.find("optim/adam.py", ("Adam.stop",)) is None
    assert sources.find("adam.py", ()) == {"library/optim/adam.py": ""}


@pytest.mark.parametrize("package", sorted(_DEPEND))
def test_a_release_s_records_can_be_rehearsed_again(package):
    found = depending(package)
    assert len(found) >= 9
    assert all("card" in record and "measured" in record for record in found)
    ranks = {record["parallel"]["method"] for record in found if "parallel" in record}
    assert ranks == ({"ddp", "zero1", "fsdp1", "fsdp2"} if package == "torch" else set())
