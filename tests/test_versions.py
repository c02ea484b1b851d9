"""Which version's rules a job follows."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vrambudget import estimate
from vrambudget.config.job import Job
from vrambudget.config.record import read_records, record_files
from vrambudget.config.source import find_model
from vrambudget.config.versions import (
    BASELINE,
    CHECKED,
    CHECKED_CUDA,
    as_numbers,
    checked_version,
    cuda_of,
    default_version,
    plain_version,
)
from vrambudget.engine.context import recording
from vrambudget.errors import VramBudgetError
from vrambudget.models import config_class, model_types
from vrambudget.ops.cub import exclusive_sum_bytes
from vrambudget.program.catalog import RECORDED, program_at
from vrambudget.report.phrases import job_text
from vrambudget.scenario import resolve

RECORDS = Path(__file__).parent / "records"
TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 64, "vocab_size": 500}


@pytest.mark.parametrize(
    ("package", "asked", "checked"),
    [
        pytest.param("torch", "2.11", "2.11", id="checked"),
        pytest.param("torch", "2.10", "2.8", id="between: 10 is more than 8"),
        pytest.param("torch", "2.12", "2.11", id="between two others"),
        pytest.param("torch", "2.99", "2.15", id="newer than all"),
        pytest.param("torch", "1.13", "2.6", id="older than all"),
        pytest.param("torch", "3.0", "2.15", id="a major release of its own"),
        pytest.param("transformers", "4.40", "4.57", id="older, same major release"),
        pytest.param("transformers", "5.2", "5.17", id="nearer to its own major release"),
    ],
)
def test_a_version_follows_the_rules_of_its_nearest_checked_relative(package, asked, checked):
    assert checked_version(asked, CHECKED[package]) == checked


def test_an_estimate_says_whose_rules_it_follows_where_the_version_was_not_checked():
    budget = estimate(TINY, torch="2.10", transformers="5.17")
    assert "torch 2.10 was not checked: the rules are those of 2.8" in budget.warnings
    assert budget.peak == estimate(TINY, torch="2.8", transformers="5.17").peak


def test_a_family_whose_older_modelling_code_is_not_followed_says_so():
    t5 = {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 32,
        "d_ff": 64,
        "num_layers": 3,
        "num_heads": 2,
    }
    fields = {"block": 16, "torch": "2.8"}
    older = estimate(t5, transformers="4.57", **fields)
    note = "transformers 4.57 was not checked: the rules are those of 5.17"
    assert note in older.warnings
    assert older.peak == estimate(t5, transformers="5.17", **fields).peak


def test_nanogpt_knows_no_transformers():
    budget = estimate("nanogpt", batch=1, block=16, transformers="4.0")
    assert not any("transformers" in warning for warning in budget.warnings)
    assert budget.job["transformers"] is None
    assert "transformers" not in job_text(budget)


def test_the_report_names_the_versions_whose_rules_it_follows():
    assert job_text(estimate(TINY, torch="2.8", transformers="4.57")).endswith(
        "torch 2.8, transformers 4.57"
    )


def test_the_rules_of_other_versions_are_no_lower_bound():
    text = str(estimate(TINY, torch="2.10"))
    assert "note: torch 2.10 was not checked: the rules are those of 2.8" in text
    assert "lower bound" not in text
    assert "at least" not in text


@pytest.mark.parametrize(
    ("torch", "cuda"),
    [
        pytest.param("2.8", (12, 8), id="PyPI's build"),
        pytest.param("2.10", (12, 8), id="PyPI's build, of a version that is not checked itself"),
        pytest.param("2.11.0+cu130", (13, 0), id="PyPI's build by its full name"),
        pytest.param("2.11.0+cu128", (12, 8), id="another build"),
        pytest.param("2.7.1+cu126", (12, 4), id="a CUDA that is not checked"),
        pytest.param("2.6.0+cu118", (12, 4), id="a CUDA that is older than all checked"),
        pytest.param("2.11.0a0+git1a2b3c", (13, 0), id="a build that names no CUDA"),
    ],
)
def test_the_rules_of_cuda_are_those_that_pytorch_is_built_with(torch, cuda):
    assert resolve(TINY, torch=torch).platform.cuda == cuda


def test_a_build_for_another_cuda_is_named_and_has_its_temporary_storage():
    pypi, other = (resolve(TINY, torch=torch) for torch in ("2.11.0+cu130", "2.11.0+cu128"))
    assert (pypi.job.torch, other.job.torch) == ("2.11", "2.11+cu128")
    sums = []
    for scenario in (pypi, other):
        with recording(scenario.platform):
            sums.append(exclusive_sum_bytes(4096))
    assert sums[0] - sums[1] == 256  # CUDA 13's


def test_a_build_for_a_cuda_that_was_not_checked_says_so():
    notes = estimate(TINY, torch="2.8.0+cu129").warnings
    assert "CUDA 12.9 was not checked: the rules are those of 12.8" in notes


BERT = {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 96, "vocab_size": 99}
OLD = {"torch": "1.10", "task": "seq-cls", "block": 64, "precision": "fp32"}


def test_torch_1_10_is_followed_where_it_is_named():
    then = estimate(BERT, batch=8, gpu="v100-16gb", **OLD)
    assert then.job["attention"] == "eager"
    assert then.job["zero_grad"] == "zeros"
    assert then.device.context_bytes == 1341 * 2**20
    assert "torch 1.10 is modelled for what was published of it, and was not rehearsed" in (
        then.warnings
    )
    later = estimate(BERT, batch=8, gpu="v100-16gb", **{**OLD, "torch": "2.6"}, attention="eager")
    scores = 2 * 8 * 12 * 64 * 64 * 4  # of each layer: the softmax saved its input
    kept = then.breakdown["activations"] - later.breakdown["activations"]
    assert scores / 2 <= kept <= 2 * scores
    assert (then.breakdown["workspaces"], then.breakdown["gradients"]) == (
        0,
        4 * then.parameters.trainable,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"loop": "trainer"}, "loop is 'trainer'; under torch 1.10"),
        ({"attention": "sdpa"}, "attention is 'sdpa'; under torch 1.10"),
        ({"precision": "amp-bf16"}, "precision is 'amp-bf16'"),
        ({"optimizer": "muon"}, "optimizer is 'muon'"),
        ({"lora_rank": 4}, "lora_rank is 4"),
        ({"mode": "forward", "task": "embed"}, "mode is 'forward'"),
        ({"optimizer_impl": "fused"}, "optimizer_impl is 'fused'"),
    ],
)
def test_what_is_not_followed_under_torch_1_10_is_refused_by_name(fields, words):
    with pytest.raises(VramBudgetError, match=words):
        estimate(BERT, **{**OLD, **fields})


def test_other_models_are_refused_under_torch_1_10():
    with pytest.raises(VramBudgetError, match=r"gpt2 under torch 1\.10 is not modelled"):
        estimate(TINY, torch="1.10", precision="fp32", block=8)


@functools.cache
def backed():
    """Return the versions that kept records were made with: of torch, CUDA, and by family."""
    torch, cuda, families = set(), set(), set()
    for file in record_files(RECORDS):
        for record in read_records(file):
            versions = record["versions"]
            family = find_model(record["model"]).values["model_type"]
            plain = plain_version(versions["torch"])
            torch.add(plain)
            cuda.add(cuda_of(plain))
            if versions.get("transformers"):
                families.add((family, plain_version(versions["transformers"])))
    return torch, cuda, families


def test_every_version_called_checked_has_records():
    torch, cuda, families = backed()
    assert torch == set(CHECKED["torch"])
    assert cuda == set(CHECKED_CUDA)
    assert {version for _, version in families} == set(CHECKED["transformers"])


@pytest.mark.parametrize("family", model_types())
def test_a_family_claims_the_versions_of_transformers_that_it_has_records_of(family):
    claimed = vars(config_class(family)).get("checked_with")
    assert claimed is not None, "a family says itself which versions it follows"
    assert claimed == tuple(sorted(claimed, key=as_numbers))
    unbacked = [version for version in claimed if (family, version) not in backed()[2]]
    assert not unbacked


def test_a_program_names_the_versions_of_transformers_that_it_has_records_of():
    for name in ("bert", "roberta"):
        programs = program_at(RECORDED / f"{name}.program").every()
        named = {version for each in programs for version in each.when["transformers"]}
        assert {(name, version) for version in named} <= backed()[2]


@pytest.mark.parametrize(
    ("model", "transformers", "decides"),
    [
        pytest.param("gpt2", "5.17", True, id="positions are read back"),
        pytest.param("gpt2", "4.57", False, id="a mask is made whatever they are"),
        pytest.param("bert-base-uncased", "5.17", False, id="no mask without padding"),
        pytest.param("bert-base-uncased", "4.57", True, id="a mask of ones is read back"),
    ],
)
def test_a_mask_that_depends_on_what_is_read_back_is_skipped_as_on_a_real_card(
    model, transformers, decides
):
    fields = {"block": 128, "optimizer": "none", "transformers": transformers}
    fields |= {"use_cache": False}  # with a cache no positions are read back
    plain, built, skipped = (
        estimate(model, causal_mask=mask, **fields) for mask in (None, "built", "skipped")
    )
    assert plain.peak == skipped.peak
    assert (built.peak.requested_bytes > skipped.peak.requested_bytes) == decides


@pytest.fixture
def installed(monkeypatch):
    def install(**versions):
        for package in CHECKED:
            monkeypatch.delenv(f"VRAMBUDGET_{package.upper()}", raising=False)
        monkeypatch.setattr(
            "vrambudget.config.versions.installed_version", lambda name: versions.get(name, "")
        )

    return install


def test_the_default_is_what_is_installed(installed):
    installed(torch="2.13.0+cu130", transformers="4.57.6")
    job = Job()
    assert (job.torch, job.transformers) == ("2.13", "4.57")


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param({}, id="nothing installed"),
        pytest.param({"torch": "2.9.1", "transformers": "5.0.0"}, id="not checked"),
        pytest.param({"torch": "2.13.0+cpu"}, id="a build that sees no GPU"),
    ],
)
def test_the_default_is_the_baseline_where_nothing_checked_is_installed(installed, versions):
    installed(**versions)
    assert {package: default_version(package) for package in CHECKED} == BASELINE


def test_the_environment_goes_before_what_is_installed(installed, monkeypatch):
    installed(torch="2.13.0")
    monkeypatch.setenv("VRAMBUDGET_TORCH", "2.8.0")
    assert Job().torch == "2.8"
    monkeypatch.setenv("VRAMBUDGET_TORCH", "new")
    with pytest.raises(VramBudgetError, match="VRAMBUDGET_TORCH is 'new'; it should be a version"):
        Job.parse({})


def test_the_default_is_found_without_importing_the_package():
    code = (
        "import sys; from vrambudget.config.job import Job; Job();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    own = {name: value for name, value in os.environ.items() if not name.startswith("VRAMBUDGET_")}
    subprocess.run([sys.executable, "-c", code], check=True, env=own)
