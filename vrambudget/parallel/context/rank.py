"""One rank of a ring, around what else its layout does with the model."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from vrambudget.config.job import Job
from vrambudget.config.layout import REHEARSE, Layout
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError
from vrambudget.models.families.titan import Transformer
from vrambudget.parallel.context.loop import train
from vrambudget.parallel.context.region import Buffer
from vrambudget.parallel.context.ring import Ring
from vrambudget.parallel.group import Group
from vrambudget.parallel.rank import Distributed
from vrambudget.training.loops.run import Run


class Replicated(Distributed):
    """All weights on each rank, without a wrapper."""

    def wrap(self, model: Module, called: Module) -> Module:
        """Return what the loop calls."""
        del model
        return called


class ContextParallel(Distributed):
    """A rank whose rows are its part of a sequence; `inner`: DDP, FSDP2 or Replicated."""

    in_full = True

    def __init__(self, inner: Distributed, job: Job, layout: Layout) -> None:
        self.inner = inner
        self.ring = Ring(Group(layout.cp, (job.rank or 0) % layout.cp), job.rotate_method)
        self.loop = self
        self._tables: list[Buffer] = []

    def building(self) -> AbstractContextManager[None]:
        """Build as the inner layout does."""
        return self.inner.building()

    def cut(self, model: Module) -> None:
        """Cut as the inner layout does."""
        self.inner.cut(model)

    def wrap(self, model: Module, called: Module) -> Module:
        """Wrap as the inner layout does, and find the tables of positions."""
        root = getattr(model, "wrapped", model)
        if not isinstance(root, Transformer):
            raise NotModelledError(
                f"context parallelism of {type(root).__name__} is not modelled: torchtitan's Llama"
                " is",
                hint=f"model_type titan is the same architecture as Llama; {REHEARSE}",
            )
        self._tables = [Buffer(root.freqs_cis, 0, restored=True)]
        return self.inner.wrap(model, called)

    def micro_batch(self, *, is_last: bool) -> None:
        """Begin one."""
        self.inner.micro_batch(is_last=is_last)

    def stepped(self, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
        """Return the parameters that this rank's optimizer steps."""
        return self.inner.stepped(parameters)

    def host_bytes(self) -> int:
        """Return what this rank has in main memory."""
        return self.inner.host_bytes()

    def kind(self, rank: int) -> int:
        """Return the rank: the first meets others' keys with half its queries."""
        return rank

    def train(self, run: Run) -> dict[str, Any]:
        """Train."""
        return train(run, self.ring, self._tables)

    def evaluate(self, run: Run) -> dict[str, Any]:
        """Refused when the job was checked."""
        raise NotImplementedError
