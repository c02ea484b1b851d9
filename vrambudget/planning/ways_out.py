"""What one GPU does after all, where a plan has no recipe for it: another loop, shorter sequences.

Each is tried with the most frugal recipe of the goal, and told as the command that plans it.
"""

import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.options import told
from vrambudget.errors import VramBudgetError
from vrambudget.planning.choices import card_word, model_word
from vrambudget.planning.layouts import GOALS
from vrambudget.planning.recipes import recipes
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario, resolve

if TYPE_CHECKING:
    from vrambudget.planning.plan import Wish

_SHORTEST = 64  # tokens


@dataclass(frozen=True, slots=True)
class WayOut:
    """One change with which a recipe fits one GPU."""

    what: str
    command: str


def ways_out(scenario: Scenario, wish: "Wish", tell: Callable[[], object]) -> Iterator[WayOut]:
    """Yield TRL's loop, if it does, and the longest block that does: halved until one fits."""
    sft = TRL_LOOPS[0]
    if _may_be_trls(scenario, wish.named):
        fields = {**_said(scenario, wish), "loop": sft, "block": scenario.job.block}
        if _fits(lambda: resolve(scenario.values, gpu=scenario.gpu, **fields), wish, tell):
            what = "TRL's loop, which makes no logits of all tokens at once"
            yield WayOut(what, _command(scenario, wish, fields))
    block = (scenario.job.block or 0) // 2
    while block >= _SHORTEST:
        if _fits(lambda tokens=block: variant(scenario, block=tokens), wish, tell):  # type: ignore[misc]
            fields = {**_said(scenario, wish), "block": block}
            yield WayOut(f"sequences of {block:,} tokens", _command(scenario, wish, fields))
            return
        block //= 2


def _may_be_trls(scenario: Scenario, named: Collection[str]) -> bool:
    is_plain = scenario.job.loop == "plain" and "loop" not in named
    return is_plain and scenario.job.task == "causal-lm" and scenario.run is None


def _fits(changed: Callable[[], Scenario], wish: "Wish", tell: Callable[[], object]) -> bool:
    try:
        there = changed()
    except VramBudgetError:  # this model has no such loop, or no such block
        return False
    frugal = GOALS[wish.goal][-1:]
    found = recipes(
        there,
        frugal,
        named=wish.named if wish.per_step else {*wish.named, "batch"},
        per_step=wish.per_step,
        margin_bytes=wish.margin_bytes,
        suits=wish.suits,
        autocast=wish.autocast,
        tell=tell,
    )
    return bool(found)


def _said(scenario: Scenario, wish: "Wish") -> dict[str, Any]:
    """Return the fields that the user gave."""
    return {name: getattr(scenario.job, name) for name in sorted(wish.named)}


def _command(scenario: Scenario, wish: "Wish", fields: dict[str, Any]) -> str:
    words = [model_word(scenario), "--gpu", card_word(scenario)]
    words += ["--goal", wish.goal] if wish.goal != "any" else []
    words += ["--per-step", str(wish.per_step)] if wish.per_step else []
    words += ["--margin", f"{wish.margin_bytes}B"] if wish.margin_bytes else []
    return f"vrambudget plan {shlex.join([*words, *told(fields)])}"
