"""Recipes for one GPU: ways to train a model there, and the largest batch of each.

    full     float32 weights under autocast, then 16-bit weights; optimizer states of four bytes,
             then of one; then Lion's single state of one byte
    lora     adapters of 16-bit weights
    qlora    adapters of 4-bit weights

Each is tried as it is and with checkpointing, and its ladder ends with the first rung that fits:
what comes after gives up more. Where no rung does, the last is tried with expandable segments.

What the job names stays as it is; a batch that is named is not searched. With `per_step`, batches
are the divisors of that many sequences, and the rest is accumulated.

A job that is compiled is compiled at the eager one's batch, and from there at few others, as in
`fit`: no number is an eager job's.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

from vrambudget.config.job import Job
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.planning.changes import Cost, divisors
from vrambudget.planning.choices import words_of
from vrambudget.planning.forked import forked
from vrambudget.planning.lower_bound import count_parameters, least_bytes
from vrambudget.planning.search import Try, largest_by, largest_that_fits, model_bytes
from vrambudget.planning.variants import MOST_TRACED, variant
from vrambudget.scenario import Scenario
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import fits, replay_for

Trained = Literal["full", "lora", "qlora"]

_LOG = logging.getLogger("vrambudget")
FIRST_WITH_BFLOAT16 = (8, 0)
LORA_RANK = 16
# Where there is no bfloat16: PEFT keeps adapters in float32, which GradScaler needs.
SCALED_LORA = {"precision": "amp-fp16", "weights": "fp16"}
MOST_SEQUENCES = 2**14  # sequences in a batch
SEARCHED = frozenset(
    {
        *("batch", "checkpointing", "expandable_segments", "grad_accum", "lora_rank"),
        *("optimizer", "optimizer_impl", "precision", "quant", "weights"),
    }
)
"""The fields that a recipe sets, where the job does not name them."""
_FULL = {"lora_rank": None, "quant": None, "weights": None}
_FUSED = {"optimizer": "adamw", "optimizer_impl": "fused"}
_EIGHT_BIT = {"optimizer": "adamw-8bit", "optimizer_impl": None}
_LION = {"optimizer": "lion-8bit", "optimizer_impl": None}


class Recipe(NamedTuple):
    """A way to train that fits, at the largest batch that does."""

    trains: Trained
    costs: tuple[Cost, ...]
    job: Job
    peak_bytes: int  # reserved bytes and the CUDA context, on an unlimited GPU


Order = tuple[Job, Trained, tuple[Cost, ...]]
Tried = tuple[Recipe | None, VramBudgetError | None]


def recipes(
    scenario: Scenario,
    kinds: Sequence[Trained],
    *,
    named: Collection[str] = (),
    per_step: int | None = None,
    margin_bytes: int = 0,
    suits: Callable[[Job], bool] = lambda _: True,
    autocast: Collection[Trained] = (),
    progress: Callable[[], object] = lambda: None,
    skip: Callable[[VramBudgetError], object] = lambda _: None,
) -> list[Recipe]:
    """Return what fits on the scenario's GPU, what gives up least first.

    `named`: the fields that are to stay. `suits`: whether a job may be a recipe. `autocast`: what
    is trained under autocast where weights are in 16 bits. `progress` is called before each try,
    `skip` with the reason why something that suits cannot be tried.
    """
    try:
        kitchen = _Kitchen(
            scenario,
            per_step=per_step,
            batch_is_named="batch" in named,
            margin_bytes=margin_bytes,
            progress=progress,
            skip=skip,
        )
    except NotModelledError as error:
        skip(error)
        return []
    found: list[Recipe] = []
    for trains in kinds:
        *rungs, last = _ladder(scenario, trains, frozenset(named), mixed=trains in autocast)
        for rung in (*rungs, [last[-1]]):
            jobs = ((_job(scenario, fields), _costs(fields, trains)) for fields in rung)
            fitting = kitchen.cook([(j, trains, costs) for j, costs in jobs if j and suits(j)])
            found += fitting
            if fitting:
                break
    return found


def _ladder(
    scenario: Scenario, trains: Trained, named: frozenset[str], *, mixed: bool
) -> Iterator[list[dict[str, Any]]]:
    """Yield the rungs, each a list of fields to set: without and with checkpointing."""
    rungs: list[list[dict[str, Any]]] = []
    for base in _bases(scenario, trains, mixed=mixed):
        ways = [{**base, "checkpointing": way} for way in ("none", "full")]
        kept = [{k: v for k, v in way.items() if k not in named} for way in ways]
        rung = [fields for n, fields in enumerate(kept) if fields not in kept[:n]]
        if rung not in rungs:
            rungs.append(rung)
            yield rung
    yield [{**rungs[-1][-1], "expandable_segments": True}]


def _bases(scenario: Scenario, trains: Trained, *, mixed: bool) -> Iterator[dict[str, Any]]:
    """Yield what to set besides checkpointing, what gives up least first."""
    halved: dict[str, Any] = {"precision": "bf16", "weights": None}
    if mixed:
        halved = {"precision": "amp-bf16", "weights": "bf16"}
    has_bfloat16 = scenario.platform.compute_capability >= FIRST_WITH_BFLOAT16
    rank = {"lora_rank": scenario.job.lora_rank or LORA_RANK}
    if trains == "full":
        whole = {"precision": "amp-bf16" if has_bfloat16 else "amp-fp16"}
        for precision in (whole, *([halved] if has_bfloat16 else [])):
            for optimizer in (_FUSED, _EIGHT_BIT):
                yield {**_FULL, **precision, **optimizer}
        yield {**_FULL, **(halved if has_bfloat16 else whole), **_LION}
    elif trains == "qlora":
        for name in _of_4_bit(scenario, halved["precision"]):
            yield {**rank, "quant": "nf4", "precision": name, "weights": None}
    elif has_bfloat16:
        yield {**rank, "quant": None, **halved}
    else:
        yield {**rank, "quant": None, **SCALED_LORA}


def _of_4_bit(scenario: Scenario, halved: str) -> tuple[str, ...]:
    """Return the precisions to try; norms are float32, so under autocast attention has 16 bits."""
    if scenario.platform.compute_capability >= FIRST_WITH_BFLOAT16:
        return halved, "amp-bf16"
    return (scaled_4_bit(scenario.job),)


def scaled_4_bit(job: Job) -> str:
    """Return the precision of QLoRA where there is no bfloat16.

    TRL's adapters are bfloat16, which GradScaler refuses.
    """
    return "fp32" if job.loop in TRL_LOOPS else "amp-fp16"


def eager(job: Job) -> Job:
    """Return a job without torch.compile."""
    return job.model_copy(update={"compile": False})


def _costs(fields: dict[str, Any], trains: Trained) -> tuple[Cost, ...]:
    """Return what a recipe gives up, against a full fine-tune under autocast with AdamW."""
    halved = fields.get("precision") == "bf16" or fields.get("weights") == "bf16"
    same = trains == "full" and not halved
    same = same and fields.get("optimizer", "adamw") == "adamw"
    slower = fields.get("checkpointing") == "full"
    costs = [Cost.SPEED] * slower + [Cost.NUMERICS] * (not same)
    return tuple(costs) or (Cost.NOTHING,)


def _job(scenario: Scenario, fields: dict[str, Any]) -> Job | None:
    """Return the job with these fields, None where there is none: a model or a loop forbids it."""
    try:
        return scenario.job.changed(fields).resolve(scenario.config_of_job)
    except VramBudgetError:
        return None


class _Kitchen:
    """Tries jobs on one GPU."""

    def __init__(
        self,
        scenario: Scenario,
        *,
        per_step: int | None,
        batch_is_named: bool,
        margin_bytes: int,
        progress: Callable[[], object],
        skip: Callable[[VramBudgetError], object],
    ) -> None:
        assert scenario.gpu is not None  # noqa: S101 - the caller looked
        self.scenario, self.per_step, self.progress, self.skip = scenario, per_step, progress, skip
        self.gpu, self.limit = scenario.gpu, scenario.gpu.available_bytes - margin_bytes
        self.last: tuple[Job | None, Tape] = None, Tape()
        self.parameters = count_parameters(replace(scenario, job=eager(scenario.job)))
        self.sizes: Sequence[int] = range(1, MOST_SEQUENCES + 1)
        if per_step is not None:
            self.sizes = [n for n in divisors(per_step) if n <= MOST_SEQUENCES]
        elif batch_is_named:
            self.sizes = [scenario.job.batch]

    def cook(self, orders: Sequence[Order]) -> list[Recipe]:
        """Return those that fit, each at the largest batch; processes share what is compiled."""
        known = dict[int, Tried]()
        if any(job.compile for job, *_ in orders):
            pieces = [partial(self._numbered, n, order) for n, order in enumerate(orders)]
            known = dict(forked(pieces))
        found = []
        for n, order in enumerate(orders):
            recipe, error = known.get(n) or self._tried(order)
            found += [recipe] if recipe else []
            if error is not None:
                self.skip(error)
        return found

    def _numbered(self, n: int, order: Order) -> tuple[int, Tried]:
        return n, self._tried(order)

    def _tried(self, order: Order) -> Tried:
        """Return the recipe at the largest batch that fits, if one does; the error, if there is."""
        job, trains, costs = order
        start = self.sizes[0]
        try:
            if job.compile:  # where an eager one is full, a compiled one has little memory left
                found = self._searched(eager(job), trains, costs, start)
                start = found.job.batch if found else start
                _LOG.info("looking for the largest batch of: %s", words_of(job, trains))
            return self._searched(job, trains, costs, start), None
        except VramBudgetError as error:  # this model cannot be trained so
            return None, error

    def _searched(
        self, job: Job, trains: Trained, costs: tuple[Cost, ...], start: int
    ) -> Recipe | None:
        if least_bytes(job, self.parameters, 0 if job.lora_rank else self.parameters) > self.limit:
            return None
        base, peaks = replace(self.scenario, job=job), dict[int, int]()

        def attempt(batch: int) -> Try:
            self.progress()
            tape = self._tape(self._at(base, batch, most=MOST_TRACED))
            if (requested := tape.peak_requested_bytes()) > self.limit:
                return Try(requested, 0, fits=False)
            replayed = replay_for(tape, self.limit)
            peak = replayed.peak
            peaks[batch] = peak.reserved_bytes
            does_fit = fits(tape, peak, self.limit)
            limit = self.limit * peak.requested_bytes // peak.reserved_bytes
            guess = largest_by(tape, batch, limit)[0] if does_fit else None
            return Try(peak.reserved_bytes, model_bytes(replayed.breakdown), does_fit, guess)

        batch = largest_that_fits(self.sizes, attempt, start=start, limit=self.limit)
        if batch is None:
            return None
        peak_bytes = peaks[batch] + self.gpu.context_bytes
        return Recipe(trains, costs, self._at(base, batch).job, peak_bytes)

    def _tape(self, there: Scenario) -> Tape:
        """Return a job's tape: that of the last one, where only segments expand that did not."""
        plain = there.job.model_copy(update={"expandable_segments": False})
        if plain != self.last[0] or plain.compile:
            self.last = plain, simulate(there.config, there.job, there.platform).tape
        return replace(self.last[1], expandable_on_bytes=there.platform.expandable_on_bytes)

    def _at(self, base: Scenario, batch: int, *, most: int | None = None) -> Scenario:
        """Return the job at a batch; `most`: micro-batches that are traced of many."""
        times = base.job.grad_accum if self.per_step is None else self.per_step // batch
        return variant(base, batch=batch, grad_accum=times if most is None else min(times, most))
