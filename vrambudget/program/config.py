"""The configuration of a model that has a program: its keys, held against what was recorded.

A key that the program leaves free is a size; any other must be as it was recorded. What a file does
not name is what transformers would make of it, which the program says, too.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field, show
from vrambudget.config.unfamiliar import decodes, length_of, tasks_of
from vrambudget.dtypes import float32
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.program.bound import Values
from vrambudget.program.expressions import LARGEST
from vrambudget.program.expressions import value as size_of
from vrambudget.program.form import Program, judging
from vrambudget.program.guards import all_known, check_guards, derive
from vrambudget.program.player import Played
from vrambudget.training.inputs import Input

_MISSING = object()
TRACED = (
    "its own code is traced if torch and transformers are installed:"
    " pip install 'vrambudget[torch]'"
)


class ProgramConfig(ModelConfig):
    """The keys as they were found, the program, and the job."""

    keys: Mapping[str, Any] = Field(default_factory=dict, description="the configuration")
    programs: Any = ()
    job: Job | None = None

    tasks = tasks_of({})
    followed_in = ("5.17",)
    loads_in_4bit = False
    attentions = ("sdpa",)

    @property
    def default_block(self) -> int:
        """Tokens per sequence if a job names none."""
        return length_of(self.keys)

    @property
    def job_defaults(self) -> dict[str, Any]:
        """Return what a job is, unless it says otherwise."""
        return {"task": self.programs[0].source.get("task") or tasks_of(self.keys)[0]}

    @property
    def keeps_cache(self) -> bool:
        """Whether it is a decoder that keeps keys and values in training, too (use_cache)."""
        return decodes({**self.keys, "architectures": [self.programs[0].source.get("class", "")]})

    def for_job(self, job: Job) -> Any:
        """Return the configuration with the job; where it was not recorded, one that is traced."""
        own = self.model_copy(update={"job": job})
        if job.task is None or self.is_file or not isinstance(job.batch, int):
            return own
        try:
            own.chosen(job.task)
        except NotModelledError:
            own = self._traced(job) or own
        return own

    def _traced(self, job: Job) -> Any:
        """Return the configuration of the model's own code, None where torch is not here."""
        from vrambudget.config.source import find_model  # noqa: PLC0415 - few jobs need it
        from vrambudget.traced.config import traced_config  # noqa: PLC0415 - it asks for torch

        try:
            return traced_config(find_model(self.keys), NotModelledError("")).for_job(job)
        except NotModelledError:
            return None

    def chosen(self, task: Task) -> tuple[Program, dict[str, int]]:
        """Return the program that was recorded for such a job, and its sizes.

        Raises NotModelledError, with the first reason, where none was.
        """
        refusal: NotModelledError | None = None
        for program in self.programs:
            try:
                with self.judged():
                    return program, self._sizes(program, task)
            except NotModelledError as error:
                refusal = refusal or error
        assert refusal is not None  # noqa: S101 - there is a program
        raise refusal

    def _sizes(self, program: Program, task: Task) -> dict[str, int]:
        """Return the sizes in a program. Raises NotModelledError where it is of another job."""
        wrong = _not_recorded(program, task, self.job)
        if wrong is not None:
            raise NotModelledError(f"{self.model_type} {wrong} was not recorded", hint=TRACED)
        sizes = bound_keys(program, self.keys)
        if self.job is not None and isinstance(self.job.block, int):
            check_guards(program, {**sizes, "length": self.job.block, "batch": self.job.batch})
        return sizes

    @property
    def is_file(self) -> bool:
        """Whether it is a file's program, whose model has inputs of its own."""
        return bool(self.programs[0].source.get("inputs"))

    def own_inputs(self, job: Job) -> Mapping[str, Any] | None:
        """Return the tensors that a recorded module is called with, for this job's sizes."""
        program = self.programs[0]
        if not self.is_file:
            return None
        sizes = {**program.source.get("sizes", {}), "batch": job.batch}
        sizes |= {"length": job.block} if "length" in program.sizes and job.block else {}
        for name in ("height", "width"):
            if name in program.sizes and job.image_size:
                sizes[name] = job.image_size
        derive(program, sizes)
        values = Values(sizes, float32, None)
        return {
            name: Input(tuple(values.of(shape)), values.of(dtype), keeps_dtype=True)
            for name, shape, dtype in program.inputs
        }

    def notes(self) -> Iterator[str]:
        """Yield how the model is counted."""
        source = self.programs[0].source
        yield (
            f"{self.model_type} is played from a program of its own code, recorded with"
            f" transformers {source.get('transformers')}"
        )

    def judged(self) -> AbstractContextManager[None]:
        """Return what the program is simulated in."""
        return judging(self.programs[0].where)

    def build(self, task: Task) -> Any:
        """Return the model, its weights allocated."""
        program, sizes = self.chosen(task)
        return Played(program, sizes, self.job)


def _not_recorded(  # noqa: PLR0911 - one question after the other
    program: Program, task: Task, job: Job | None
) -> str | None:
    """Return what of a job the recording says nothing of, None where it says all."""
    source = program.source
    if source.get("task") not in {None, task}:
        return f"for {task}"
    if job is None:
        return None
    modes = source.get("modes", ["train", "eval"])
    if job.mode not in modes:
        return f"in mode {job.mode}"
    if job.model_mode not in modes:
        return f"in model mode {job.model_mode}"
    if bool(job.use_cache) != bool(source.get("use_cache", job.use_cache)):
        return "with a cache" if job.use_cache else "without a cache"
    for asked, what in (
        (job.layout.ranks > 1, f"on {job.layout.ranks} GPUs"),
        (job.attention != "sdpa", f"with {job.attention} attention"),
        (job.experts != "grouped_mm", f"with experts run {job.experts}"),
        (job.checkpointing not in {"none", "full"}, f"with checkpointing {job.checkpointing}"),
        (bool(job.image_size) and not source.get("inputs"), "with another image size"),
        (job.loop in TRL_LOOPS, f"in loop {job.loop}"),
        (bool(job.compile), "compiled"),
        (job.lora_rank is not None and _has_experts(program), "with LoRA beside experts"),
    ):
        if asked:
            return what
    return None


def _has_experts(program: Program) -> bool:
    """Return whether experts' weights are parameters [experts, ...] of no linear layer."""
    return any(w == "weight" and len(v[2]) > 2 and "expert" in v[0] for w, v in program.built)  # noqa: PLR2004


def bound_keys(  # noqa: C901 - one rule a kind of key
    program: Program, keys: Mapping[str, Any]
) -> dict[str, int]:
    """Return a configuration's sizes. Raises NotModelledError for one that was not recorded."""
    named = _standard(keys, program.keys)
    sizes: dict[str, int] = {}
    waiting: dict[str, str] = {}
    for key, rule in program.keys.items():
        if key == "attribute_map":
            continue
        value = _value(named, key, rule)
        if rule.get("free"):
            if isinstance(value, str) and value[:1] == "=":
                waiting[key] = value[1:]
            elif type(value) is not int or not 0 <= value <= LARGEST:
                came = "missing" if value is _MISSING else show(value)
                raise NotModelledError(
                    f"{key} is {came}; the program takes a whole number", hint=TRACED
                )
            else:
                sizes[key] = value
        elif "layers" not in rule:
            _hold(key, value, rule)
    for key, text in waiting.items():
        if not all_known(text, sizes):
            raise NotModelledError(f"{key} is missing: it follows from {text}", hint=TRACED)
        sizes[key] = size_of(text, sizes)
    for key, rule in program.keys.items():
        if "layers" in rule and key in named:
            _hold_layers(program, key, rule["layers"], named[key], sizes)
    derive(program, sizes)
    check_guards(program, sizes)
    return sizes


def _value(named: Mapping[str, Any], key: str, rule: Mapping[str, Any]) -> Any:
    """Return what a configuration says of a key, like "outer.inner", or what holds without."""
    found: Any = named
    for part in key.split("."):
        found = found.get(part, _MISSING) if isinstance(found, Mapping) else _MISSING
    if found is _MISSING or (found is None and rule.get("free")):
        return rule.get("default", _MISSING)
    return found


def _hold(key: str, value: Any, rule: Mapping[str, Any]) -> None:
    """Raise NotModelledError where a key is not as it was recorded."""
    if rule.get("nonzero"):
        if value is _MISSING or (isinstance(value, int | float) and value):
            return
        raise NotModelledError(f"{key} is {show(value)}; it was recorded above 0", hint=TRACED)
    if value is not _MISSING and value == rule["is"] and type(value) is not bool:
        return
    if type(value) is bool and value is rule["is"]:
        return
    came = "missing" if value is _MISSING else show(value)
    raise NotModelledError(f"{key} is {came}; it was recorded as {show(rule['is'])}", hint=TRACED)


def _hold_layers(
    program: Program, key: str, recorded: list[Any], given: Any, sizes: Mapping[str, int]
) -> None:
    """Raise NotModelledError where kinds of layers do not recur as they were recorded."""
    for _, depth, first, period, layers in program.stacks:
        if depth is None or layers != len(recorded) or period is None:
            continue
        cycle = recorded[first : first + period]
        rounds = max((sizes[depth] - first - 1) // period, 0)
        wanted = [*recorded[:first], *(cycle * rounds), recorded[-1]]
        if given == wanted:
            return
    if given != recorded:
        raise NotModelledError(
            f"{key} names other layers than were recorded: {show(recorded)} and so on", hint=TRACED
        )


def _standard(keys: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with transformers' own names for its keys.

    Source: transformers/configuration_utils.py (attribute_map), modeling_rope_utils.py
    (RotaryEmbeddingConfigMixin.convert_rope_params_to_dict), 5.17.
    """
    own = known.get("attribute_map", {})
    named = {own.get(key, key): value for key, value in keys.items()}
    of_rope = [key for key in known if key.startswith("rope_parameters.")]
    if of_rope and "rope_parameters" not in named and {"rope_scaling", "rope_theta"} & set(named):
        scaling = named.get("rope_scaling") or {}
        if not isinstance(scaling, Mapping):
            raise VramBudgetError(f"rope_scaling is {show(scaling)}; it should be an object")
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        named["rope_parameters"] = {
            "rope_theta": named.get("rope_theta", 10000.0),
            **scaling,
            "rope_type": kind,
        }
    return named
