"""The least that a job takes, without a trace: from its parameters, or from a variant's tape.

In an optimizer step all weights, all gradients, what the optimizer keeps and its temporaries are
alive, at any batch and block and with any layer run again. So a variant that trains the same
weights with the same optimizer takes at least as much; one that trains others takes at least the
weights; and where the weights' type is narrower, all of it shrinks by the ratio at most.

Not modelled: a change of the attention implementation, which may add and drop buffers.
"""

from dataclasses import replace
from itertools import pairwise

from vrambudget.config.device_mesh import DEEPSPEED
from vrambudget.config.job import Job
from vrambudget.engine.context import ModelOptions, on_meta, recording
from vrambudget.estimator import Traced
from vrambudget.scenario import Scenario
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase

ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_TRAINED_BY = ("mode", "lora_rank", "lora_targets", "freeze", "quant")
_KEPT_BY = (*_TRAINED_BY, "optimizer", "torch")
_STEPPED_BY = (*_KEPT_BY, "optimizer_impl", "loop")
_KEPT = (Purpose.WEIGHTS, Purpose.GRADIENTS, Purpose.OPTIMIZER_STATES)


class LowerBound:
    """Lower bounds of the requested bytes of a scenario's variants."""

    def __init__(self, traced: Traced) -> None:
        self.job, tape = traced.scenario.job, traced.tape
        marks = pairwise(tape.marks)
        steps = [(a.position, b.position) for a, b in marks if a.phase == Phase.OPTIMIZER_STEP]
        begin, end = max(steps, default=(tape.marks[0].position, 0))
        self.parts = dict.fromkeys(Purpose, 0)
        for storage in tape.alive_at(begin - 1):
            self.parts[tape.purposes[storage]] += tape.sizes[storage]
        self.in_step = 0  # all of `_KEPT`, and what the step itself makes
        if end:
            made = {storage for storage, change in tape.changes(begin, end) if change > 0}
            sizes = [
                n if purpose in _KEPT or i in made else 0
                for i, (n, purpose) in enumerate(zip(tape.sizes, tape.purposes, strict=True))
            ]
            self.in_step = replace(tape, sizes=sizes).peak_requested_bytes(begin, end)

    def bytes(self, job: Job) -> int:
        """Return what the variant `job` takes at least."""
        if job.attention != self.job.attention:
            return 0
        parts = self.parts[Purpose.WEIGHTS]
        if self._shares(job, _TRAINED_BY):
            parts += self.parts[Purpose.GRADIENTS]
        if self._shares(job, _KEPT_BY):
            parts += self.parts[Purpose.OPTIMIZER_STATES]
        if self._shares(job, _STEPPED_BY):
            parts = max(parts, self.in_step)
        now, then = ITEM_BYTES[self.job.weight_dtype], ITEM_BYTES[job.weight_dtype]
        return parts * min(now, then) // now

    def _shares(self, job: Job, fields: tuple[str, ...]) -> bool:
        return all(getattr(job, name) == getattr(self.job, name) for name in fields)


def least_bytes(job: Job, parameters: int, trainable: int) -> int:
    """Return what a rank surely holds in a step: weights, gradients and AdamW's states.

    A bound from below, to leave out what cannot fit without following it.
    """
    mesh, stored = job.mesh, ITEM_BYTES[job.weight_dtype]
    if job.quant is not None or job.cpu_offload:
        least = parameters if job.quant == "int8" else parameters // 2
        if job.quant is None or job.cpu_offload:
            return 0
        return least // mesh.shards if mesh.data in {"fsdp1", "fsdp2"} else least
    if mesh.data in DEEPSPEED:
        return _least_of_zero(job, parameters, trainable)
    # Of ranks that differ the fullest has no less than its share; those of experts have more.
    shards = mesh.cuts * (mesh.shards // job.replicate if mesh.data == "fsdp2" else 1)
    states = {"adamw": 2, "adam": 2, "sgd-momentum": 1}.get(job.optimizer, 0)
    owners = mesh.ranks if mesh.data == "zero1" else shards
    return (
        parameters * stored // shards
        + trainable * stored // shards
        + states * trainable * stored // owners
    )


def _least_of_zero(job: Job, parameters: int, trainable: int) -> int:
    """Return what a rank of DeepSpeed's ZeRO holds: float32 copies and AdamW's states, too."""
    stored, ranks = ITEM_BYTES[job.weight_dtype], job.mesh.ranks
    copies = ITEM_BYTES["fp32"] * (3 if job.optimizer in {"adamw", "adam"} else 1)
    weights = parameters * stored
    if job.mesh.data == DEEPSPEED[-1]:
        return (weights + trainable * (stored + copies)) // ranks
    return weights + trainable * copies // ranks


def count_parameters(scenario: Scenario) -> int:
    """Return a model's parameters, without memory for them."""
    return count_and_rows(scenario)[0]


def count_and_rows(scenario: Scenario) -> tuple[int, frozenset[int]]:
    """Return a model's parameters, and the lengths of their first dimensions, which shards cut."""
    config, task = scenario.config_of_job, scenario.job.task
    assert task is not None  # noqa: S101 - resolved
    with recording(scenario.platform, ModelOptions()), on_meta():
        parameters = [*config.build(task).parameters()]
        rows = frozenset(p.shape[0] for p in parameters if p.shape)
        return sum(p.numel for p in parameters), rows
