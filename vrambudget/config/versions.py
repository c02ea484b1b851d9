"""The versions of PyTorch, CUDA and transformers: which were checked, and the default.

    default    VRAMBUDGET_TORCH, VRAMBUDGET_TRANSFORMERS; else what is installed, if it was checked
               and is not a CPU build (which has no GPU); else the version of most records
    old        1.10 is followed where it is named, for what was published of it (old_torch.py)
    followed   a version that was not checked follows the newest checked one before it in its major
               release, the oldest checked one if it is older than all
    CUDA       what PyPI's build of that PyTorch has, unless the version names it: "2.11+cu128"

A rule that changed names the release that changed it (engine/versions.py). Under each version named
here jobs were compared with PyTorch's own events (tests/records); a family lists the versions of
transformers it follows (`ModelConfig.checked_with`).
"""

import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from vrambudget.config.old_torch import is_old
from vrambudget.errors import VramBudgetError

CHECKED = {
    "torch": ("2.6", "2.8", "2.11", "2.13", "2.14", "2.15"),
    "transformers": ("4.57", "5.17", "5.23", "5.24"),
}
"""Versions whose rules were compared with events, the oldest first."""

CHECKED_CUDA = ("12.4", "12.8", "13.0", "13.2")
"""Versions of the CUDA that PyTorch was built with, likewise."""

BASELINE = {"torch": "2.11", "transformers": "5.17"}
"""The versions of most records."""

_CUDA_ON_PYPI = {
    "2.6": "12.4",
    "2.7": "12.6",
    "2.8": "12.8",
    "2.11": "13.0",
    "2.15": "13.2",
}
"""CUDA in PyPI's wheels from a version of PyTorch on: nvidia-cuda-runtime in their metadata."""

_CUDA_13, _TURING = (13, 0), (7, 5)
"""CUDA 13.0 dropped older GPUs (its release notes; torch.cuda.get_arch_list() of PyPI's 2.11)."""

_VERSION = re.compile(r"(\d{1,3}\.\d{1,3})(\.\w+)*(?:\+([\w.]+))?")
_CUDA_BUILD = re.compile(r"cu(\d\d)(\d+)")


def default_version(package: str) -> str:
    """Return the version of a job that names none. It does not import the package.

    Raises VramBudgetError for an environment that names no version.
    """
    variable = f"VRAMBUDGET_{package.upper()}"
    if named := os.environ.get(variable):
        version = plain_version(named)
        if version is None:
            raise VramBudgetError(f"{variable} is {named!r}; it should be a version, as 2.11")
        return version
    installed = installed_version(package)
    version = plain_version(installed)
    if version is None or installed.endswith("+cpu"):
        return BASELINE[package]
    return version if version.partition("+")[0] in CHECKED[package] else BASELINE[package]


@cache
def installed_version(package: str) -> str:
    """Return what is installed, "" for nothing: by the folder of metadata beside the package.

    Only where there is none is importlib.metadata asked, whose import takes a tenth of a command.
    """
    found = importlib.util.find_spec(package)
    if found is None:
        return ""
    for place in found.submodule_search_locations or ():
        for folder in Path(place).parent.glob(f"{package}-*.dist-info"):
            return folder.stem.rpartition("-")[2]
    from importlib import metadata  # noqa: PLC0415 - see above

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def plain_version(text: str) -> str | None:
    """Return "2.11" for "2.11.0+cu130", "2.11+cu128" for a build that is not PyPI's.

    Rules change with minor versions, not below. None where the text is no version.
    """
    match = _VERSION.fullmatch(text)
    if match is None:
        return None
    version, _, build = match.groups()
    cuda = _CUDA_BUILD.fullmatch(build or "")
    if cuda is None or f"{cuda[1]}.{cuda[2]}" == cuda_of(version):
        return version
    return f"{version}+{build}"


def cuda_of(torch: str) -> str:
    """Return the CUDA that a job's PyTorch ("2.11", "2.11+cu128") is built with."""
    version, _, build = torch.partition("+")
    if cuda := _CUDA_BUILD.fullmatch(build):
        return f"{cuda[1]}.{cuda[2]}"
    return _CUDA_ON_PYPI[_newest_until(version, list(_CUDA_ON_PYPI))]


def without_code(torch: str, capability: tuple[int, int]) -> str | None:
    """Say that a PyTorch has no code for a GPU of so low a compute capability, None if it has."""
    cuda = cuda_of(torch)
    if as_numbers(cuda) < _CUDA_13 or capability >= _TURING:
        return None
    build = torch.partition("+")[0]
    return (
        f"torch {build} with CUDA {cuda} has no code for compute capability"
        f" {capability[0]}.{capability[1]}; --torch {build}+cu126 names a build that has"
    )


def checked_version(asked: str, checked: Sequence[str]) -> str:
    """Return the checked version whose rules stand for the one asked for, "2.8" for "2.10".

    Where there is none to follow, it is the one asked for.
    """
    if not checked or is_old(asked):
        return asked
    relatives = [version for version in checked if _major(version) == _major(asked)]
    return _newest_until(asked, relatives or checked)


def as_numbers(version: str) -> tuple[int, int]:
    """Return (2, 11) for "2.11" and for "2.11+cu128", for comparing."""
    major, minor = version.partition("+")[0].split(".")
    return int(major), int(minor)


def _newest_until(asked: str, versions: Sequence[str]) -> str:
    """Return the newest of `versions` (the oldest first) up to `asked`, else the oldest."""
    before = [version for version in versions if as_numbers(version) <= as_numbers(asked)]
    return before[-1] if before else versions[0]


def _major(version: str) -> int:
    return as_numbers(version)[0]


def remarks_on_versions(torch: str, transformers: str, known: Sequence[str]) -> Iterator[str]:
    """Say whose rules stand in for those of versions that were not checked: more or less memory."""
    if is_old(torch):
        yield f"torch {torch} is modelled for what was published of it, and was not rehearsed"
    asked: list[tuple[str, str, Sequence[str]]] = [
        ("torch", torch, CHECKED["torch"]),
        ("transformers", transformers, known),
    ]
    if "+" in torch:  # a build that is not PyPI's
        asked.append(("CUDA", cuda_of(torch), CHECKED_CUDA))
    for package, version, checked in asked:
        nearest = checked_version(version, checked)
        if as_numbers(version) != as_numbers(nearest):
            yield f"{package} {version} was not checked: the rules are those of {nearest}"
