"""Does this PyTorch job fit on this GPU? What takes the memory, and what to change.

    budget = vrambudget.estimate("gpt2", batch=8, block=1024, gpu="12GB")
    budget.fits, budget.peak.allocated_bytes, budget.breakdown

Names are imported when they are used: importing the package costs nothing, and never imports torch.
No module has the name of a public function, which it would hide once imported.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what editors and type checkers read
    from vrambudget.budget import Budget as Budget
    from vrambudget.cli.magic import load_ipython_extension as load_ipython_extension
    from vrambudget.config.gpus import find_gpu as find_gpu
    from vrambudget.errors import DoesNotFit as DoesNotFit
    from vrambudget.errors import NotModelledError as NotModelledError
    from vrambudget.errors import VramBudgetError as VramBudgetError
    from vrambudget.estimator import estimate as estimate
    from vrambudget.integrations.explore import explore as explore
    from vrambudget.integrations.lightning import lightning_callback as lightning_callback
    from vrambudget.integrations.preflight import preflight as preflight
    from vrambudget.integrations.run_here import run as run
    from vrambudget.integrations.server import serve as serve
    from vrambudget.integrations.stepped import follow as follow
    from vrambudget.integrations.stepped import trace as trace
    from vrambudget.integrations.trainer import VramBudgetCallback as VramBudgetCallback
    from vrambudget.planning.advice import advise as advise
    from vrambudget.planning.batch_finder import (
        find_executable_batch_size as find_executable_batch_size,
    )
    from vrambudget.planning.fit import max_batch as max_batch
    from vrambudget.planning.fit import max_block as max_block
    from vrambudget.planning.plan import plan as plan
    from vrambudget.planning.sweep import sweep as sweep
    from vrambudget.report.pictures import draw as draw

__version__ = "0.3.0"

_HOMES = {
    "Budget": "vrambudget.budget",
    "DoesNotFit": "vrambudget.errors",
    "NotModelledError": "vrambudget.errors",
    "VramBudgetError": "vrambudget.errors",
    "advise": "vrambudget.planning.advice",
    "VramBudgetCallback": "vrambudget.integrations.trainer",
    "draw": "vrambudget.report.pictures",
    "estimate": "vrambudget.estimator",
    "explore": "vrambudget.integrations.explore",
    "find_executable_batch_size": "vrambudget.planning.batch_finder",
    "find_gpu": "vrambudget.config.gpus",
    "follow": "vrambudget.integrations.stepped",  # the name of `trace` until 0.3
    "lightning_callback": "vrambudget.integrations.lightning",
    "load_ipython_extension": "vrambudget.cli.magic",
    "max_batch": "vrambudget.planning.fit",
    "max_block": "vrambudget.planning.fit",
    "plan": "vrambudget.planning.plan",
    "preflight": "vrambudget.integrations.preflight",
    "run": "vrambudget.integrations.run_here",
    "serve": "vrambudget.integrations.server",
    "sweep": "vrambudget.planning.sweep",
    "trace": "vrambudget.integrations.stepped",
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
    "explore",
    "find_executable_batch_size",
    "find_gpu",
    "lightning_callback",
    "max_batch",
    "max_block",
    "plan",
    "preflight",
    "run",
    "serve",
    "sweep",
    "trace",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'vrambudget' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
