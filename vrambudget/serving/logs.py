"""Starts of servers that others published with their logs, held against the estimate.

    {"model": ..., "gpu": ..., "engine": "vllm 0.19.0", "options": {...},
     "printed": {"weights_gib": 14.99, "tokens": 476000}, "page": where}

Of a range the middle is held against what the log prints.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from vrambudget.config.gpus import find_gpu
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantization_config import quantisation_of
from vrambudget.serving.vllm import serve
from vrambudget.serving.vllm_versions import KNOWN, minor_of
from vrambudget.serving.weights import load_decoder

_GIB = 2**30
_KEYS = ("model", "gpu", "engine", "options", "printed")


@dataclass(frozen=True, slots=True)
class PublishedStart:
    """What is estimated of one start, and what its log prints."""

    id: str
    kind: str
    weights_gib: float
    printed_weights_gib: float
    tokens: int
    printed_tokens: int

    @property
    def error(self) -> float:
        """How much more tokens are estimated than were printed, as a part of those."""
        return self.tokens / self.printed_tokens - 1


@dataclass(frozen=True, slots=True)
class Starts:
    """The starts of one kind: how many, the errors of their tokens, and equal weights."""

    kind: str
    starts: int
    weights: float  # the share whose weights are equal, to the last digit that is printed
    median: float
    worst: float
    worst_start: str


def start_of(record: Mapping[str, Any]) -> PublishedStart:
    """Return a start's estimate. Raises VramBudgetError."""
    if lacking := [key for key in _KEYS if key not in record]:
        raise VramBudgetError(f"this start has no {' and no '.join(lacking)}")
    minor = minor_of(record["engine"])
    if minor is None:
        raise NotModelledError(f"a start of {record['engine']} is not modelled: vllm {KNOWN} is")
    found, gpu = find_model(record["model"]), find_gpu(record["gpu"])
    config = load_decoder(found.values, where=found.where)
    options = ServeOptions.parse({**record["options"], "engine_version": f"0.{minor}"})
    values = found.values.get("quantization_config")
    quantised = quantisation_of(values, options.quantization, gpu, where=found.where)
    serving, printed = serve(config, gpu, options, quantised), record["printed"]
    what = "dense" if quantised is None else "quantised"
    if isinstance(config, MoeConfig):
        what = "mixtures of experts"
    if isinstance(config, LatentConfig):
        what = "latent attention"
    gpus = {options.tensor_parallel_size, options.pipeline_parallel_size} - {1}
    many = f", {max(gpus)} GPUs" if gpus else ", 1 GPU"
    way = " by layers" if options.pipeline_parallel_size > 1 else ""
    return PublishedStart(
        id=f"{config.model_type}, {serving.weights_bytes / _GIB:.2f} GiB{many}",
        kind=f"{what}{many}{way}",
        weights_gib=round(serving.weights_bytes / _GIB, 2),
        printed_weights_gib=printed["weights_gib"],
        tokens=sum(serving.tokens) // 2,
        printed_tokens=printed["tokens"],
    )


def by_kind(starts: Iterable[PublishedStart]) -> list[Starts]:
    """Return a row for each kind of start, and one for all."""
    found = list(starts)
    kinds = dict.fromkeys(start.kind for start in found)
    groups = [(kind, [start for start in found if start.kind == kind]) for kind in sorted(kinds)]
    return [_together(kind, group) for kind, group in [*groups, ("all", found)]]


def _together(kind: str, group: list[PublishedStart]) -> Starts:
    worst = max(group, key=lambda start: abs(start.error))
    equal = sum(start.weights_gib == start.printed_weights_gib for start in group)
    return Starts(
        kind=kind,
        starts=len(group),
        weights=equal / len(group),
        median=median(abs(start.error) for start in group),
        worst=worst.error,
        worst_start=worst.id,
    )
