"""The least that a variant of a job takes, from the job's own tape and without a walk.

Right before an optimizer step all weights, all gradients and what the optimizer keeps are alive, at
any batch and block and with any layer run again. So a variant that trains the same weights with the
same optimizer takes at least as much; one that trains others takes at least the weights; and where
the weights' type is narrower, all of it shrinks by the ratio at most.

Not modelled: a change of the attention implementation, which may add and drop buffers.
"""

from vrambudget.config.job import Job
from vrambudget.estimator import Followed
from vrambudget.tape.events import Purpose
from vrambudget.tape.marks import Phase

_ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
_TRAINED_BY = ("mode", "lora_rank", "lora_targets", "freeze", "quant")
_KEPT_BY = (*_TRAINED_BY, "optimizer", "torch")


class Floor:
    """Lower bounds of the requested bytes of a scenario's variants."""

    def __init__(self, followed: Followed) -> None:
        self.job, tape = followed.scenario.job, followed.tape
        steps = (mark for mark in tape.marks if mark.phase == Phase.OPTIMIZER_STEP)
        mark = max(steps, key=lambda mark: mark.position, default=tape.marks[0])
        self.parts = dict.fromkeys(Purpose, 0)
        for storage in tape.alive_at(mark.position - 1):
            self.parts[tape.purposes[storage]] += tape.sizes[storage]

    def bytes(self, job: Job) -> int:
        """Return what the variant `job` takes at least."""
        if job.attention != self.job.attention:
            return 0
        parts = self.parts[Purpose.WEIGHTS]
        if self._shares(job, _TRAINED_BY):
            parts += self.parts[Purpose.GRADIENTS]
        if self._shares(job, _KEPT_BY):
            parts += self.parts[Purpose.OPTIMIZER_STATES]
        now, then = _ITEM_BYTES[self.job.weight_dtype], _ITEM_BYTES[job.weight_dtype]
        return parts * min(now, then) // now

    def _shares(self, job: Job, fields: tuple[str, ...]) -> bool:
        return all(getattr(job, name) == getattr(self.job, name) for name in fields)
