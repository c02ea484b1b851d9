"""The same scenario with something changed: `variant(scenario, batch=8, checkpointing="full")`.

A sequence-to-sequence job whose targets are as long as its block keeps them so when the block
changes. A prompt is what a generation's block holds besides its new tokens.
"""

from dataclasses import replace
from typing import Any

from vrambudget.config.foreign.ultralytics import accumulation
from vrambudget.estimator import Traced
from vrambudget.scenario import Scenario

MOST_TRACED = 4  # micro-batches: of 51 jobs sampled, one reserved less than with 16 (2 %)


def variant(scenario: Scenario, **fields: Any) -> Scenario:
    """Return `scenario` with these fields of its job. Raises VramBudgetError for a block too long.

    The values are taken as they are: a caller that has them from a user has them checked before.
    """
    if "block" in fields and scenario.job.target_len == scenario.job.block:
        fields.setdefault("target_len", None)  # resolved: as long as the block
    if "block" in fields and scenario.job.mode == "generate":  # the answer stays as long
        fields["prompt"] = max(1, fields["block"] - scenario.job.new)
    if "batch" in fields:
        fields = {**accumulation(fields["batch"], scenario.per_step), **fields}
    job = scenario.job.model_copy(update=fields)
    return replace(scenario, job=job.resolve(scenario.config.for_job(job)))


def as_traced(traced: Traced) -> Scenario:
    """Return the scenario with the draw that is shown, where lengths change from batch to batch.

    Trying every draw of every change would take five times as long.
    """
    return variant(traced.scenario, draw=traced.budget.job["draw"])
