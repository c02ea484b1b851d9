"""The length at which a generation fills its GPU: how many tokens a row has by then.

    at most    what is alive when the last step of the job begins, and so many bytes of the cache
               for each further token: more than the GPU has. Layers with a window stay as they are
    exactly    in the job with as many new tokens as that, the step that has to fill the GPU where
               none before can (`vrambudget.tape.room`); or else it is replayed step by step: where
               a cache grows, its holes decide before the bytes do

Not modelled: static caches, which are full-length from the first token on, encoder-decoders, and
several calls of `generate`.
"""

from math import prod

from vrambudget.budget import FullAt, OutOfMemory
from vrambudget.config.job import Job
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.replay import replay_on
from vrambudget.tape.room import full_steps
from vrambudget.tape.steps import phase_of

_FURTHER = 1024  # steps that are replayed for a report
_KEYS = 4  # dimensions of keys: rows, heads, tokens, width
MOST = 2**20  # new tokens of a job


def full_at(
    scenario: Scenario,
    tape: Tape,
    out_of_memory: OutOfMemory | None,
    *,
    margin_bytes: int = 0,
    further: int = _FURTHER,
    never: FullAt | None = None,
) -> FullAt | None:
    """Return how many tokens a row has when the GPU is full; None where that never is.

    `tape`: the job's own. At most `further` steps more than the job has are replayed. `never` is
    returned where all tokens fit that a job may have, and were replayed.
    """
    config, job = scenario.config, scenario.job
    is_followed = job.mode == "generate" and job.calls == 1 and job.task == "causal-lm"
    if not is_followed or scenario.gpu is None or job.prompt is None:
        return None
    available_bytes = scenario.gpu.available_bytes - margin_bytes
    if out_of_memory is not None:
        return _of(job.prompt, out_of_memory)
    most = _at_most(job, tape, available_bytes)
    positions = config.learned_positions
    if most is None or (positions is not None and most > positions - job.prompt > further):
        return None
    new = min(most, MOST, (positions or most + job.prompt) - job.prompt)
    if new - job.new > further or job.num_beams > 1:  # beams have room for all new tokens
        return FullAt(job.prompt + new, is_exact=False)
    longer = job.model_copy(update={"new": new, "block": job.prompt + new})
    longer_tape = simulate(config, longer, scenario.platform).tape
    return _first_full(job.prompt, longer_tape, available_bytes, never if new < most else None)


def _first_full(
    prompt: int, tape: Tape, available_bytes: int, never: FullAt | None
) -> FullAt | None:
    steps = full_steps(tape, available_bytes)
    if len(steps) == 1:
        return FullAt(prompt + steps[0], is_exact=True)
    full = replay_on(tape, available_bytes) if steps else None
    return never if full is None else _of(prompt, full)


def _of(prompt: int, full: OutOfMemory) -> FullAt | None:
    kind, _, step = full.phase.partition(" ")
    return FullAt(prompt + int(step), is_exact=True) if kind == "decode" else None


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
