"""What a report says beside its numbers: what was assumed, what is not included."""

from collections.abc import Iterator

from vrambudget.config.fields.adapters import PEFT_TARGETS
from vrambudget.config.fields.batches import OF_PIXELS
from vrambudget.config.fields.modules import ROUTINGS
from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.config.job import Job
from vrambudget.config.loops import remark_on_leak, remarks_on_loop
from vrambudget.config.remarks_on_gpu import remarks_on_gpu
from vrambudget.config.said_by_config import remarks_on_config
from vrambudget.config.versions import remarks_on_versions
from vrambudget.scenario import DEFAULT_GPU, Scenario
from vrambudget.simulate import Recording, routing_decides, simulate_routed
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import Replay, replay
from vrambudget.units import format_bytes

_ASSUMED = {"uniform": "the first", "collapsed": "the second", "worst": "the larger"}


def remarks(scenario: Scenario, recording: Recording, replayed: Replay) -> tuple[str, ...]:
    """Return the sentences that go with an estimate, none of them a number of its table."""
    return (
        *scenario.config_of_job.notes(),
        *remarks_on_versions(
            scenario.job.torch, scenario.job.transformers, scenario.config.checked_with
        ),
        *(scenario.run.notes if scenario.run else ()),
        *scenario.notes,
        *_assumptions(scenario, recording, replayed),
        *_of_gpu(scenario, replayed),
        *_not_on_the_tape(scenario, recording),
    )


def _of_gpu(scenario: Scenario, replayed: Replay) -> Iterator[str]:
    if scenario.gpu is not None:
        yield from remarks_on_gpu(scenario.gpu, scenario.job.torch, replayed.peak.reserved_bytes)


def remarks_on_convolutions(tape: Tape, unknown_workspace_bytes: int) -> Iterator[str]:
    """Yield whose workspaces they take; the bytes: most that one of unknown workspace touches."""
    if "convolution" in tape.operations:  # by cuDNN: PyTorch's own kernels have other names
        from vrambudget.cudnn.remarks import remark_on_convolutions  # noqa: PLC0415 - few have any

        yield remark_on_convolutions(unknown_workspace_bytes)


def _not_on_the_tape(scenario: Scenario, recording: Recording) -> Iterator[str]:
    """Yield what bitsandbytes, cuDNN or a compiler does besides what is included."""
    yield from remarks_on_convolutions(recording.tape, recording.unknown_workspace_bytes)
    if recording.paged_bytes:
        yield (
            f"paged optimizer states, {format_bytes(recording.paged_bytes)}, are in managed memory"
            " and leave the GPU when it is full: not included"
        )
    job = scenario.job
    if job.mode == "generate" and "cudnn_attention" in recording.tape.operations:
        yield (
            "cuDNN's attention splits a decoding step's keys over blocks: the workspace in which"
            " they meet, up to 0.7 MB, is not included (--no-cudnn-attention takes flash attention,"
            " which TORCH_CUDNN_SDPA_DEPRIORITIZED=1 selects)"
        )
    if job.mode == "generate" and job.cache == "static":
        yield (
            "by default generate compiles a static cache's steps with CUDA graphs, whose pools come"
            " on top: the estimate is of disable_compile=True"
        )
    if job.quant == "int8":
        yield _of_outliers(scenario, job)


def _of_outliers(scenario: Scenario, job: Job) -> str:
    """Say what 8-bit layers take for values that sizes alone do not decide."""
    from vrambudget.ops.eight_bit import outlier_bytes  # noqa: PLC0415 - most jobs have none
    from vrambudget.training.kbit import widest_outputs  # noqa: PLC0415

    assert job.task is not None  # noqa: S101 - resolved
    rows = job.batch * job.num_beams * (job.block or 1)
    widest = widest_outputs(scenario.config, job.task, scenario.platform)
    itemsize = 4 if job.mode == "train" or job.weight_dtype == "fp32" else 2
    column = outlier_bytes(rows, widest, itemsize)
    kept = ", and keeps for backward a part of it" if job.mode == "train" else ""
    return (
        "values of 6.0 or more in a layer's input are multiplied in 16 bit, and none are"
        " included: each column that has one takes its layer up to"
        f" {format_bytes(column)} more{kept}"
    )


def _assumptions(scenario: Scenario, recording: Recording, replayed: Replay) -> Iterator[str]:
    """Yield what the estimate assumes and a user may know better."""
    job = scenario.job
    yield from remarks_on_choice(scenario.gpu)
    if (
        scenario.gpu
        and (0, 0) < scenario.gpu.compute_capability < (8, 0)
        and "bf16" in job.precision
    ):
        yield f"{scenario.gpu.name} emulates bfloat16, slowly: --precision amp-fp16"
    yield from remarks_on_config(scenario.values, job, keeps_cache=scenario.config.keeps_cache)
    yield from remarks_on_loop(job)
    yield from _of_adapters(scenario)
    if job.rows == "packed" and not scenario.config.sees_packed_rows:
        yield (
            f"{scenario.config.model_type} does not look where packed sequences begin: no mask is"
            " built, and tokens see those of other sequences"
        )
    if job.task in OF_PIXELS and not getattr(scenario.config, "is_file", False):
        yield (
            f"the head has {scenario.config.num_labels} classes; a config.json with its own"
            " id2label counts another number"
        )
    if job.shortest is not None:
        yield _of_lengths(job, recording)
    if job.keep_losses == "graphs":
        peaks = [step.peak_allocated_bytes for step in replayed.steps]
        left = scenario.gpu.available_bytes - replayed.peak.reserved_bytes if scenario.gpu else None
        yield remark_on_leak(peaks, left)
    if scenario.config.has_experts:
        yield _of_experts(scenario, replayed)


def _of_adapters(scenario: Scenario) -> Iterator[str]:
    """Yield what PEFT adapts in a library's script, where nobody named modules."""
    job, model_type = scenario.job, scenario.config.model_type
    if job.lora_rank is None or job.loop == "plain" or "lora_targets" in job.model_fields_set:
        return
    targets = PEFT_TARGETS.get(model_type)
    if targets is not None:
        yield (
            "adapters are assumed on all linear layers: where a script names no target modules,"
            f" PEFT adapts those of {model_type}, --lora-targets {','.join(targets)}"
        )


def _of_lengths(job: Job, recording: Recording) -> str:
    """Say what lengths were sampled, and how far apart draws are in reserved bytes."""
    lengths = f"lengths from {job.shortest} to {job.block} were sampled for {job.steps} steps"
    if recording.draws is None:
        return f"{lengths} (--draw {job.draw or 0}); another draw reserves more or less"
    low, high = (format_bytes(f(recording.draws.reserved_bytes)) for f in (min, max))
    between = low if low == high else f"{low} to {high}"
    return (
        f"{lengths}: five draws reserve {between}, and --draw {recording.draws.fullest} is shown;"
        " more steps may reserve more; what would help is tried on that draw alone"
    )


def remarks_on_choice(gpu: Gpu | None) -> Iterator[str]:
    """Yield which GPU is assumed where none was named, or what its name left open."""
    if gpu is None:
        name = find_gpu(DEFAULT_GPU).name
        yield f"no GPU was named: kernels and workspaces are those of an {name}"
    elif gpu.assumed:
        yield gpu.assumed


def _of_experts(scenario: Scenario, replayed: Replay) -> str:
    """Say how tokens are assumed to spread over experts, and what other spreads take."""
    if scenario.job.mesh.ep > 1:
        return (
            "each rank runs its own experts on all rows, with those of other ranks masked: evenly"
            " spread or all on one rank's experts, tokens take the same"
        )
    if not routing_decides(scenario.config, scenario.job):
        return "experts run as grouped products: how tokens spread over them does not matter"
    even, collapsed = (_routed_peak(scenario, routing, replayed) for routing in ROUTINGS)
    if even == collapsed:
        return f"experts one by one: {format_bytes(even)}, however tokens spread over them"
    return (
        f"experts one by one: {format_bytes(even)} if tokens spread evenly,"
        f" {format_bytes(collapsed)} if all go to the same few;"
        f" {_ASSUMED[scenario.job.routing]} is assumed"
    )


def _routed_peak(scenario: Scenario, routing: str, replayed: Replay) -> int:
    """Return allocated bytes with tokens spread by `routing`; `replayed` is the job's."""
    if routing == scenario.job.routing:
        return replayed.peak.allocated_bytes
    tape = simulate_routed(scenario.config, scenario.job, scenario.platform, routing).tape
    return replay(tape).peak.allocated_bytes


def not_modelled(scenario: Scenario) -> Iterator[str]:
    """Yield what the job has or its files say and nothing counts."""
    yield from (f"config key {key!r}" for key in scenario.config.unknown_keys)
    yield from scenario.config_of_job.not_modelled()
    if scenario.run:
        yield from scenario.run.uncounted
