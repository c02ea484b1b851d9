"""The versions of PyTorch and transformers: which were checked, which is taken where none is named.

    default    VRAMBUDGET_TORCH, VRAMBUDGET_TRANSFORMERS; else what is installed, if it was checked
               and is no CPU build (which trains on no GPU); else the version that most records back
    followed   a version that was not checked follows the newest checked one before it in its major
               release, the oldest checked one if it is older than all

A rule that changed carries the versions that it holds for. Under each version named here jobs were
held against PyTorch's own events (tests/records/versions.jsonl).
"""

import importlib.metadata
import os
from collections.abc import Sequence

CHECKED = {
    "torch": ("2.6", "2.8", "2.11", "2.13", "2.15"),
    "transformers": ("4.57", "5.17"),
}
"""Versions whose rules were held against events, the oldest first."""

BASELINE = {"torch": "2.11", "transformers": "5.17"}
"""What most records were made with."""


def default_version(package: str) -> str:
    """Return the version that a job takes where it names none. It does not import the package."""
    named = os.environ.get(f"VRAMBUDGET_{package.upper()}")
    if named:
        return named
    try:
        installed = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return BASELINE[package]
    release, _, build = installed.partition("+")
    if build == "cpu":
        return BASELINE[package]
    minor = ".".join(release.split(".")[:2])
    return minor if minor in CHECKED[package] else BASELINE[package]


def followed_version(asked: str, checked: Sequence[str]) -> str:
    """Return the checked version whose rules stand for the one asked for, "2.8" for "2.10".

    Where there is none to follow, it is the one asked for.
    """
    if not checked:
        return asked
    relatives = [version for version in checked if _major(version) == _major(asked)] or checked
    before = [version for version in relatives if as_numbers(version) <= as_numbers(asked)]
    return before[-1] if before else relatives[0]


def as_numbers(version: str) -> tuple[int, int]:
    """Return (2, 11) for "2.11", for comparing."""
    major, minor = version.split(".")
    return int(major), int(minor)


def _major(version: str) -> int:
    return as_numbers(version)[0]
