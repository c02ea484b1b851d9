"""What may be asked of a rehearsal, and what is wrong with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from vrambudget.config.fields.modules import ROUTINGS
from vrambudget.errors import VramBudgetError
from vrambudget.units import whole_number

_VALUES = ("zeros", "ones", "random")


@dataclass(frozen=True, slots=True)
class RehearsalOptions:
    """How to rehearse; `say` gets the progress, a line at a time.

    `values`: what is read of unknown floating-point numbers, "zeros", "ones" or "random:SEED".
    `routing`: how tokens spread over experts, one of ROUTINGS; None: uniformly, which is reported.
    """

    steps: int | None = None
    timeout: float | None = None
    snapshot: Path | None = None
    any_torch: bool = False
    quiet: bool = False
    ranks: int | None = None
    rank: int = 0
    values: str = "zeros"
    routing: str | None = None
    say: Callable[[str], None] = lambda _: None
    curve: bool = False  # for a page


def check(options: RehearsalOptions) -> None:
    """Raise VramBudgetError for what cannot be meant."""
    if options.steps is not None and options.steps < 1:
        raise VramBudgetError("steps must be 1 or more", where="--steps")
    if options.timeout is not None and not 0 < options.timeout < float("inf"):
        raise VramBudgetError("the time limit must be more than 0 seconds", where="--timeout")
    if options.ranks is not None and options.ranks < 1:
        raise VramBudgetError("ranks must be 1 or more", where="--ranks")
    if options.rank < 0 or (options.ranks is not None and options.rank >= options.ranks):
        raise VramBudgetError(
            f"there is no rank {options.rank} of {options.ranks or 1}",
            where="--rank",
            hint="ranks are numbered from 0",
        )
    read_values(options.values)
    if options.routing not in (None, *ROUTINGS):
        raise VramBudgetError(
            f"tokens are routed uniform or collapsed, not {options.routing!r}", where="--routing"
        )
    if options.snapshot and not options.snapshot.absolute().parent.is_dir():
        raise VramBudgetError("no such folder", where=str(options.snapshot.absolute().parent))


def read_values(text: str) -> tuple[str, int]:
    """Return what "random:7" says: what unknown numbers are, and a seed. Raises VramBudgetError."""
    kind, colon, seed = text.partition(":")
    if kind not in _VALUES or (colon and (kind != "random" or whole_number(seed) is None)):
        raise VramBudgetError(
            f"unknown numbers cannot be {text!r}",
            where="--values",
            hint="write zeros, ones, random, or random:7 for another seed than 0",
        )
    return kind, int(seed or 0)
