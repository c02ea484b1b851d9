"""Estimates here are those of the baseline's versions, whatever is installed; and what runs when.

A test that repeats itself over many models or records is marked `sampled(n)`: of its parameters one
in n runs, which ones changes with the commit. `--nightly` runs all.
"""

import os
import subprocess
import zlib
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

from vrambudget.config.versions import BASELINE

os.environ.update({f"VRAMBUDGET_{name.upper()}": version for name, version in BASELINE.items()})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--nightly", action="store_true", help="run every case of sampled tests")


@cache
def commit() -> str:
    """Return the commit that is tested, "" where that is not known."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def pytest_report_header(config: pytest.Config) -> str:
    if config.getoption("nightly"):
        return "sampled tests: every case"
    return (
        f"sampled tests: the cases of commit {commit()[:12] or '(none)'}; --nightly runs every case"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("nightly"):
        return
    sampled = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("sampled") or item.get_closest_marker("nightly"):
            sampled[item.nodeid.partition("[")[0]].append(item)
    if any(f"{name}[" in argument for name in sampled for argument in config.args):
        return  # a case that is named runs
    dropped = {id(item) for cases in sampled.values() for item in _not_chosen(cases)}
    config.hook.pytest_deselected(items=[item for item in items if id(item) in dropped])
    items[:] = [item for item in items if id(item) not in dropped]


def _not_chosen(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases of one test that this commit's sample leaves out; one at least stays."""
    nightly = [case for case in cases if case.get_closest_marker("nightly")]
    rest = [case for case in cases if not case.get_closest_marker("nightly")]
    marker = rest[0].get_closest_marker("sampled") if rest else None
    if marker is None:
        return nightly
    seed = commit()
    drawn = sorted(rest, key=lambda case: zlib.crc32(f"{seed}{case.nodeid}".encode()))
    return nightly + drawn[-(-len(drawn) // marker.args[0]) :]
