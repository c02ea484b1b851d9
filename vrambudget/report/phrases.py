"""The sentences of a report: one wording for the table, Markdown, HTML and the notebook.

verdict     "FITS", "33.55 of 79.25 GiB on NVIDIA A100-SXM4-80GB: 45.70 GiB left"
job         the job
moments     when the peak is, when the GPU is full
notes       what is not modelled, what was assumed
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from vrambudget.budget import Budget, Device, MultiGpu, RankPeak
from vrambudget.config.fields.adapters import ALL_LINEAR
from vrambudget.config.fields.training import BITSANDBYTES
from vrambudget.config.loops import TRAINERS
from vrambudget.report.ledger import Ledger
from vrambudget.units import format_bytes

TIGHT = "FITS ONLY IF NOTHING ELSE USES THE GPU"
_CUDNN = "cuDNN 9.19"  # whose workspaces for attention are known: ops/attention/cudnn.py
_ZEROED = {"zeros": "in place", "late": "after the forward pass"}
_QUANTISED = {"nf4": "4-bit weights", "int8": "8-bit weights"}
_CHECKPOINTING = {
    "none": [],
    "full": ["checkpointing"],
    "selective-2": ["checkpointing of every second layer"],
    "selective-op": ["checkpointing by operation"],
}


def verdict(budget: Budget, lines: Ledger) -> tuple[str, str]:
    """Return the verdict's word and sentence, in the numbers that the ledger prints."""
    printed = {line.name: lines.amounts.text(abs(line.hundredths)) for line in lines.lines}
    unit, device = lines.amounts.unit, budget.device
    least = "at least " if budget.not_modelled else ""
    if device is None:
        reserved, allocated = printed["peak reserved"], printed["peak allocated"]
        return "PEAK", f"{least}{reserved} {unit} reserved, {allocated} {unit} allocated"
    total, capacity, left = printed["device total"], printed["capacity"], printed["left"]
    each = f"each of {budget.distributed.ranks} " if budget.distributed else ""
    needs = f"{least}{total} of {capacity} {unit} on {each}{device.name}"
    if not device.fits:
        return "DOES NOT FIT", f"{needs}: {left} {unit} short"
    if device.is_tight and device.headroom_bytes < 0:
        return TIGHT, f"all of {capacity} {unit} on {each}{device.name}: {_what_is_left(device)}"
    if device.is_tight:
        return TIGHT, f"{needs}: {_what_is_left(device)}"
    return "FITS", f"{needs}: {left} {unit} left"


def _what_is_left(device: Device) -> str:
    """Return how much is left, and what it has to do for."""
    left = format_bytes(device.headroom_bytes)
    if device.headroom_bytes < 0:
        more = format_bytes(-device.headroom_bytes)
        left = f"PyTorch would keep {more} more in its cache, and has to return it to the driver"
    else:
        left = f"{left} left"
    low, high = device.context_range or (0, 0)
    if high > low:
        more = format_bytes(high - device.context_bytes)
        return f"{left}, and the CUDA context may take {more} more"
    return f"{left}, and one figure of the CUDA context was published"


def _whose(job: Mapping[str, Any]) -> str:
    """Return whose optimizer it is, where no implementation is named."""
    if job["optimizer"] in BITSANDBYTES:
        return "bitsandbytes"
    own = job["optimizer"] == "adafactor" and job.get("loop") in TRAINERS
    return "transformers" if own else "PyTorch's default"


def job_text(budget: Budget) -> str:
    """Return the model and the job in a sentence."""
    job = budget.job
    distributed = budget.distributed
    if job["mode"] == "step":
        return f"{_model(budget)}: {', '.join(_of_step(job))}"
    words = [f"{distributed.parallel} on {distributed.ranks} ranks"] if distributed else []
    words += [f"batch {job['batch']}{' each' if distributed else ''}", *_lengths(job)]
    words.append(job["precision"])
    words += [f"{job['weights']} weights"] if job.get("weights") else []
    words += [f"{job['loop']} loop"] if job.get("loop", "plain") != "plain" else []
    if job["mode"] == "train":
        words.append(f"{job['optimizer']} ({job['optimizer_impl'] or _whose(job)})")
        words += [f"clip {job['clip']}"] if job["clip"] is not None else []
        words += [f"{job['grad_accum']} micro-batches"] if job["grad_accum"] > 1 else []
        if job.get("zero_grad", "none") != "none":
            words.append(f"gradients zeroed {_ZEROED[job['zero_grad']]}")
        words += ["label smoothing"] if job.get("label_smoothing") else []
        words += [_evaluation(job)] if job.get("eval_batches") else []
        words += _CHECKPOINTING[job["checkpointing"]]
    words += [_QUANTISED[job["quant"]]] if job.get("quant") else []
    words += [_adapters(job)] if job.get("lora_rank") else []
    words += ["padding mask"] if job.get("attention_mask") == "padding" else []
    kernel = (job.get("attention_kernel") or "").replace("cudnn", _CUDNN)
    if kernel != "none":
        words.append(f"{job['attention']} attention" + (f" ({kernel} kernel)" if kernel else ""))
    words.append(f"torch {job['torch']}")
    words += [f"transformers {job['transformers']}"] if job.get("transformers") else []
    return f"{_model(budget)}: {', '.join(words)}"


def _model(budget: Budget) -> str:
    return f"{budget.model}, {budget.parameters.total:,} parameters"


def _of_step(job: Mapping[str, Any]) -> list[str]:
    """Return what is known of a step of one's own (vrambudget.trace)."""
    calls = f"{job['steps']} step{'s' * (job['steps'] > 1)} of its own code"
    optimizer = [job["optimizer"]] if job["optimizer"] != "none" else []
    return [calls, job["precision"], *optimizer, f"torch {job['torch']}"]


def _lengths(job: Mapping[str, Any]) -> list[str]:
    if job["mode"] != "generate":
        shortest = f"{job['shortest']} to " if job.get("shortest") else ""
        row = job.get("inputs") or f"block {shortest}{job['block']}"
        return [row, job["mode"], *_of_forward(job)]
    how = "sampled" if job["sample"] else "greedy"
    how = f"{job['num_beams']} beams" if job["num_beams"] > 1 else how
    words = [f"a prompt of {job['prompt']} tokens", f"generate {job['new']} more ({how})"]
    words += [f"{job['num_return']} answers each"] if job["num_return"] > 1 else []
    words += [f"chunks of {job['prefill_chunk']}"] if job["prefill_chunk"] else []
    return [*words, f"{job['cache']} cache" if job["cache"] != "none" else "no cache"]


def _adapters(job: Mapping[str, Any]) -> str:
    targets = job["lora_targets"]
    names = "all linear layers" if targets == ALL_LINEAR else " and ".join(targets)
    return f"LoRA rank {job['lora_rank']} on {names}"


def _of_forward(job: Mapping[str, Any]) -> list[str]:
    """Return what a forward pass without a loss keeps or makes, where it is not the usual."""
    kept = job.get("logits_to_keep")
    words = [f"logits of the last {kept} tokens" if kept > 1 else "the last logits"] if kept else []
    words += [f"{job['pool']} pooling"] if job.get("pool", "none") != "none" else []
    return [*words, *(["its graph kept"] if job.get("with_grad") else [])]


def _evaluation(job: Mapping[str, Any]) -> str:
    gathered = ", logits gathered" if job.get("eval_gather") else ""
    return f"evaluation of {job['eval_batches']} batches of {job['eval_batch']}{gathered}"


def moments(budget: Budget) -> Iterator[str]:
    """Yield when the peak is, and when the GPU is full."""
    peak, steps, failure = budget.peak, len(budget.steps), budget.out_of_memory
    when = f"{_step(budget, peak.step, f' of {steps}')}{phase_text(peak.phase)}, {peak.operation}"
    yield f"the peak is in {when}"
    if failure is not None:
        asked = format_bytes(failure.requested_bytes)
        held = format_bytes(failure.allocated_bytes)
        yield (
            f"out of memory in {_step(budget, failure.step)}{phase_text(failure.phase)}:"
            f" {failure.operation} requests {asked} with {held} allocated"
        )
    if budget.full_at is not None:
        by = "" if budget.full_at.is_exact else " at the latest"
        yield f"the GPU is full at {budget.full_at.tokens:,} tokens of a row{by}"


def _step(budget: Budget, step: int, of: str = "") -> str:
    """Return which step it is; a generation's phases say so themselves."""
    return "" if budget.job["mode"] == "generate" else f"step {step}{of}, "


def phase_text(phase: str) -> str:
    """Return a phase as text."""
    return phase.replace("_", " ")


def notes(budget: Budget) -> Iterator[str]:
    """Yield what is not modelled, what was assumed, and what other ranks take."""
    for missing in budget.not_modelled:
        yield f"not modelled: {missing}: the numbers are a lower bound"
    for warning in budget.warnings:
        yield f"note: {warning}"
    if budget.distributed is not None:
        yield from _notes_of_ranks(budget.distributed, budget.job["rank"] or 0)
    if budget.device is not None and budget.device.context_range is not None:
        yield _of_context(budget.device, budget.device.context_range)


def _of_context(device: Device, published: tuple[int, int]) -> str:
    """Say what is assumed of the driver's own memory, in which range, and who says so."""
    assumed, low, high = (f"{n / 2**20:.0f}" for n in (device.context_bytes, *published))
    between = f" of {low} to {high} MiB" if low != high else ""
    return f"CUDA context: {assumed} MiB{between} ({device.context_source})"


def _equal_ranks(peaks: Sequence[RankPeak]) -> Collection[Sequence[RankPeak]]:
    """Return ranks that take the same together."""
    groups: dict[tuple[int, int], list[RankPeak]] = {}
    for peak in peaks:
        groups.setdefault((peak.peak_reserved_bytes, peak.peak_allocated_bytes), []).append(peak)
    return groups.values()


def _notes_of_ranks(distributed: MultiGpu, shown: int) -> Iterator[str]:
    """Yield what the other ranks take, and what no rank's number holds."""
    if len(distributed.peaks) == 1:
        yield f"ranks: all {distributed.ranks} take the same"
    for equal in _equal_ranks(distributed.peaks) if len(distributed.peaks) > 1 else ():
        allocated = format_bytes(equal[0].peak_allocated_bytes)
        reserved = format_bytes(equal[0].peak_reserved_bytes)
        numbers = [str(peak.rank) for peak in equal]
        names = f"rank {numbers[0]}" if len(equal) == 1 else f"ranks {', '.join(numbers)}"
        above = ", the one above" if str(shown) in numbers else ""
        yield f"{names}: {reserved} reserved, {allocated} allocated{above}"
    if distributed.host_bytes:
        yield f"in main memory, for each rank: {format_bytes(distributed.host_bytes)}"
    low, high = map(format_bytes, distributed.nccl_bytes)
    groups = "1 group" if distributed.nccl_groups == 1 else f"{distributed.nccl_groups} groups"
    yield (
        f"not included: the buffers of NCCL, {low} to {high} for {groups}:"
        " 12 MiB a channel, 2 to 32 channels, rings and trees (NCCL's init.cc and transport/p2p.cc)"
    )
