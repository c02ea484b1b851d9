"""From a job to its tape: build the model, then run the loop, as `python train.py` would.

The recording starts with the process: where the weights lie in memory decides what fits between
them.
"""

from collections.abc import Hashable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from vrambudget import dtypes
from vrambudget.build import adapt, build
from vrambudget.config.fields.generation import INFERENCE
from vrambudget.config.fields.modules import ROUTINGS
from vrambudget.config.job import Job
from vrambudget.config.loops import METRICS, TRAINERS, TRL_LOOPS
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.versions import as_numbers, checked_version
from vrambudget.engine.context import ModelOptions, Platform, context, recording
from vrambudget.engine.identical_layers import stack_layers
from vrambudget.engine.module import Module, register
from vrambudget.engine.passes import CannotRepeatError
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.workspaces import warm_up
from vrambudget.tape.events import Tape
from vrambudget.tape.marks import Phase
from vrambudget.training.draws import Draws
from vrambudget.training.inputs import batches_of, eval_batches_of
from vrambudget.training.loops import loop_named
from vrambudget.training.loops.run import LoopSettings, Run

if TYPE_CHECKING:
    from vrambudget.parallel.rank import Distributed

_EACH = 8  # ranks that are all looked at
_EVERY = {"selective-2": 2}


@dataclass(frozen=True, slots=True)
class Recording:
    """A job's tape, and how many parameters its model has (shared ones count once)."""

    tape: Tape
    parameters: int
    trainable: int
    paged_bytes: int = 0  # of an optimizer's states, in managed memory: not on the tape
    host_bytes: int = 0  # of a rank's shards, gradients and states, in main memory
    kinds: Mapping[int, Hashable] = field(default_factory=dict)  # of ranks that may take most
    unknown_workspace_bytes: int = 0  # most that a convolution touches whose workspace is not known
    draws: Draws | None = None  # where lengths change from batch to batch


def simulate(
    config: ModelConfig, job: Job, platform: Platform, *, shown: int | None = None
) -> Recording:
    """Return the recording of `job` (resolved) on `platform`.

    `shown`: a decoding step that is to be on the tape itself; most are not.
    """
    if job.compile:
        from vrambudget.compiled.simulated import fullest  # noqa: PLC0415 - few jobs compile

        simulated = partial(simulate_routed, job=job, platform=platform, routing="uniform")
        compiled: Recording = fullest(config, job, platform, simulated, Recording)
        return compiled
    if job.shortest is not None and job.draw is None:
        from vrambudget.training.draws import fullest_draw  # noqa: PLC0415 - most lengths are one

        fullest_of, draws = fullest_draw(job, partial(simulate, config, platform=platform))
        return replace(fullest_of, draws=draws)
    if job.routing == "worst" and routing_decides(config, job):
        both = (simulate_routed(config, job, platform, routing) for routing in ROUTINGS)
        return max(both, key=lambda recording: recording.tape.peak_requested_bytes())
    routing = "collapsed" if job.routing == "collapsed" else "uniform"
    return simulate_routed(config, job, platform, routing, shown=shown)


def routing_decides(config: ModelConfig, job: Job) -> bool:
    """Whether memory depends on how tokens spread over experts."""
    return config.has_experts and job.experts == "eager"


def simulate_routed(
    config: ModelConfig, job: Job, platform: Platform, routing: str, *, shown: int | None = None
) -> Recording:
    """Return the recording with tokens spread over experts by `routing` (one of ROUTINGS)."""
    with config.named_errors():
        return _routed(config.for_job(job), job, platform, routing, shown)


def _routed(
    config: ModelConfig, job: Job, platform: Platform, routing: str, shown: int | None
) -> Recording:
    options = ModelOptions(
        dtype=dtypes.BY_NAME[job.weight_dtype],
        attention=job.attention,
        experts=job.experts,
        routing=routing,
        checkpointing=job.checkpointing != "none",
        checkpoint_every=_EVERY.get(job.checkpointing, 1),
        checkpoint_operations=job.checkpointing == "selective-op",
        use_cache=job.use_cache,
        full_rows=job.causal_mask == "skipped",
        transformers=as_numbers(checked_version(job.transformers, config.checked_with)),
    )
    settings = LoopSettings(
        job=job,
        batches=batches_of(config, job),
        eval_batches=eval_batches_of(config, job),
        autocast=dtypes.named(job.autocast_dtype),
        shown=shown,
    )
    try:
        return _record(config, job, platform, options, settings)
    except CannotRepeatError:
        return _record(config, job, platform, options, settings, in_full=True)


def _record(
    config: ModelConfig,
    job: Job,
    platform: Platform,
    options: ModelOptions,
    settings: LoopSettings,
    *,
    in_full: bool = False,
) -> Recording:
    """Record a job; `in_full`: trace every pass and every layer, even if they are identical.

    Graphs that are kept after backward are as they are.
    """
    in_full = in_full or job.keep_losses == "graphs"
    with recording(platform, options) as tape:
        tape.expandable_on_bytes = platform.expandable_on_bytes
        tape.driver_addresses = job.driver_addresses
        if job.warm_process:
            warm_up()
        distributed = _distributed(job)
        if job.load:
            context.tape.mark(0, Phase.LOADING)
        with distributed.building() if distributed else nullcontext():
            model = build(config, job)
            if distributed or job.mode in INFERENCE:  # counters begin with the whole model
                adapt(model, config.model_type, job)
        if not distributed:
            context.tape.mark(0, _begins(job), resets_allocator=not job.load)
            if job.mode not in INFERENCE:
                adapt(model, config.model_type, job)
        lays_layers = distributed is None or distributed.lays_layers
        if not in_full and lays_layers and not job.with_grad:  # graphs die as they are
            stack_layers(model)
        parameters = register(model, tape)
        total = sum(p.numel for p in parameters)
        trained = [p for p in parameters if p.requires_grad]
        trainable = sum(p.numel for p in trained)
        paged = _paged_bytes(job, trained)
        del parameters, trained
        barrier = _barrier(job)
        if distributed:
            distributed.cut(model)
        held = _run(model, config, job, settings, distributed, in_full=in_full)
        tape.close()  # what the loop's variables hold outlives the job
        host_bytes = distributed.host_bytes() if distributed else 0
        kinds = _kinds(distributed, job.mesh.ranks) if distributed else {}
        unknown = max(context.unknown_workspaces, default=0)
        del model, held, distributed, barrier
    return Recording(tape, total, trainable, paged, host_bytes, kinds, unknown)


def _kinds(distributed: "Distributed", ranks: int) -> dict[int, Hashable]:
    """Return the kinds of all ranks, or of those of many that have most and least."""
    some = {0, distributed.fullest_rank(), ranks - 1} if ranks > _EACH else range(ranks)
    return {rank: distributed.kind(rank) for rank in sorted(some)}


def _barrier(job: Job) -> Tensor | None:
    """Return what TRL's ranks wait with while the first prepares the data set: a byte, kept.

    They wait twice; the second is there before the first goes.

    Source: accelerate/state.py (main_process_first); torch/csrc/distributed/c10d/ProcessGroup.hpp
    (barrier, whose tensor is static). ZeRO 3 collects garbage, this byte too (defragment).
    """
    if job.loop not in TRL_LOOPS or job.mesh.data in {None, "deepspeed3"}:
        return None
    barrier = made("barrier", (1,), dtypes.uint8)
    barrier = made("barrier", (1,), dtypes.uint8)
    return barrier  # noqa: RET504 - bound twice


def _begins(job: Job) -> str:
    """Return the phase with which counters begin."""
    return "setup" if job.mode == "generate" else Phase.FORWARD


def _paged_bytes(job: Job, trained: list[Parameter]) -> int:
    """Return the optimizer states that are in managed memory: of bitsandbytes' paged ones."""
    if job.mode != "train" or not job.optimizer.startswith("paged"):
        return 0
    from vrambudget.training.bitsandbytes import paged_bytes  # noqa: PLC0415 - few jobs have them

    return paged_bytes(job.optimizer, trained)


def _distributed(job: Job) -> "Distributed | None":
    """Return one rank of several; imported here, for most jobs have one GPU."""
    if job.mesh.ranks == 1:
        return None
    from vrambudget.parallel.distributed import distributed  # noqa: PLC0415

    return distributed(job)


def _run(
    model: Module,
    config: ModelConfig,
    job: Job,
    settings: LoopSettings,
    distributed: "Distributed | None",
    *,
    in_full: bool,
) -> object:
    """Run what the job does with its model; return what the script's variables hold."""
    if job.mode in INFERENCE:
        from vrambudget.inference.scripts import run_script  # noqa: PLC0415 - most jobs train

        if distributed is not None:
            model = distributed.wrap(model, model)
            context.tape.mark(0, _begins(job), resets_allocator=True)
        return run_script(model, config, job, settings, in_full=in_full)
    in_full = in_full or (distributed is not None and distributed.in_full)
    if distributed is not None and job.loop in TRAINERS:  # free_memory(), then prepare()
        context.tape.mark(0, Phase.BUILD, resets_allocator=True)
    run = Run(
        _patched(model, job),
        settings,
        in_full=in_full,
        distributed=distributed,
        build_reference=partial(_reference, config, job, in_full=in_full),
    )
    if distributed is not None and job.loop not in TRAINERS:
        context.tape.mark(0, Phase.FORWARD, resets_allocator=True)
    loop = (distributed and distributed.loop) or loop_named(job.loop)
    held = loop.train(run) if job.mode == "train" else loop.evaluate(run)
    run.check()
    return held


def _patched(model: Module, job: Job) -> Module:
    """Give the model the head that TRL's trainers give it; imported here, for most jobs do not."""
    if job.loop not in TRL_LOOPS:
        return model
    from vrambudget.training.fused_head import patched  # noqa: PLC0415

    return patched(model, METRICS[job.loop])


def _reference(config: ModelConfig, job: Job, *, in_full: bool) -> Module:
    """Build the model that DPOTrainer holds the trained one against: its head has no metrics."""
    from vrambudget.training.fused_head import patched  # noqa: PLC0415

    reference = patched(build(config, job), ())
    if not in_full:
        stack_layers(reference)
    register(reference, context.tape)
    reference.eval()
    return reference
