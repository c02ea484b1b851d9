"""What is trained after all, where nothing fits as it was asked: another loop, a shorter block.

Each is tried with the most frugal recipe of the goal, on one GPU or on as many as were named.
"""

import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.options import option_words
from vrambudget.errors import VramBudgetError
from vrambudget.planning.choices import Choice, gpu_word, how_many, model_word, of_recipe
from vrambudget.planning.layouts import GOALS
from vrambudget.planning.multi_gpu import Planner, fewest
from vrambudget.planning.recipes import Recipe, Trained, recipes
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario, resolve

if TYPE_CHECKING:
    from vrambudget.planning.plan import Wish

_SHORTEST = 64  # tokens
_USUAL = 1024  # tokens, what TRL has by default
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Alternative:
    """One change with which a recipe or a layout fits: it, and the command that plans it."""

    what: str
    command: str
    choice: Choice


def alternatives(
    scenario: Scenario, wish: "Wish", progress: Callable[[], object], *, alone: bool
) -> Iterator[Alternative]:
    """Yield TRL's loop, if it fits, and the longest block that fits: one GPU, or several.

    Where their number was not named, one shorter block is tried alone: each is with many numbers.
    """

    def on_multi_gpu(there: Scenario) -> Choice | None:
        if wish.gpus is None and there.job.block not in {scenario.job.block, _USUAL}:
            return None
        planner = Planner(there, wish, progress)
        gpus = wish.gpus or fewest(planner, wish.most)
        return planner.most_frugal(gpus) if gpus else None

    def on_one(there: Scenario) -> Choice | None:
        recipe = most_frugal(there, wish, progress)
        return recipe and of_recipe(there, recipe)

    find = on_one if alone else on_multi_gpu
    for what, there, choice, fields in with_less(scenario, wish, find):
        yield Alternative(what, _command(there, wish, choice.gpus, fields), choice)


def with_less(
    scenario: Scenario, wish: "Wish", find: Callable[[Scenario], _Found | None]
) -> Iterator[tuple[str, Scenario, _Found, dict[str, Any]]]:
    """Yield TRL's loop and the job's own, each with the longest block for which something is found.

    In words, as it is run, what was found, and its fields; a block is halved until `find` has it.
    """
    given = {name: getattr(scenario.job, name) for name in sorted(wish.named)}
    longest = scenario.job.block or 0

    def in_trls(block: int) -> Scenario:
        fields = {**given, "loop": TRL_LOOPS[0], "block": block}
        there = resolve(scenario.values, gpu=scenario.gpu, **fields)
        return replace(there, model=scenario.model, path=scenario.path)

    block = longest
    if _may_be_trls(scenario, wish.named) and (found := _halved(block, in_trls, find)):
        block, there, it = found
        fields = {**given, "loop": TRL_LOOPS[0], "block": block}
        yield "TRL's loop, which computes the loss in chunks of tokens", there, it, fields
    shorter = min(block, longest // 2)
    if found := _halved(shorter, lambda tokens: variant(scenario, block=tokens), find):
        block, there, it = found
        yield sequences_of(block), there, it, {**given, "block": block}


def sequences_of(block: int) -> str:
    """Return in words that sequences are as short as that."""
    return f"sequences of {block:,} tokens"


def _may_be_trls(scenario: Scenario, named: Collection[str]) -> bool:
    is_plain = scenario.job.loop == "plain" and "loop" not in named
    return is_plain and scenario.job.task == "causal-lm" and scenario.run is None


def _halved(
    block: int, at: Callable[[int], Scenario], find: Callable[[Scenario], _Found | None]
) -> tuple[int, Scenario, _Found] | None:
    """Return the first block, halved and halved again, for which something is found."""
    while block >= _SHORTEST:
        try:
            there = at(block)
        except VramBudgetError:  # this model has no such loop, or no such block
            return None
        if (found := find(there)) is not None:
            return block, there, found
        block //= 2
    return None


def most_frugal(scenario: Scenario, wish: "Wish", progress: Callable[[], object]) -> Recipe | None:
    """Return the most frugal recipe of the goal that fits one GPU, None if none does."""
    found = recipes_of(scenario, wish, progress, kinds=GOALS[wish.goal][-1:])
    return found[0] if found else None


def recipes_of(
    scenario: Scenario,
    wish: "Wish",
    progress: Callable[[], object],
    skip: Callable[[VramBudgetError], object] = lambda _: None,
    *,
    kinds: Sequence[Trained] | None = None,
) -> list[Recipe]:
    """Return the recipes for one GPU; `kinds`: of these alone, and not of the whole goal."""
    return recipes(
        scenario,
        kinds or GOALS[wish.goal],
        named=wish.named,
        per_step=wish.per_step,
        margin_bytes=wish.margin_bytes,
        suits=wish.suits,
        autocast=wish.autocast,
        progress=progress,
        skip=skip,
    )


def _command(scenario: Scenario, wish: "Wish", gpus: int, fields: dict[str, Any]) -> str:
    count = how_many(gpus, wish.per_node) if gpus > 1 else ""
    words = [model_word(scenario), "--gpu", f"{count}{gpu_word(scenario)}"]
    words += ["--goal", wish.goal] if wish.goal != "any" else []
    words += ["--per-step", str(wish.per_step)] if wish.per_step else []
    words += ["--margin", f"{wish.margin_bytes}B"] if wish.margin_bytes else []
    return f"vrambudget plan {shlex.join([*words, *option_words(fields)])}"
