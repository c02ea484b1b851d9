"""Which version's rules a job follows."""

import importlib.metadata
import subprocess
import sys

import pytest

from vrambudget import estimate
from vrambudget.config.job import Job
from vrambudget.config.versions import BASELINE, CHECKED, default_version, followed_version
from vrambudget.errors import VramBudgetError
from vrambudget.report.phrases import job_text

TINY = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 64, "vocab_size": 500}


@pytest.mark.parametrize(
    ("package", "asked", "followed"),
    [
        pytest.param("torch", "2.11", "2.11", id="checked"),
        pytest.param("torch", "2.10", "2.8", id="between: 10 is more than 8"),
        pytest.param("torch", "2.14", "2.13", id="between two others"),
        pytest.param("torch", "2.99", "2.15", id="newer than all"),
        pytest.param("torch", "1.13", "2.6", id="older than all"),
        pytest.param("torch", "3.0", "2.15", id="a major release of its own"),
        pytest.param("transformers", "4.40", "4.57", id="older, same major release"),
        pytest.param("transformers", "5.2", "5.17", id="nearer to its own major release"),
    ],
)
def test_a_version_follows_the_rules_of_its_nearest_checked_relative(package, asked, followed):
    assert followed_version(asked, CHECKED[package]) == followed


def test_an_estimate_says_whose_rules_it_follows_where_the_version_was_not_checked():
    budget = estimate(TINY, torch="2.10", transformers="5.17")
    assert budget.not_modelled == ("torch 2.10: the rules followed are those of 2.8",)
    assert budget.peak == estimate(TINY, torch="2.8", transformers="5.17").peak


def test_a_family_whose_older_modelling_code_is_not_followed_says_so():
    t5 = {
        "model_type": "t5",
        "d_model": 64,
        "d_kv": 32,
        "d_ff": 64,
        "num_layers": 1,
        "num_heads": 2,
    }
    fields = {"block": 16, "torch": "2.8"}
    older = estimate(t5, transformers="4.57", **fields)
    assert older.not_modelled == ("transformers 4.57: the rules followed are those of 5.17",)
    assert older.peak == estimate(t5, transformers="5.17", **fields).peak


def test_nanogpt_knows_no_transformers():
    budget = estimate("nanogpt", batch=1, block=16, transformers="4.0")
    assert budget.not_modelled == ()
    assert budget.job["transformers"] is None
    assert "transformers" not in job_text(budget)


def test_the_report_names_the_versions_whose_rules_it_follows():
    assert job_text(estimate(TINY, torch="2.8", transformers="4.57")).endswith(
        "torch 2.8, transformers 4.57"
    )


@pytest.mark.parametrize(
    ("model", "transformers", "reads"),
    [
        pytest.param("gpt2", "5.17", True, id="positions are read back"),
        pytest.param("gpt2", "4.57", False, id="a mask is made whatever they are"),
        pytest.param("bert-base-uncased", "5.17", False, id="no mask without padding"),
        pytest.param("bert-base-uncased", "4.57", True, id="a mask of ones is read back"),
    ],
)
def test_a_mask_that_depends_on_what_is_read_back_is_said(model, transformers, reads):
    fields = {"block": 128, "optimizer": "none", "transformers": transformers}
    built, skipped = (estimate(model, causal_mask=mask, **fields) for mask in ("built", "skipped"))
    assert any("reads back" in warning for warning in built.warnings) == reads
    assert (built.peak.requested_bytes > skipped.peak.requested_bytes) == reads


@pytest.fixture
def installed(monkeypatch):
    def install(**versions):
        def version(name):
            if name not in versions:
                raise importlib.metadata.PackageNotFoundError(name)
            return versions[name]

        for package in CHECKED:
            monkeypatch.delenv(f"VRAMBUDGET_{package.upper()}", raising=False)
        monkeypatch.setattr(importlib.metadata, "version", version)

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
    with pytest.raises(VramBudgetError, match="torch is 'new'; it should be a version"):
        Job.parse({})


def test_the_default_is_found_without_importing_the_package():
    code = (
        "import sys; from vrambudget.config.job import Job; Job();"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={})
