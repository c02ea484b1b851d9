"""Records that were measured on real GPUs and sent in: each is whole, and predicted.

They lie in tests/records/measured, a file for each GPU and driver; contexts in its contexts.jsonl.
docs/measure.md says how to send them.
"""

import json
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from vrambudget.cli.parser import parse
from vrambudget.config.job import Job
from vrambudget.config.record import FOUND, REMARKS, read_records
from vrambudget.config.record_inference import KEYS
from vrambudget.config.versions import plain_version
from vrambudget.validate import validate

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "tests" / "records" / "measured"
CONTEXTS = FOLDER / "contexts.jsonl"
REHEARSED = ROOT / "tests" / "records" / "suite.jsonl"
NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))

WHY = {
    "requested bytes are equal; which free block is taken depends on where the driver's segments"
    " lie, in a process's address space": (
        "full: LoRA vit-base-patch16-224 b16 t197",
        "full: generation qwen2.5-0.5b b16 t576",
        *(f"decoders {n}" for n in (40, 80, 87, 176)),
        *(f"model_types {n}" for n in (42, 52, 88)),
        *("generation 56", "generation drawn_last 16", "loops 111", "moe 17"),
        *("drawn by name bart-large-cnn train 69", "pp-drawn-1f1b-4-rank0-amp"),
        *("fsdp1-drawn-gpt2-6-rank5-orig-foreach", "later-11-28-fsdp1-gemma2-7"),
    ),
    "LLM.int8() computes columns with values above 6.0 in 16 bit, as the values are; an estimate"
    " counts none": (
        *(f"generation eight_bit {n}" for n in (1, 3, 4, 10)),
        "generation drawn_further 11",
    ),
    "cuDNN's workspaces: where cuDNN is installed, peaks are equal within 512 bytes": (
        *(f"model_types {n}" for n in (100, 102, 117)),
        *(f"classes {name}ForCTC-bf16" for name in ("Hubert", "Wav2Vec2")),
        "classes VivitForVideoClassification-bf16",
        "classes MobileViTForSemanticSegmentation-bf16",
    ),
    "LayerDrop skips layers at random; an estimate counts them all": (
        "recorded types m2m100-1.2b-bf16-b6-t257 15",
    ),
    "the GPU is behind: what another stream used is free once it has passed there": (
        "fsdp1-nano-8-nolimit",
    ),
}

KNOWN: dict[str, str] = {id_: reason for reason, ids in WHY.items() for id_ in ids}
"""The id of a record that is farther off: why."""

_ALLOCATED, _RESERVED = 0.01, 0.03
_VERSIONS = ("torch", "cuda", "driver")
_MACHINE = ("capacity_bytes", "outside_bytes", "compute_capability", "multiprocessors")


def problems_of(record: dict[str, Any]) -> Iterator[str]:
    """Yield why a record cannot be kept."""
    if record.get("source") != "real":
        yield f"its source is {record.get('source')!r}; a measured record's is 'real'"
    versions, machine = record.get("versions", {}), record.get("machine", {})
    missing = [name for name in _VERSIONS if name not in versions]
    missing += [name for name in _MACHINE if name not in machine]
    if missing:
        yield f"it does not say {', '.join(missing)}"
    if plain_version(versions.get("torch", "")) is None:
        yield "versions.torch is no version"
    if "context" in record:
        yield from _problems_of_context(record["context"])
    elif own := set(record) - {*Job.model_fields, *FOUND, *REMARKS, *KEYS}:
        yield f"it holds {', '.join(sorted(own))}, which no job has"
    else:
        yield from _problems_of_prediction(record)


def _problems_of_context(steps: dict[str, Any]) -> Iterator[str]:
    if not {"start", "product"} <= set(steps):
        yield "its context needs start and product"
    used = [step.get("mem_get_info", step.get("nvml")) for step in steps.values()]
    if not all(isinstance(n, int) and 0 < n < 2**32 for n in used):
        yield f"its context is {used}"
    elif used != sorted(used):
        yield "its context shrinks"


def _problems_of_prediction(record: dict[str, Any]) -> Iterator[str]:
    (check,) = validate([record])
    if check.problem is not None:
        yield check.problem
    elif check.ran_out_of_memory:
        if not check.foreseen and record["id"] not in KNOWN:
            yield "it ran out of memory, which was not foreseen"
    elif record["id"] not in KNOWN:
        bounds = {"allocated": _ALLOCATED, "reserved": _RESERVED}
        for counter, bound in bounds.items():
            if (error := check.error(counter)) is None or abs(error) > bound:
                yield f"{counter} is off by {error}; say why in KNOWN"


def kept() -> list[Any]:
    files = sorted(FOLDER.glob("*.jsonl")) if FOLDER.is_dir() else []
    lines = [(file, line) for file in files for line in file.read_text().splitlines()]
    return [
        pytest.param(json.loads(line), id=f"{file.stem}-{n}")
        for n, (file, line) in enumerate(lines)
    ]


@pytest.mark.sampled(20)
@pytest.mark.parametrize("record", kept())
def test_a_kept_record_is_whole_and_predicted(record: dict[str, Any]) -> None:
    problems = list(problems_of(record))
    if find_spec("torch") is None and any("not modelled" in problem for problem in problems):
        pytest.skip("its own code is traced, which needs torch")
    assert problems == []


def test_a_record_that_is_known_to_be_off_is_there() -> None:
    assert set(KNOWN) <= {param.values[0].get("id") for param in kept()}


# ---- the check itself, on rehearsed records that say they are real -------------------------------


def as_sent() -> list[dict[str, Any]]:
    found = read_records(REHEARSED)
    return [
        {**r, "source": "real", "versions": {**r["versions"], "driver": "580.65"}} for r in found
    ]


def test_a_suite_s_records_could_be_sent() -> None:
    assert {tuple(problems_of(record)) for record in as_sent()} == {()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"source": "virtual"}, "its source is 'virtual'"),
        ({"versions": {"torch": "2.11.0"}}, "does not say cuda, driver"),
        ({"machine": {}}, "does not say capacity_bytes"),
        ({"hostname": "mine"}, "holds hostname"),
        ({"measured": {"peak_allocated": 1, "peak_reserved": 2}}, "say why in KNOWN"),
        ({"measured": {"oom": "CUDA out of memory."}}, "was not foreseen"),
        ({"card": "a card of tomorrow", "machine": {}}, "not a known GPU"),
    ],
)
def test_a_record_that_cannot_be_kept_is_told_why(changes: dict[str, Any], words: str) -> None:
    record = next(r for r in as_sent() if "oom" not in r["measured"])
    assert words in "; ".join(problems_of({**record, **changes}))


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ({"start": {"mem_get_info": 9}}, "needs start and product"),
        ({"start": {"mem_get_info": 9}, "product": {"mem_get_info": 8}}, "shrinks"),
        ({"start": {"mem_get_info": None}, "product": {"mem_get_info": 8}}, "its context is"),
        ({"start": {"mem_get_info": 8}, "product": {"mem_get_info": 9}}, ""),
    ],
)
def test_a_context_is_checked_too(steps: dict[str, Any], words: str) -> None:
    record = {k: as_sent()[0][k] for k in ("card", "source", "versions", "machine")}
    found = list(problems_of({**record, "context": steps}))
    assert words in "; ".join(found)
    assert bool(found) == bool(words)


# ---- the notebooks ------------------------------------------------------------------------------


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_a_notebook_is_valid_and_its_commands_are_ours(file: Path) -> None:
    notebook = json.loads(file.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    lines = [line.rstrip() for cell in notebook["cells"] for line in cell["source"]]
    commands = [line.removeprefix("!vrambudget ") for line in lines if line.startswith("!vram")]
    assert any("--suite quick" in command for command in commands)
    assert any("--context" in command for command in commands)
    for command in commands:
        parse(shlex.split(command))
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["execution_count"], cell["outputs"]) == (None, [])
            python = [line for line in cell["source"] if not line.startswith(("!", "%"))]
            compile("".join(python), file.name, "exec")


def test_there_is_a_notebook_for_colab_and_one_for_kaggle() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["measure_colab", "measure_kaggle"]
