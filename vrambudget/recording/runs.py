"""One recording of a configuration's model, in one job."""

import contextlib
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from unittest.mock import patch

import transformers

from vrambudget.config.job import Job
from vrambudget.config.said_by_config import caches
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.recording.casts import casting
from vrambudget.recording.folding import calls_of
from vrambudget.recording.generation import CALLED, RecordedError, calling
from vrambudget.recording.keys import Values
from vrambudget.recording.listener import Listener
from vrambudget.recording.models import BuiltError
from vrambudget.recording.sized import Size
from vrambudget.recording.tracing import listening
from vrambudget.scenario import platform_of
from vrambudget.simulate import simulate
from vrambudget.traced import build, kernels
from vrambudget.traced.config import TracedConfig

BATCH, LENGTH = 3, 40
"""What is recorded, where a job names no other length."""


RATES = [0.1003 + 0.007 * n for n in range(16)]
"""Rates of dropout that a recording tells apart, whatever else its numbers are."""


def rates_in(values: Values) -> dict[float, str]:
    """Return the keys of dropout and soft caps by their rates, where a recording set them."""
    marked = ("drop", "softcap")
    return {v: k for k, v in values.items() if v in RATES and any(m in k for m in marked)}


def traced(values: Values, **fields: Any) -> tuple[TracedConfig, Job]:
    """Return the traced configuration of a job, and the job resolved."""
    fields = {"batch": BATCH, "block": LENGTH, "precision": "bf16", "steps": 1, **fields}
    known = TracedConfig.model_construct(model_type=values["model_type"], keys=dict(values))
    cached = known.keeps_cache and caches(values, fields)
    job = Job.with_defaults(fields, {**known.job_defaults, "use_cache": cached})
    resolved = job.resolve(known.for_job(job))
    return known.for_job(resolved), resolved


def recording(
    values: Values, sizes: frozenset[str] = frozenset(), *, ends_built: bool = False, **job: Any
) -> Listener:
    """Return what a configuration's model does in a job, or only how it is built (`ends_built`)."""
    call = {key: job.pop(key) for key in CALLED if key in job}
    config, resolved = traced(values, **job)
    listener = Listener()
    listener.ends_built = ends_built
    listener.rates = rates_in(values)
    configuration = build.configuration

    def made(keys: Mapping[str, Any], job: Any) -> Any:
        own = configuration(keys, job)
        for key in sizes:
            if type(getattr(own, key, None)) is int:
                vars(own)[key] = Size(getattr(own, key))
        return own

    with (
        listening(listener),
        _reading(listener),
        patch.object(build, "configuration", made),
        calling(listener, call),
        casting(values["model_type"]),
        patch("transformers.modeling_utils.checkpoint", _unchecked),
    ):
        try:
            simulate(config, resolved, platform_of(None, resolved.torch))
        except BuiltError:
            return listener
        except RecordedError:
            pass
        except VramBudgetError:
            raise
        except Exception as error:  # what a configuration's own checks raise
            raise NotModelledError(f"{type(error).__name__}: {error}") from error
    _note_calls(listener)
    if kernels.unchecked:
        names = ", ".join(sorted(kernels.unchecked))
        listener.problem(f"what the kernels of {names} allocate besides their results is not known")
    return listener


def _unchecked(layer: Any, *given: Any, **_: Any) -> Any:
    """Run a layer that is a checkpoint as any other: when it is played, it is one."""
    return layer(*given)


def _note_calls(listener: Listener) -> None:
    """Note of a stack whose layers are called again how often they are."""
    stacks = listener.facts["stacks"]
    entered = [state.path.rpartition(".")[0] for state, row in listener.rows if row[0] == "enter"]
    for stack in set(entered):
        if entered.count(stack) > stacks.get(stack, len(entered)):
            stacks[calls_of(stack)] = entered.count(stack)
            del stacks[stack]


_ASKS = re.compile(r"transformers\.(models\.(?!auto)|masking_utils|cache_utils|modeling_)")
"""Modules that ask for keys (`getattr(config, key, default)`) to decide something; others ask
everything of every configuration."""


@contextlib.contextmanager
def _reading(listener: Listener) -> Iterator[None]:
    """Note the keys of configurations that are read while a model is built and run."""
    name = "PreTrainedConfig" if hasattr(transformers, "PreTrainedConfig") else "PretrainedConfig"
    base: Any = getattr(transformers, name)  # until 5.0 with a small t
    get = base.__getattribute__

    def reading(self: Any, key: str) -> Any:
        try:
            found = get(self, key)
        except AttributeError:
            asking = sys._getframe(1).f_globals["__name__"]  # noqa: SLF001 - the only way to it
            if key[:1] != "_" and _ASKS.match(asking):
                listener.missing.add(key)
            raise
        if not key.startswith("_") and not callable(found):
            listener.read.add((type(self).__name__, get(self, "attribute_map").get(key, key)))
        return found

    with patch.object(base, "__getattribute__", reading):
        yield
