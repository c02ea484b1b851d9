"""Hostile input of every kind comes to a result that holds together, or to an error that names it.

Hypothesis draws the cases and makes one that breaks a law smaller; `fuzz` has the laws, and a
longer run of them.
"""

import os
from pathlib import Path

import pytest

pytest.importorskip("hypothesis")

from fuzz.laws import LAWS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = 60  # of each kind


@pytest.fixture(autouse=True, scope="module")
def a_folder_of_its_own(tmp_path_factory):
    before = Path.cwd()
    os.chdir(tmp_path_factory.mktemp("properties"))
    yield
    os.chdir(before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", LAWS)
def test_the_law_of_each_kind_of_input_holds(kind):
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False))
    def holds(rng):
        LAWS[kind](rng)

    holds()
