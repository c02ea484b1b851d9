"""The longest answer that a GPU has room for: how many new tokens a generation may have.

Where a cache grows, bounds or one replay step by step say it (`vrambudget.full_length`). Where the
number of new tokens decides before the first step (a static cache, beams), answers are tried.
"""

from vrambudget.errors import VramBudgetError
from vrambudget.full_length import MOST, full_in
from vrambudget.planning.fit import Search
from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay_on

_SHORT = 4  # new tokens of the job that is looked at first


def longest_answer(scenario: Scenario, *, margin_bytes: int = 0) -> tuple[int, int]:
    """Return how many new tokens surely fit, 0 if the prompt alone does not, and the most that may.

    They are one number, unless a replay of all steps would take long.
    """
    if scenario.gpu is None:
        raise VramBudgetError("no GPU was named", hint="add --gpu, for example --gpu 12GB")
    if scenario.job.mode != "generate":
        raise VramBudgetError(
            f"mode is {scenario.job.mode!r}, which has no new tokens", hint="add --mode generate"
        )
    short = variant(scenario, new=_SHORT)
    tape = simulate(short.config, short.job, short.platform).tape
    full = replay_on(tape, scenario.gpu.available_bytes - margin_bytes)
    prompt, positions = short.job.prompt or 0, scenario.config.learned_positions
    most = MOST if positions is None else positions - prompt
    steps = full_in(short, tape, full, margin_bytes=margin_bytes)
    if steps is None or short.job.num_beams > 1:
        search = Search(scenario, "new", margin_bytes)
        search.end = most + 1
        return (found := search.largest()), found
    return min(steps.start, most), min(steps.stop - 1, most)
