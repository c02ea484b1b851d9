"""Rehearsals in tests: with the PyTorch of VRAMBUDGET_PYTHON, or of the Python that runs them."""

import os
import sys

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.rehearse import rehearse
from vrambudget.rehearse.torch_build import find_torch

PYTHON = os.environ.get("VRAMBUDGET_PYTHON", sys.executable)


def why_not():
    """Say why nothing can be rehearsed here, or None."""
    try:
        find_torch([PYTHON])
    except VramBudgetError as error:
        return f"{error.message} ({error.where})"
    return None


_REASON = why_not()
VIRTUAL_GPU = [
    pytest.mark.virtual_gpu,
    pytest.mark.skipif(_REASON is not None, reason=str(_REASON)),
]


def run(script, *arguments, gpu="a100-80gb", **options):
    """Rehearse a script."""
    return rehearse([PYTHON, str(script), *arguments], gpu=gpu, quiet=True, **options)
