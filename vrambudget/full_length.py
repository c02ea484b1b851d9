"""The length at which a generation fills its GPU: how many tokens a row has by then.

    at most    what is alive when the last step of the job begins, and so many bytes of the cache
               for each further token: more than the GPU has. Layers with a window stay as they are
    exactly    in the job with as many new tokens as that, the step that has to fill the GPU where
               none before can (`vrambudget.tape.full_steps`); or else each step is replayed: where
               a cache grows, its holes decide before the bytes do
    between    the first step that can fill it and the one that has to, where a replay would take
               more than some seconds

Not modelled: static caches, which are full-length from the first token on, encoder-decoders, and
several calls of `generate`.
"""

import sys
from math import prod

from vrambudget.budget import FullAt, OutOfMemory
from vrambudget.config.job import Job
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.full_steps import full_steps
from vrambudget.tape.replay import replay_on
from vrambudget.tape.segment_sizes import SMALL, units
from vrambudget.tape.steps import phase_of

_FURTHER = 1024  # steps that are replayed for a report
_REPLAYED, _OF_A_STEP = 300_000, 6  # requests of which each is replayed, and what a step costs more
_KEYS = 4  # dimensions of keys: rows, heads, tokens, width
MOST = 2**20  # new tokens of a job
_NO_STEP = range(sys.maxsize, sys.maxsize)


def full_at(scenario: Scenario, tape: Tape, out_of_memory: OutOfMemory | None) -> FullAt | None:
    """Return how many tokens a row has when the GPU is full; None where that never is.

    `tape`: the job's own. Few steps more than it has are replayed.
    """
    steps, prompt = full_in(scenario, tape, out_of_memory, further=_FURTHER), scenario.job.prompt
    if not steps or steps.stop == sys.maxsize or prompt is None:
        return None
    return FullAt(prompt + steps[-1], is_exact=len(steps) == 1)


def full_in(
    scenario: Scenario,
    tape: Tape,
    out_of_memory: OutOfMemory | None,
    *,
    margin_bytes: int = 0,
    further: int = MOST,
) -> range | None:
    """Return the steps of which one is the first that fills the GPU; none where all have room.

    Steps up to `sys.maxsize` may also all have room; None is returned for what is not modelled.
    `tape`: the job's own. At most `further` steps more than the job has are replayed.
    """
    config, job = scenario.config, scenario.job
    is_supported = job.mode == "generate" and job.calls == 1 and job.task == "causal-lm"
    if not is_supported or scenario.gpu is None or job.prompt is None:
        return None
    available_bytes = scenario.gpu.available_bytes - margin_bytes
    if out_of_memory is not None:
        return _step_of(out_of_memory)
    most = _at_most(job, tape, available_bytes)
    new = min(most or 0, MOST, (config.learned_positions or MOST + job.prompt) - job.prompt)
    if most is None or further < new < most:
        return None
    if new - job.new > further or job.num_beams > 1:  # beams have room for all new tokens
        return range(job.new, new + 1)
    longer = job.model_copy(update={"new": new, "block": job.prompt + new})
    longer_tape = simulate(config, longer, scenario.platform).tape
    steps = full_steps(longer_tape, available_bytes)
    steps = range(steps.start, steps.stop if new < most else min(steps.stop, most))
    if steps[:1] == steps or _requests(longer_tape, job.new, steps.stop) > _REPLAYED:
        return steps
    full = replay_on(longer_tape, available_bytes)
    return _NO_STEP if full is None else _step_of(full)


def _step_of(full: OutOfMemory) -> range | None:
    kind, _, step = full.phase.partition(" ")
    return range(int(step), int(step) + 1) if kind == "decode" else None


def _requests(tape: Tape, start: int, stop: int) -> int:
    """Return about how many requests of some steps a replay serves one by one: large ones."""
    requests = 0
    for part in (part for mark in tape.marks if mark.steps for part in mark.steps.stretches):
        turns, end = part.count // len(part.patterns), part.first + part.count
        last = map(lambda size, by: units(size + by * turns), part.sizes[0], part.growth[0])
        among = min(end, stop) - max(part.first, start)
        requests += max(0, among) * (sum(n > SMALL for n in last) + _OF_A_STEP)
    return requests


def _at_most(job: Job, tape: Tape, available_bytes: int) -> int | None:
    """Return with how many new tokens the bytes alone are too many."""
    last = job.new - 1
    begins = [mark.position for mark in tape.marks if mark.phase == phase_of(last)]
    if not begins or job.prompt is None:
        return None
    alive = tape.alive_at(begins[-1] - 1)
    growth = sum(_of_a_token(tape, storage, job.prompt + last - 1) for storage in alive)
    if not growth:
        return None
    left: int = available_bytes - sum(tape.sizes[storage] for storage in alive)
    return last + max(0, left) // growth + 1


def _of_a_token(tape: Tape, storage: int, tokens: int) -> int:
    """Return by how much keys or values of so many tokens become longer with one more."""
    content = tape.contents[storage]
    if tape.purposes[storage] is not Purpose.KV_CACHE or content is None:
        return 0
    shape, dtype = content
    if len(shape) != _KEYS or shape[2] != tokens:
        return 0
    return prod((shape[0], shape[1], shape[3])) * dtype.itemsize
