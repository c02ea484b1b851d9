"""The configuration of a model that has a program: its keys, held against what was recorded.

A key that the program leaves free is a size; any other must be as it was recorded. What a file does
not name is what transformers would make of it, which the program says, too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.unfamiliar import decodes, length_of, named_tasks, tasks_of
from vrambudget.config.versions import as_numbers, checked_version
from vrambudget.dtypes import float32, int64
from vrambudget.engine.context import context
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.expressions import LARGEST
from vrambudget.expressions import value as size_of
from vrambudget.program.form import Program, Variant
from vrambudget.program.generator import CALLS, Generator, GeneratorConfig
from vrambudget.program.guards import check_guards, derive
from vrambudget.program.jobs import check_has_all, not_recorded, played, unrecorded, untraced
from vrambudget.program.keys import bound_keys, said_by, skipped_at_random, unknown_in
from vrambudget.program.player import Played
from vrambudget.program.reading import named_errors
from vrambudget.program.values import Values
from vrambudget.training.inputs import Input

_PIXELS, _SOUND = "pixel_values", "input_features"
_VERSION = "5.17"
"""Of transformers, where a program names none for its jobs."""


class ProgramConfig(GeneratorConfig):
    """The keys as they were found, the programs, and the job."""

    job: Job | None = None

    @property
    def loads_in_4bit(self) -> bool:  # type: ignore[override]
        """Whether transformers loads it: a module of one's own it does not."""
        return not self.is_file

    @property
    def checked_with(self) -> tuple[str, ...]:  # type: ignore[override]
        """The versions of transformers whose code was recorded, the oldest first."""
        if self.programs and {"timm", "ultralytics"} & self.first.source.keys():
            return ()
        every = [v for each in self.programs for v in each.when.get("transformers", [_VERSION])]
        return tuple(sorted(set(every), key=as_numbers))

    @property
    def tasks(self) -> tuple[Task, ...]:  # type: ignore[override]
        """The tasks that its architectures name, though not recorded, and those that were."""
        recorded = [task for task in _tasks(self.programs) if task != "embed"]
        return tuple(dict.fromkeys([*named_tasks(self.keys), *recorded])) or tasks_of(self.keys)

    @property
    def attentions(self) -> tuple[str, ...]:  # type: ignore[override]
        """The ways of attending that were recorded, both where it makes no difference."""
        ways = [way for variant in self.programs for way in variant.when.get("attention", ())]
        return tuple(dict.fromkeys(ways)) or ("sdpa", "eager")

    @property
    def checkpointing(self) -> tuple[str, ...]:  # type: ignore[override]
        """The ways of checkpointing that its code has."""
        with self.named_errors():
            return ("none", "full") if any(row[5] for row in self.first.stacks) else ("none",)

    @property
    def default_block(self) -> int:
        """Tokens per sequence if a job names none."""
        if self.is_file:
            return 1
        if self.image_shape is not None:
            return self.learned_positions or 1
        return min(length_of(self.keys), self.learned_positions or LARGEST)

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """Channels, height and width of the images that the model reads; None for text."""
        found = self._shape_of(_PIXELS)
        return None if found is None else (found[0], found[1], found[2])

    @property
    def sound_shape(self) -> tuple[int, int] | None:
        """Bins of mel and frames of the sound that the model hears; None where it hears none."""
        found = self._shape_of(_SOUND)
        return None if found is None else (found[0], found[1])

    def _shape_of(self, wanted: str) -> list[int] | None:
        """Return the shape of one row of an input, None where the program takes none such."""
        found = next((shape for name, shape, *_ in self.first.inputs if name == wanted), None)
        if found is None:
            return None
        sizes: list[int] = Values(bound_keys(self.first, self.keys), float32, None).of(found[1:])
        return sizes

    @property
    def reads_attention_mask(self) -> bool:  # type: ignore[override]
        """Whether its rows may be masked: images and sound are not."""
        return self.image_shape is None and self.sound_shape is None

    @property
    def reads_position_ids(self) -> bool:
        """Whether it takes positions [B, T]: those of what is heard are the model's own."""
        return self.keeps_cache and self.sound_shape is None

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None if they are computed.

        Rows up to that of padding stand for no token: it may be another than was recorded.
        """
        text, recorded = self.first.source.get("positions"), self.first.source.get("padding")
        if text is None:
            return None
        positions: int = size_of(text, bound_keys(self.first, self.keys))
        if recorded is None:
            return positions
        padding: int | None = self.keys.get("pad_token_id", recorded)
        return positions + int(recorded) - (-1 if padding is None else padding)

    def without_positions(self) -> str | None:
        """Say that no row of the table of positions is left for a token, None where one is."""
        if self.learned_positions is None or self.learned_positions > 0:
            return None
        sizes = bound_keys(self.first, self.keys)
        named = re.findall(r"[a-z]\w+", self.first.source["positions"])
        said = " and ".join(f"{name} is {sizes[name]}" for name in named)
        if (padding := self.keys.get("pad_token_id")) and "padding" in self.first.source:
            said += f", of which the first {padding + 1} are padding's"
        return f"{said}: no position is left for a token"

    @property
    def job_defaults(self) -> dict[str, Any]:
        """Return what a job is, unless it says otherwise."""
        return {"task": self.tasks[0]}

    @property
    def keeps_cache(self) -> bool:
        """Whether it is a decoder that keeps keys and values in training, too (use_cache)."""
        return not self.is_file and decodes(
            {**self.keys, "architectures": [self.first.source.get("class", "")]}
        )

    def for_job(self, job: Job) -> Any:
        """Return the configuration with the job; where it was not recorded, one that is traced."""
        if job.checkpointing not in self.checkpointing:
            if (own := self._traced(self.keys, job)) is not None:
                return own
            raise NotModelledError(
                f"checkpointing {job.checkpointing} is not modelled for {self.model_type}",
                hint=f"it has {', '.join(self.checkpointing)}",
            )
        checked = checked_version(job.transformers, self.checked_with)
        programs = tuple(
            each for each in self.programs if checked in each.when.get("transformers", [checked])
        )
        keys = dict(self.keys)
        if job.image_size and not self.is_file:  # its table of positions is as large
            keys["image_size"] = job.image_size
        own = self.model_copy(update={"job": job, "programs": programs, "keys": keys})
        is_played = self.is_file or untraced(job)  # nothing else can
        if job.task is None or is_played or not isinstance(job.batch, int):
            return own
        if job.attention_mask not in {None, "none"} and not own.reads_attention_mask:
            return own  # it is refused by name
        if isinstance(job.block, int) and job.block > (own.learned_positions or LARGEST):
            return own  # as is a row that is too long
        try:
            own.chosen(job.task)
        except NotModelledError:
            own = self._traced(keys, job) or own
        return own

    @staticmethod
    def _traced(keys: Mapping[str, Any], job: Job) -> Any:
        """Return the configuration of the model's own code, None where torch is not here."""
        from vrambudget.config.source import find_model  # noqa: PLC0415 - few jobs need it
        from vrambudget.traced.config import traced_config  # noqa: PLC0415 - it asks for torch

        try:
            return traced_config(find_model(keys), NotModelledError("")).for_job(job)
        except NotModelledError:
            return None

    def chosen(self, task: Task, call: str = "whole") -> tuple[Program, dict[str, int]]:
        """Return the program that was recorded for such a job, and its sizes.

        Raises NotModelledError, with the nearest reason, where none was.
        """
        job, refusal, nearest = self.job, None, None
        own_length = job is not None and job.target_len not in {None, job.block}
        if own_length and self.sound_shape is None and "target" not in self.first.sizes:
            raise unrecorded(self.model_type, "with labels of another length", job)
        for variant in self.programs:
            if (wrong := not_recorded(variant.when, task, job, call)) is not None:
                refusal = refusal or unrecorded(self.model_type, wrong, job)
                continue
            try:
                with self.named_errors():
                    self._sizes(variant.head)  # most of others' jobs end here, unread
                    return played(variant.program, job), self._sizes(variant.program)
            except NotModelledError as error:
                nearest = nearest or error
        raise nearest or refusal or NotModelledError(f"{self.model_type} has no program")

    def named_errors(self) -> AbstractContextManager[None]:
        """Return what the program is simulated in."""
        return named_errors(self.first.where)

    def _sizes(self, program: Program) -> dict[str, int]:
        """Return the sizes in a program. Raises NotModelledError where it is of another job."""
        job = self.job
        if job is not None:
            check_has_all(program, job, self.model_type)
        sizes = program.own_sizes() | bound_keys(program, self.keys)
        if job is None:
            return sizes
        hears = self.sound_shape is not None
        if hears and (job.target_len or 0) > (self.learned_positions or LARGEST):
            raise VramBudgetError(
                f"target_len is {job.target_len}; the decoder has positions for"
                f" {self.learned_positions} tokens"
            )
        own = (job.prompt, job.new) if job.mode == "generate" else (job.block, job.target_len)
        length = own[1] if hears else own[0]
        if isinstance(length, int):
            jobs = {"length": length, "batch": job.batch, "target": own[1] or length}
            check_guards(program, sizes | jobs)
        return sizes

    @property
    def reads_channels_last(self) -> bool:  # type: ignore[override]
        """Whether weights that lie so were recorded."""
        return any("channels_last" in variant.when for variant in self.programs)

    @property
    def is_file(self) -> bool:
        """Whether it is a file's program, whose model has inputs of its own."""
        return bool(self.first.source.get("inputs"))

    def own_inputs(self, job: Job) -> Mapping[str, Any] | None:
        """Return the tensors that a recorded module is called with, for this job's sizes."""
        program = self.first
        if not self.is_file:
            return self._seen_or_heard(job)
        sizes = program.own_sizes() | {"batch": job.batch}
        sizes |= {"length": job.block} if "length" in program.sizes and job.block else {}
        for name in ("height", "width"):
            if name in program.sizes and job.image_size:
                sizes[name] = job.image_size
        derive(program, sizes)
        check_guards(program, sizes)
        values = Values(sizes, float32, None)
        return {
            name: Input(tuple(values.of(shape)), values.of(dtype), keeps_dtype=True)
            for name, shape, dtype, _ in program.inputs
        }

    def _seen_or_heard(self, job: Job) -> Mapping[str, Any] | None:
        """Return images or sound, and their labels, None for text."""
        if self.image_shape is not None:
            return {
                "pixel_values": Input((job.batch, *self.image_shape), float32),
                "labels": Input((job.batch,), int64),
            }
        if self.sound_shape is None:
            return None
        heard = {"input_features": Input((job.batch, *self.sound_shape), float32)}
        if job.target_len is None:  # to generate
            return heard
        return {**heard, "labels": Input((job.batch, job.target_len), int64)}

    def notes(self) -> Iterator[str]:
        """Yield how the model is estimated."""
        if self.is_file:
            yield f"{self.model_type} is estimated from a recording of its own code"
            if "assumes" in self.first.source:
                yield f"assumed: {self.first.source['assumes']}"
            return
        yield (
            f"{self.model_type} is estimated from a recording of its own code (transformers"
            f" {self.first.source.get('transformers')})"
        )
        yield from skipped_at_random(self.keys, self.first.source)

    def build(self, task: Task) -> Any:
        """Return the model, its weights allocated."""
        if self.job is not None and self.job.mode == "generate" and self.new_cache() is not None:
            calls = {name: self.chosen(task, name)[0] for name in CALLS}
            own = bound_keys(self.first, self.keys)
            return Generator(
                self.programs[0].program, calls, own, said_by(self.first, self.keys, self.job)
            )
        program, sizes = self.chosen(task)
        if "cublas_bytes" in program.source:
            own_bytes = program.source["cublas_bytes"]
            context.platform = replace(context.platform, cublas_bytes=own_bytes)
        found = Played(program, sizes, said_by(program, self.keys, self.job))
        if self.job and self.job.evaluates and program.when.get("checkpointing") == ["full"]:
            evaluating = self.job.model_copy(update={"checkpointing": "none"})
            found.evaluates_by(*self.model_copy(update={"job": evaluating}).chosen(task))
        return found

    def body(self) -> Any:
        """Return the model without a head, its weights allocated."""
        return self.build("embed") if "embed" in _tasks(self.programs) else None


def _tasks(programs: Iterable[Variant]) -> list[Task]:
    return list(dict.fromkeys(t for variant in programs for t in variant.when.get("task", ())))


def configured(
    keys: Mapping[str, Any], programs: tuple[Variant, ...], model_type: str
) -> ProgramConfig:
    """Return the configuration of a model's keys and its programs."""
    labels = keys.get("id2label", (None, None))
    return ProgramConfig.model_construct(
        model_type=model_type,
        keys=dict(keys),
        programs=programs,
        num_labels=keys.get("num_labels", len(labels)),
        unknown_keys=unknown_in(keys, programs),
    )
