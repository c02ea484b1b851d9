"""Does this PyTorch job fit on this GPU? What takes the memory, and what to change.

    budget = vrambudget.estimate("gpt2", batch=8, block=1024, gpu="12GB")
    budget.fits, budget.peak.allocated_bytes, budget.breakdown

Names are imported when they are used: importing the package costs nothing, and never imports torch.
No module has the name of a public function, which it would hide once imported.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Budget": "vrambudget.budget",
    "DoesNotFit": "vrambudget.errors",
    "NotModelledError": "vrambudget.errors",
    "VramBudgetError": "vrambudget.errors",
    "advise": "vrambudget.planning.advice",
    "VramBudgetCallback": "vrambudget.integrations.trainer",
    "draw": "vrambudget.report.pictures",
    "estimate": "vrambudget.estimator",
    "find_executable_batch_size": "vrambudget.planning.batch_finder",
    "find_gpu": "vrambudget.config.gpus",
    "lightning_callback": "vrambudget.integrations.lightning",
    "load_ipython_extension": "vrambudget.cli.magic",
    "max_batch": "vrambudget.planning.fit",
    "max_block": "vrambudget.planning.fit",
    "plan": "vrambudget.planning.plan",
    "preflight": "vrambudget.integrations.preflight",
    "sweep": "vrambudget.planning.sweep",
}

__all__ = [
    "Budget",
    "DoesNotFit",
    "NotModelledError",
    "VramBudgetCallback",
    "VramBudgetError",
    "advise",
    "draw",
    "estimate",
    "find_executable_batch_size",
    "find_gpu",
    "lightning_callback",
    "max_batch",
    "max_block",
    "plan",
    "preflight",
    "sweep",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vrambudget' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
