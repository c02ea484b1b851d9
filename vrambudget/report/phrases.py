"""The sentences of a report: one wording for the table, Markdown, HTML and the notebook.

verdict     "FITS", "33.55 of 79.25 GiB on NVIDIA A100-SXM4-80GB: 45.70 GiB left"
job         what was counted
moments     when the peak is, when the GPU is full
notes       what is not modelled, what was assumed
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget.budget import Budget
from vrambudget.config.fields.training import BITSANDBYTES
from vrambudget.report.ledger import Ledger
from vrambudget.units import format_bytes

_ZEROED = {"zeros": "in place", "late": "after the forward pass"}


def verdict(budget: Budget, lines: Ledger) -> tuple[str, str]:
    """Return the verdict's word and sentence, in the numbers that the ledger prints."""
    printed = {line.name: lines.amounts.text(abs(line.hundredths)) for line in lines.lines}
    unit, device = lines.amounts.unit, budget.device
    least = "at least " if budget.not_modelled else ""
    if device is None:
        reserved, allocated = printed["peak reserved"], printed["peak allocated"]
        return "PEAK", f"{least}{reserved} {unit} reserved, {allocated} {unit} allocated"
    total, capacity, left = printed["device total"], printed["capacity"], printed["left"]
    needs = f"{least}{total} of {capacity} {unit} on {device.name}"
    if not device.fits:
        return "DOES NOT FIT", f"{needs}: {left} {unit} short"
    if device.headroom_bytes < 0:
        return "FITS", f"{needs}, barely: PyTorch has to return cached segments to the driver"
    return "FITS", f"{needs}: {left} {unit} left"


def job_text(budget: Budget) -> str:
    """Return the model and the job in a sentence."""
    job = budget.job
    words = [f"batch {job['batch']}", *_lengths(job), job["precision"]]
    words += [f"{job['weights']} weights"] if job.get("weights") else []
    words += [f"{job['loop']} loop"] if job.get("loop", "plain") != "plain" else []
    if job["mode"] == "train":
        default = "bitsandbytes" if job["optimizer"] in BITSANDBYTES else "PyTorch's default"
        implementation = job["optimizer_impl"] or default
        words.append(f"{job['optimizer']} ({implementation})")
        words += [f"clip {job['clip']}"] if job["clip"] is not None else []
        words += [f"{job['grad_accum']} micro-batches"] if job["grad_accum"] > 1 else []
        words += [f"gradients zeroed {_ZEROED[job['zero_grad']]}"] if _zeroes(job) else []
        words += ["label smoothing"] if job.get("label_smoothing") else []
        words += [_evaluation(job)] if job.get("eval_batches") else []
        words += ["checkpointing"] if job["checkpointing"] == "full" else []
        words += ["4-bit weights"] if job.get("quant") else []
        words += [f"LoRA rank {job['lora_rank']}"] if job.get("lora_rank") else []
    words += ["padding mask"] if job.get("attention_mask") == "padding" else []
    kernel = f" ({job['attention_kernel']} kernel)" if job.get("attention_kernel") else ""
    words += [f"{job['attention']} attention{kernel}", f"torch {job['torch']}"]
    words += [f"transformers {job['transformers']}"] if job.get("transformers") else []
    return f"{budget.model}, {budget.parameters.total:,} parameters: {', '.join(words)}"


def _lengths(job: Mapping[str, Any]) -> list[str]:
    if job["mode"] != "generate":
        return [f"block {job['block']}", job["mode"]]
    how = "sampled" if job["sample"] else "greedy"
    words = [f"a prompt of {job['prompt']} tokens", f"generate {job['new']} more ({how})"]
    words += [f"{job['num_return']} answers each"] if job["num_return"] > 1 else []
    words += [f"chunks of {job['prefill_chunk']}"] if job["prefill_chunk"] else []
    return [*words, f"{job['cache']} cache" if job["cache"] != "none" else "no cache"]


def _zeroes(job: Mapping[str, Any]) -> bool:
    return bool(job.get("zero_grad", "none") != "none")


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


def _step(budget: Budget, step: int, of: str = "") -> str:
    """Return which step it is; a generation's phases say so themselves."""
    return "" if budget.job["mode"] == "generate" else f"step {step + 1}{of}, "


def phase_text(phase: str) -> str:
    """Return a phase as text."""
    return phase.replace("_", " ")


def notes(budget: Budget) -> Iterator[str]:
    """Yield what is not modelled and what was assumed."""
    for missing in budget.not_modelled:
        yield f"not modelled: {missing}: the numbers are a lower bound"
    for warning in budget.warnings:
        yield f"note: {warning}"
