"""A deep model's recording from those of two shallow ones, where that compiles fewer layers.

    8 and 10 layers of 32                     18 compiled in place of 32, see depths.py
    12 and 14 layers of 48, under autocast    26 compiled in place of 48

Both ends of a graph are laid out in ways of their own, up to eight layers deep, and up to twelve
under autocast. Compiled whole are models whose layers differ, jobs that name some of them, and what
turns out not to repeat.
"""

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

from vrambudget.compiled.depths import UnevenError, deeper
from vrambudget.config.job import Job
from vrambudget.engine.context import ModelOptions, Platform, on_meta, recording
from vrambudget.engine.identical_layers import kinds_of
from vrambudget.engine.module import Module

_LOG = logging.getLogger("vrambudget")
_SHALLOWEST = {False: 8, True: 12}  # layers, by whether the job runs under autocast
_FEWEST = {False: 28, True: 40}  # of a model for which it is worth it
_STEP = 2  # Inductor orders the buffers of every other layer differently
_NUMBERS = ("parameters", "trainable", "paged_bytes")
_FIELDS = ("num_hidden_layers", "n_layers")
_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_ONE_LAYER = re.compile(r"(^|\.)\d+(\.|$)")


def shallowly(
    config: Any, job: Job, platform: Platform, simulated: Callable[[Any], Any], record: Any
) -> Any:
    """Return the recording of a job; `simulated` makes that of a configuration."""
    casts = job.autocast_dtype is not None
    layers = _repeated_layers(config, job, platform, _FEWEST[casts])
    if not layers:
        return simulated(config)
    few = _SHALLOWEST[casts] + layers % _STEP
    more, times = few + _STEP, (layers - few) // _STEP
    shallow, deep = (simulated(_of_depth(config, depth)) for depth in (few, more))
    try:
        tape = deeper(shallow.tape, deep.tape, times)
    except UnevenError:
        _LOG.info("its layers do not repeat when compiled: all %d are compiled", layers)
        return simulated(config)
    _LOG.info("its %d layers are replayed as those of %d and of %d repeat", layers, few, more)
    numbers = {name: (getattr(shallow, name), getattr(deep, name)) for name in _NUMBERS}
    return record(tape, **{name: a + times * (b - a) for name, (a, b) in numbers.items()})


def _repeated_layers(config: Any, job: Job, platform: Platform, fewest: int) -> int:
    """Return how many layers the model has, 0 if fewer than asked for or one is unlike others."""
    field = next((name for name in _FIELDS if name in type(config).model_fields), None)
    layers: int = getattr(config, field) if field else 0
    named = [*_names(job.freeze), *_names(job.lora_targets)]
    if layers < fewest or not config.keys or any(map(_ONE_LAYER.search, named)):
        return 0
    eager = config.for_job(job.model_copy(update={"compile": False}))
    with recording(platform, ModelOptions()), on_meta():
        stacks = [
            value
            for module in eager.build(job.task).modules()
            for value in module.__dict__.values()
            if isinstance(value, list) and len(value) == layers
        ]
        stacks = [each for each in stacks if all(isinstance(item, Module) for item in each)]
        return layers if len(stacks) == 1 and not any(kinds_of(stacks[0])[0]) else 0


def _names(given: Any) -> Iterator[str]:
    yield from [given] if isinstance(given, str) else given or ()


def _of_depth(config: Any, layers: int) -> Any:
    """Return the configuration with so many layers."""
    keys = dict(config.keys)
    usual = "n_layer" if keys.get("model_type") == "nanogpt" else "num_hidden_layers"
    name = next((key for key in _KEYS if key in keys), usual)
    return config.model_copy(update={"keys": {**keys, name: layers}})
