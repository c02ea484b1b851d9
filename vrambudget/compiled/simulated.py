"""A compiled job's tape: from the cache, or compiled once, or twice if padding matters.

PyTorch benchmarks on the GPU whether to pad matrix products, which cannot be known here. So both
ways are compiled, and the larger peak counts, unless the configuration says what the benchmark
finds.

Source: torch/_inductor/fx_passes/pad_mm.py (should_pad).
"""

from collections.abc import Callable
from typing import Any

from vrambudget.compiled import cache
from vrambudget.compiled.config import installed_torch
from vrambudget.compiled.findings import findings
from vrambudget.compiled.process import elsewhere
from vrambudget.config.job import Job
from vrambudget.config.versions import without_code
from vrambudget.engine.context import Platform
from vrambudget.errors import NotModelledError

_NUMBERS = ("parameters", "trainable", "paged_bytes")


def fullest(
    config: Any, job: Job, platform: Platform, simulated: Callable[[Any], Any], recording: Any
) -> Any:
    """Return the recording of the larger peak; `recording` makes one of a tape that was kept.

    It is compiled in a process of its own, but for a live module, which cannot be sent there.
    Raises NotModelledError where PyTorch's compiler cannot run, or was not checked.
    """
    if missing := without_code(job.torch, platform.compute_capability):
        raise NotModelledError(f"it cannot be compiled: {missing}")
    if not config.keys:  # a live module: what it is made of is not known by name
        config.refuse(job)
        return _compiled(config, job, simulated)
    place = cache.place_of(config.keys, job, platform, pads=config.pads)
    found = cache.kept(place)
    if found is None:
        config.refuse(job)
        is_damaged = place.exists()
        text = elsewhere(_written, config, job, simulated)
        found = cache.read(text)
        findings.damaged = str(place) if is_damaged else ""
        cache.keep(place, text)
    tape, numbers = found
    return recording(tape, **numbers)


def _written(config: Any, job: Job, simulated: Callable[[Any], Any]) -> bytes:
    """Return the recording of the larger peak as the cache keeps it."""
    made = _compiled(config, job, simulated)
    return cache.written(made.tape, {name: getattr(made, name) for name in _NUMBERS})


def _compiled(config: Any, job: Job, simulated: Callable[[Any], Any]) -> Any:
    findings.begin(installed_torch(), job.torch)
    plain = simulated(config)
    from vrambudget.traced import kernels  # noqa: PLC0415 - torch is imported by now

    findings.not_modelled = list(kernels.not_modelled())
    if config.pads is not None or not findings.asked:
        return plain
    padded = simulated(config.model_copy(update={"pads": True}))
    without, within = (recording.tape.peak_requested_bytes() for recording in (plain, padded))
    findings.padded = (without, within) if without != within else None
    return padded if within > without else plain
