"""The ledger of a budget: named terms, how each is computed, and the totals they add up to.

    weights ... block rounding     what is alive at the peak of allocated bytes
    peak allocated                 their sum
    cached                         peak reserved - peak allocated
    peak reserved                  the sum so far
    CUDA context                   of the GPU
    device total                   the sum of all
    capacity, left                 if a GPU is named

Terms that are zero stay, with the reason; but a job that caches no keys and values has no line for
them. Printed numbers add up to printed totals
(`report.amounts`).
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from vrambudget.budget import BLOCK_ROUNDING, Budget
from vrambudget.report.amounts import Amounts
from vrambudget.tape.events import Purpose


class LedgerLine(NamedTuple):
    """One line; `hundredths` of the ledger's unit, as printed. A total ends a group of terms."""

    name: str
    hundredths: int
    explanation: str
    is_total: bool = False


class Ledger(NamedTuple):
    """A budget in one unit, line by line."""

    amounts: Amounts
    lines: tuple[LedgerLine, ...]


_SOMETIMES = {Purpose.KV_CACHE, Purpose.GATHERED, Purpose.COMMUNICATION}
"""Parts that few jobs have: no line says that they are zero."""


def ledger(budget: Budget) -> Ledger:
    """Return the lines of a budget's table."""
    device = budget.device  # whose unit a reader thinks in, however much too large the job is
    amounts = Amounts.for_total(device.capacity_bytes if device else budget.peak.reserved_bytes)
    return Ledger(amounts, tuple(_lines(budget, amounts)))


def _lines(budget: Budget, amounts: Amounts) -> Iterator[LedgerLine]:
    allocated = amounts.of(budget.peak.allocated_bytes)
    reserved = amounts.of(budget.peak.reserved_bytes)
    parts = amounts.split(list(budget.breakdown.values()), allocated)
    for purpose, part in zip(budget.breakdown, parts, strict=True):
        if purpose in _SOMETIMES and not budget.breakdown[purpose]:
            continue
        yield LedgerLine(purpose, part, how_computed(purpose, budget))
    yield LedgerLine(
        "peak allocated", allocated, "torch.cuda.max_memory_allocated()", is_total=True
    )
    yield LedgerLine("cached", reserved - allocated, "held by PyTorch's allocator for reuse")
    yield LedgerLine("peak reserved", reserved, "torch.cuda.max_memory_reserved()", is_total=True)
    if (device := budget.device) is None:
        return
    total = amounts.of(device.peak_bytes)
    capacity = amounts.of(device.capacity_bytes)
    yield LedgerLine("CUDA context", total - reserved, "the driver's own, outside PyTorch")
    yield LedgerLine("device total", total, "what the GPU must hold", is_total=True)
    yield LedgerLine("capacity", capacity, "as the driver reports it")
    yield LedgerLine("left", capacity - total, "capacity - device total", is_total=True)


def how_computed(purpose: str, budget: Budget) -> str:
    """Say in a few words how a part is computed; a product is shown only if it is exact."""
    explain = _EXPLANATIONS.get(purpose)
    return explain(budget) if explain else ""


def _weights(budget: Budget) -> str:
    if budget.breakdown.get("gathered weights"):
        return f"this rank's shards, {_dtype(budget)}"
    if quant := budget.job.get("quant"):
        rest = "in float32" if budget.job["mode"] == "train" else "as loaded"
        return f"linear layers in {4 if quant == 'nf4' else 8} bit, the rest {rest}"
    exact = _product(budget, budget.parameters.total, "weights")
    return exact or f"parameters, {_dtype(budget)}"


def _autocast_copies(budget: Budget) -> str:
    has_some = budget.job["mode"] == "step" and budget.breakdown["autocast copies"]
    if not budget.job["precision"].startswith("amp-") and not has_some:
        return "none: no autocast"
    until = "until the end of forward" if _evaluates(budget) else "kept for backward"
    return f"weights as {_DTYPES[budget.job['precision']]}, {until}"


def _gradients(budget: Budget) -> str:
    if _evaluates(budget):
        return _NOT_TRAINED
    exact = _product(budget, budget.parameters.trainable, "gradients")
    dtype = "float32" if budget.job.get("lora_rank") else _dtype(budget)
    return exact or f"{dtype}, those alive at the peak"


def _optimizer_states(budget: Budget) -> str:
    if _evaluates(budget):
        return _NOT_TRAINED
    if budget.peak.step == 1 and not budget.breakdown["optimizer states"]:
        return "none yet: created at the end of step 1"
    return _STATES.get(budget.job["optimizer"], "")


def _activations(budget: Budget) -> str:
    if _evaluates(budget):
        return "alive at the peak; nothing is saved"
    if budget.job["checkpointing"] == "full":
        return "each layer's input, one layer recomputed"
    if budget.job["checkpointing"] == "selective-2":
        return "of every second layer, inputs of the others"
    if budget.job["checkpointing"] == "selective-op":
        return "of attention and every second product, layers' inputs"
    return "saved for backward"


_NOT_TRAINED = "none: nothing is trained"
_STATES = {
    "adamw": "AdamW: two per parameter",
    "adam": "Adam: two per parameter",
    "muon": "Muon: one per hidden weight; AdamW: two",
    "lion": "Lion: one float32 per parameter",
    "lion-8bit": "Lion: one byte per parameter, a scale per 256",
    "adamw-8bit": "AdamW: two bytes per parameter, scales per 256",
    "paged-adamw-8bit": "scales; larger states are paged",
    "sgd": "none: SGD keeps nothing",
    "sgd-momentum": "SGD: one momentum per parameter",
    "adafactor": "Adafactor: factors by row and column",
    "none": "none: no optimizer",
}
_EXPLANATIONS: dict[str, Callable[[Budget], str]] = {
    "weights": _weights,
    "autocast copies": _autocast_copies,
    "gradients": _gradients,
    "optimizer states": _optimizer_states,
    "activations": _activations,
    "KV cache": lambda _: "keys and values of each layer and token",
    "logits and loss": lambda _: "the head's output, and the loss's copies",
    "temporaries": lambda _: "alive within one operation",
    "workspaces": lambda _: "cuBLAS: one per thread that multiplies",
    "inputs": lambda _: "the batch",
    "gathered weights": lambda _: "whole layers, while they are needed",
    "communication buffers": lambda _: "what collectives read and write",
    BLOCK_ROUNDING: lambda _: "512-byte blocks; up to 1 MiB left unsplit",
}
_DTYPES = {
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "amp-bf16": "bfloat16",
    "amp-fp16": "float16",
}


def _evaluates(budget: Budget) -> bool:
    return budget.job["mode"] not in {"train", "step"} or budget.job["optimizer"] == "none"


def _dtype(budget: Budget) -> str:
    """Return the dtype of the weights."""
    precision = budget.job.get("weights") or budget.job["precision"]
    return "float32" if precision.startswith("amp-") else _DTYPES.get(precision, precision)


def _product(budget: Budget, count: int, purpose: str) -> str | None:
    width = 4 if _dtype(budget) == "float32" else 2
    return f"{count:,} x {width} B" if count * width == budget.breakdown[purpose] else None
