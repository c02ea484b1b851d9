"""What can be changed about a job to save memory, and what each change costs.

    nothing     the same numbers at the same speed
    speed       the same training, slower
    numerics    numbers that differ: other dtypes, other optimizers, fewer trained weights
    data        the model sees something else: shorter sequences

A change turns a scenario into another, or into None if it does not apply. The caller searches batch
and block: the largest that fits, or the smallest if none does.

Not modelled, so not offered: offloading, torch.compile.
"""

from collections.abc import Callable, Sequence
from enum import StrEnum
from math import isqrt
from typing import Any, NamedTuple

from vrambudget.planning.variants import variant
from vrambudget.scenario import Scenario

Search = Callable[[Sequence[int], Callable[[int], Scenario], int], Scenario]
"""From rising sizes, the scenario at a size, and the size it has now, to the best scenario."""

_LORA_RANK = 16
_BLOCK_STEP = 64  # a searched block is a multiple of this, if it is longer
_LEAST = 1000  # a change that saves less than this part of the peak does not help
_LEAST_OF_CACHE = 50  # saved by a setting of the allocator; less means hardly any fragmentation
_MOST_TIMES = 2**16  # Job.grad_accum's limit
_FIRST_WITH_BFLOAT16 = (8, 0)


class Cost(StrEnum):
    """What a change costs, the cheapest first."""

    NOTHING = "nothing"
    SPEED = "speed"
    NUMERICS = "numerics"
    DATA = "data"


class Change(NamedTuple):
    """One change in words, and its effect on a scenario; None if it does not apply."""

    words: str
    cost: Cost
    apply: Callable[[Scenario, Search], Scenario | None]
    least: int = _LEAST  # it is listed from this part of the peak on


_PREFILL_CHUNK = 1024  # tokens


def _fields(
    words: str, cost: Cost, when: Callable[[Scenario], bool], least: int = _LEAST, **values: Any
) -> Change:
    """Return the change that sets fields of the job where `when` holds."""

    def apply(scenario: Scenario, search: Search) -> Scenario | None:
        del search
        return variant(scenario, **values) if when(scenario) else None

    return Change(words, cost, apply, least)


def _trains(scenario: Scenario) -> bool:
    return scenario.job.mode == "train"


def _has_bfloat16(scenario: Scenario) -> bool:
    return scenario.platform.compute_capability >= _FIRST_WITH_BFLOAT16


def _accumulated(scenario: Scenario, search: Search) -> Scenario | None:
    """Return the job at a divisor of its batch, for the same step."""
    batch, times = scenario.job.batch, scenario.job.grad_accum

    def at(n: int) -> Scenario:
        return variant(scenario, batch=n, grad_accum=times * batch // n)

    sizes = [n for n in divisors(batch) if n < batch and times * batch // n <= _MOST_TIMES]
    return search(sizes, at, batch) if sizes and _trains(scenario) else None


def divisors(n: int) -> list[int]:
    """Return the divisors of n, rising."""
    small = [d for d in range(1, isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})


def _smaller_batch(scenario: Scenario, search: Search) -> Scenario | None:
    """Return the evaluation at a smaller batch."""
    sizes = range(1, scenario.job.batch)
    if _trains(scenario) or not sizes:
        return None
    return search(sizes, lambda n: variant(scenario, batch=n), scenario.job.batch)


def _shorter_block(scenario: Scenario, search: Search) -> Scenario | None:
    """Return the job at a shorter block."""
    block = scenario.job.block or 1
    step = _BLOCK_STEP if block > _BLOCK_STEP else 1
    shortest = scenario.job.shortest or 1  # where lengths change, the block is the longest
    sizes = [n for n in range(step, block, step) if n >= shortest]
    return search(sizes, lambda n: variant(scenario, block=n), block) if sizes else None


CHANGES = (
    _fields(
        "the fused optimizer needs no temporaries as large as the model",
        Cost.NOTHING,
        lambda scenario: (
            _trains(scenario)
            and scenario.job.optimizer in {"adamw", "adam"}
            and scenario.job.optimizer_impl != "fused"
        ),
        optimizer_impl="fused",
    ),
    _fields(
        "an attention kernel that saves no scores [T, T]",
        Cost.NOTHING,
        lambda scenario: scenario.job.attention == "eager",
        attention="sdpa",
    ),
    _fields(
        "cache no keys and values: `model.config.use_cache = False`",
        Cost.NOTHING,
        lambda scenario: _trains(scenario) and scenario.job.use_cache,
        use_cache=False,
    ),
    _fields(
        "drop the outputs before the next forward: `del outputs`",
        Cost.NOTHING,
        lambda scenario: scenario.job.keep_outputs and scenario.job.mode != "generate",
        keep_outputs=False,
    ),
    _fields(
        "expandable segments: set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (Linux)",
        Cost.NOTHING,
        lambda scenario: not scenario.job.expandable_segments,
        _LEAST_OF_CACHE,
        expandable_segments=True,
    ),
    _fields(
        "the prompt piece by piece: prefill_chunk_size",
        Cost.SPEED,
        lambda scenario: (
            scenario.job.mode == "generate"
            and scenario.job.task == "causal-lm"
            and scenario.job.cache == "dynamic"
            and scenario.job.prefill_chunk is None
            and (scenario.job.prompt or 0) > _PREFILL_CHUNK
        ),
        prefill_chunk=_PREFILL_CHUNK,
    ),
    _fields(
        "keep only each layer's input, run the layer again in backward",
        Cost.SPEED,
        lambda scenario: _trains(scenario) and scenario.job.checkpointing == "none",
        checkpointing="full",
    ),
    _fields(
        "autocast: activations in 16 bit",
        Cost.NUMERICS,
        lambda scenario: scenario.job.precision == "fp32" and _has_bfloat16(scenario),
        precision="amp-bf16",
    ),
    _fields(
        "autocast: activations in 16 bit, with a GradScaler",
        Cost.NUMERICS,
        lambda scenario: scenario.job.precision == "fp32" and not _has_bfloat16(scenario),
        precision="amp-fp16",
    ),
    _fields(
        "weights, gradients and optimizer states in 16 bit",
        Cost.NUMERICS,
        lambda scenario: scenario.job.precision in {"fp32", "amp-bf16"} and _has_bfloat16(scenario),
        precision="bf16",
    ),
    _fields(
        "optimizer states of one byte (bitsandbytes)",
        Cost.NUMERICS,
        lambda scenario: _trains(scenario) and scenario.job.optimizer == "adamw",
        optimizer="adamw-8bit",
        optimizer_impl=None,
    ),
    _fields(
        "train adapters, freeze the weights",
        Cost.NUMERICS,
        lambda scenario: _trains(scenario) and scenario.job.lora_rank is None,
        lora_rank=_LORA_RANK,
    ),
    Change("fewer sequences at a time, accumulated to the same batch", Cost.SPEED, _accumulated),
    Change("fewer sequences at a time", Cost.SPEED, _smaller_batch),
    Change("shorter sequences", Cost.DATA, _shorter_block),
)
"""In the order in which a pair applies them: what is searched comes after what is set."""
