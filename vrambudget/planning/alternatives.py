"""What one GPU trains after all, where nothing fits as it was asked: another loop, a shorter block.

Each is tried with the most frugal recipe of the goal.
"""

import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.options import option_words
from vrambudget.errors import VramBudgetError
from vrambudget.planning.choices import Choice, card_word, model_word, of_recipe
from vrambudget.planning.layouts import GOALS
from vrambudget.planning.recipes import Recipe, recipes
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario, resolve

if TYPE_CHECKING:
    from vrambudget.planning.plan import Wish

_SHORTEST = 64  # tokens


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change with which a recipe fits one GPU: the recipe, and the command that plans it."""

    what: str
    command: str
    choice: Choice


def alternatives(
    scenario: Scenario, wish: "Wish", progress: Callable[[], object]
) -> Iterator[Alternative]:
    """Yield TRL's loop, if it fits, and the longest block that fits."""
    for what, there, recipe, fields in with_less(scenario, wish, progress):
        yield Alternative(what, _command(there, wish, fields), of_recipe(there, recipe))


def with_less(
    scenario: Scenario, wish: "Wish", progress: Callable[[], object]
) -> Iterator[tuple[str, Scenario, Recipe, dict[str, Any]]]:
    """Yield TRL's loop, and the longest block that fits: in words, as it is run, and its fields.

    A block is halved until a recipe fits.
    """
    if _may_be_trls(scenario, wish.named):
        fields = {**_given(scenario, wish), "loop": TRL_LOOPS[0], "block": scenario.job.block}
        found = _tried(lambda: resolve(scenario.values, gpu=scenario.gpu, **fields), wish, progress)
        if found is not None:
            there = replace(found[0], model=scenario.model, path=scenario.path)
            what = "TRL's loop, which makes no logits of all tokens at once"
            yield what, there, found[1], fields
    block = (scenario.job.block or 0) // 2
    while block >= _SHORTEST:
        found = _tried(lambda tokens=block: variant(scenario, block=tokens), wish, progress)  # type: ignore[misc]
        if found is not None:
            fields = {**_given(scenario, wish), "block": block}
            yield f"sequences of {block:,} tokens", *found, fields
            return
        block //= 2


def _may_be_trls(scenario: Scenario, named: Collection[str]) -> bool:
    is_plain = scenario.job.loop == "plain" and "loop" not in named
    return is_plain and scenario.job.task == "causal-lm" and scenario.run is None


def _tried(
    changed: Callable[[], Scenario], wish: "Wish", progress: Callable[[], object]
) -> tuple[Scenario, Recipe] | None:
    """Return the most frugal recipe of the goal that fits a changed scenario, None if none does."""
    try:
        there = changed()
    except VramBudgetError:  # this model has no such loop, or no such block
        return None
    found = recipes(
        there,
        GOALS[wish.goal][-1:],
        named=wish.named,
        per_step=wish.per_step,
        margin_bytes=wish.margin_bytes,
        suits=wish.suits,
        autocast=wish.autocast,
        progress=progress,
    )
    return (there, found[0]) if found else None


def _given(scenario: Scenario, wish: "Wish") -> dict[str, Any]:
    """Return the fields that the user gave."""
    return {name: getattr(scenario.job, name) for name in sorted(wish.named)}


def _command(scenario: Scenario, wish: "Wish", fields: dict[str, Any]) -> str:
    words = [model_word(scenario), "--gpu", card_word(scenario)]
    words += ["--goal", wish.goal] if wish.goal != "any" else []
    words += ["--per-step", str(wish.per_step)] if wish.per_step else []
    words += ["--margin", f"{wish.margin_bytes}B"] if wish.margin_bytes else []
    return f"vrambudget plan {shlex.join([*words, *option_words(fields)])}"
