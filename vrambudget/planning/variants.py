"""The same task with something changed: `variant(task, batch=8, checkpointing="full")`.

A sequence-to-sequence job whose targets are as long as its block keeps them so when the block
changes.
"""

from dataclasses import replace
from typing import Any

from vrambudget.estimator import Task


def variant(task: Task, **fields: Any) -> Task:
    """Return `task` with these fields of its job. Raises VramBudgetError for a block too long.

    The values are taken as they are: a caller that has them from a user has them checked before.
    """
    if "block" in fields and task.job.target_len == task.job.block:
        fields.setdefault("target_len", None)  # resolved: as long as the block
    job = task.job.model_copy(update=fields)
    return replace(task, job=job.resolve(task.config.for_job(job)))
