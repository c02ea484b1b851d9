"""A configuration of transformers that has no rules here: its model is followed.

This is all that an estimate sees of it. Building the model imports torch and transformers, in the
versions that are installed: those are the ones whose code runs.

Not modelled: models whose inputs are neither tokens nor images; 4-bit weights.
"""

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any, Self

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field
from vrambudget.config.source import FoundModel
from vrambudget.config.unfamiliar import TEXT_ALONE, decodes, length_of, reads_more, tasks_of
from vrambudget.config.versions import installed_version, plain_version
from vrambudget.errors import NotModelledError

NEEDED = ("torch", "transformers")
_ALL = tasks_of({})


class TracedConfig(ModelConfig):
    """The keys as they were found, and the job that the model is built for."""

    keys: Mapping[str, Any] = Field(default_factory=dict, description="the configuration")
    job: Job | None = Field(None, description="what decides how the model is built")

    checked_with = (plain_version(installed_version("transformers")) or "",)
    tasks = _ALL
    loads_in_4bit = False

    @property
    def default_block(self) -> int:
        """Tokens per sequence if a job names none."""
        return length_of(self.keys)

    def own_inputs(self, job: Job) -> Mapping[str, Any] | None:
        """Return the images, the video or the sound that the model is called with."""
        from vrambudget.traced.build import own_inputs  # noqa: PLC0415 - it imports torch

        return own_inputs(self.keys, job)

    @property
    def job_defaults(self) -> dict[str, Any]:
        """Return what a job is, unless it says otherwise."""
        return {"task": tasks_of(self.keys)[0], "transformers": self.checked_with[0] or None}

    @property
    def keeps_cache(self) -> bool:
        """Whether it is a decoder that keeps keys and values in training, too (use_cache)."""
        return decodes(self.keys)

    def for_job(self, job: Job) -> Self:
        """Return the configuration with the job that its model is built for."""
        return self.model_copy(update={"job": job})

    def notes(self) -> Iterator[str]:
        """Yield how the model is estimated."""
        from vrambudget.traced.build import layers_at_random  # noqa: PLC0415 - it imports torch

        yield f"{self.model_type} has no rules of its own: transformers' code was traced"
        if reads_more(self.keys) and (self.job is None or self.job.task != "contrastive"):
            yield TEXT_ALONE
        if names := layers_at_random(self):
            yield f"{' and '.join(names)}: layers skipped at random are assumed never to be skipped"

    def not_modelled(self) -> Iterator[str]:
        """Yield the operations of the last model built that were traced by results alone."""
        from vrambudget.traced import kernels  # noqa: PLC0415 - it imports torch

        yield from kernels.not_modelled()

    def build(self, task: Task) -> Any:
        """Return the model with the head for `task`, its weights allocated."""
        from vrambudget.traced.build import live_model  # noqa: PLC0415 - it imports torch

        sizes = (self.job.batch, self.job.block) if self.job else ()
        if not all(
            size is None or isinstance(size, int) for size in sizes
        ):  # a sweep's vector of sizes
            raise NotModelledError(
                f"{self.model_type} is traced at one size at a time",
                hint="sweep without --by requested",
            )
        return live_model(self, task)

    def body(self) -> Any:
        """Return the model without a head, its weights allocated."""
        return self.build("embed")


def traced_config(found: FoundModel, error: NotModelledError) -> TracedConfig:
    """Return the configuration of a model to be followed.

    Raises `error`, with the commands that help, where it cannot be.
    """
    model_type = found.values.get("model_type")
    if not isinstance(model_type, str):
        raise error
    if any(importlib.util.find_spec(name) is None for name in NEEDED):
        error.hint = _ways(found, error.hint or "")
        raise error
    from vrambudget.traced.build import knows, usual_class  # noqa: PLC0415 - it imports transformers

    if not knows(model_type):
        raise error
    keys = dict(found.values)
    if not keys.get("architectures"):
        keys["architectures"] = usual_class(keys)
    return TracedConfig.model_construct(model_type=model_type, keys=keys)


def _ways(found: FoundModel, hint: str) -> str:
    """Return the commands that answer for a model that only its own code describes."""
    near = "" if found.card else hint.partition("modelled are")[0]  # a slip in model_type
    name = found.name if found.card or "/" in found.name else found.where
    name = name if found.card or "/" in name else "path/to/config.json"
    return (
        f"{near}its own code is traced if torch and transformers are installed:"
        " pip install 'vrambudget[torch]'; or"
        f" `vrambudget rehearse --gpu GPU {name}` runs it on a virtual GPU"
    )
