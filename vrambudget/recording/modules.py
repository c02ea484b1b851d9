"""Any torch module as a program: `factory(**sizes)` makes it and what it is called with.

A factory returns (module, inputs) or (module, inputs, loss); its arguments are the free sizes, such
as `batch`, `height`, `frames`. It is called at sizes of its own, so it should be quick: a module on
the meta device is.
"""

import dataclasses
import importlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.versions import installed_version
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.program.catalog import of_programs
from vrambudget.program.form import Program
from vrambudget.recording.checking import UnequalError, peaks
from vrambudget.recording.configurations import Recorded
from vrambudget.recording.listener import Listener
from vrambudget.recording.programs import Probe, RecordedModel, program_of
from vrambudget.recording.tracing import listening
from vrambudget.scenario import platform_of
from vrambudget.simulate import simulate
from vrambudget.traced import kernels
from vrambudget.traced.module import ModuleConfig, module_config

Factory = Callable[..., Any]


def record_module(named: str, sizes: Mapping[str, int]) -> tuple[str, Recorded]:
    """Return a name for the file, and the program of a factory named as "module:factory"."""
    name = named.partition(":")[2]
    return name, record_factory(factory_named(named), {"batch": 2, **sizes}, name=name)


def factory_named(named: str) -> Factory:
    """Return the factory that "module:factory" names; modules of the working folder are found."""
    home, _, name = named.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Factory = getattr(importlib.import_module(home), name)
    except (ImportError, AttributeError) as error:
        raise VramBudgetError(f"{named!r} names no factory: {error}") from None
    finally:
        sys.path.pop(0)
    return found


def record_factory(
    factory: Factory, sizes: Mapping[str, int], *, name: str, **fields: Any
) -> Recorded:
    """Return the program of what a factory makes; `sizes` are the usual ones, `fields` of its job.

    Raises UnfitError where its code is not one program at all sizes.
    """
    cases = [dict(sizes)]
    cases += [{**sizes, key: _further(sizes[key], 1)} for key in sizes]
    further = [{k: _further(v, n) for k, v in sizes.items()} for n in (2, 3, 4, 5)]
    cases += further[:2]
    first = job_of(factory, cases[0], **fields)[1].precision
    probes = [Probe(case, first, recording(factory, case, **fields)) for case in cases]
    if first in {"fp32", "bf16"} and not fields:
        others = [name for name in ("fp32", "bf16", "amp-bf16") if name != first]
        probes += [Probe(cases[0], p, recording(factory, cases[0], precision=p)) for p in others]
    source = {"model_type": name, "torch": installed_version("torch"), "sizes": dict(sizes)}
    program = program_of(probes, RecordedModel(source={**source, "inputs": "own"}))
    checked = sum(_equal(factory, program, case, **fields) for case in further[2:])
    return Recorded(program, list(sizes), [], checked)


def _further(size: int, n: int) -> int:
    """Return another size of the same parity in powers of two, as far as it may matter."""
    step = 1
    while size % (step * 2) == 0 and step < 64:  # noqa: PLR2004 - most a model divides by
        step *= 2
    return size + n * step


def job_of(factory: Factory, sizes: Mapping[str, int], **fields: Any) -> tuple[ModuleConfig, Job]:
    """Return the traced configuration of what a factory makes, and its job, resolved."""
    made = factory(**sizes)
    if not isinstance(made, tuple) or len(made) not in {2, 3}:
        raise VramBudgetError("a factory returns (module, inputs) or (module, inputs, loss)")
    config = module_config(*made)
    own = {**config.job_defaults, "steps": 1, "loop": "plain"}
    job = Job.with_defaults(fields, own)
    resolved = job.resolve(config.for_job(job))
    return config.for_job(resolved), resolved


def recording(factory: Factory, sizes: Mapping[str, int], **fields: Any) -> Listener:
    """Return what a factory's module does at these sizes."""
    config, job = job_of(factory, sizes, **fields)
    listener = Listener()
    with listening(listener):
        simulate(config, job, platform_of(None, job.torch))
    if kernels.unchecked:
        names = ", ".join(sorted(kernels.unchecked))
        raise NotModelledError(f"what the kernels of {names} allocate besides results is not known")
    return listener


def _equal(factory: Factory, program: Program, sizes: Mapping[str, int], **fields: Any) -> bool:
    config, job = job_of(factory, sizes, **fields)
    expected = peaks(config, job)
    own = {**program.source, "sizes": dict(sizes)}
    at = dataclasses.replace(program, source=own)
    actual = peaks(of_programs(dict(sizes), [at]).model_copy(update={"job": job}), job)
    if actual != expected:
        raise UnequalError(
            f"the program comes to {actual} bytes at {dict(sizes)}, the traced model to {expected}"
        )
    return True
