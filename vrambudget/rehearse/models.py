"""The job of a model that is named: one that estimates follow, or any other class of transformers.

A class without rules here is built by transformers' Auto classes like the others; its task is what
its configuration's `architectures` say. The measuring loop then feeds it what the task takes.

Not modelled: classes whose inputs are neither tokens nor images of three channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.said_by_config import caches
from vrambudget.config.source import find_model
from vrambudget.config.unfamiliar import decodes, length_of, tasks_of
from vrambudget.errors import NotModelledError
from vrambudget.measure.record import record_of, record_of_job
from vrambudget.scenario import resolve


@dataclass(frozen=True, slots=True)
class _Unfollowed:
    """What `Job.resolve` asks of a configuration."""

    tasks: tuple[Task, ...]
    default_block: int | None
    sees_packed_rows = True  # what a mask decides is its own code's
    learned_positions: int | None = None
    attentions: tuple[str, ...] = ("sdpa", "eager")


def job_of(model: str | Path | Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job of a record. Raises VramBudgetError where there is no such model."""
    try:
        return record_of(resolve(model, **fields))
    except NotModelledError:
        found = find_model(model)
        if not found.values.get("model_type"):
            raise
    own = found.job_defaults
    cached = decodes(found.values) and caches(found.values, {**own, **fields})
    job = Job.with_defaults(fields, {"use_cache": cached, **own})
    job = job.resolve(_Unfollowed(tasks_of(found.values), length_of(found.values)))
    return record_of_job(found.name, dict(found.values), job)
