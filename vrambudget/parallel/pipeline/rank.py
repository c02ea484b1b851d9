"""One rank of a pipeline, as `vrambudget.parallel.distributed` wants a rank."""

from contextlib import AbstractContextManager
from typing import Any

from vrambudget.config.device_mesh import DeviceMesh
from vrambudget.config.job import Job
from vrambudget.engine.context import on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.versions import torch_since
from vrambudget.errors import VramBudgetError
from vrambudget.parallel.pipeline.build import build
from vrambudget.parallel.pipeline.cut import Piece, pieces_of
from vrambudget.parallel.pipeline.loop import train
from vrambudget.parallel.pipeline.schedules import Schedule
from vrambudget.parallel.pipeline.stage import Stage
from vrambudget.parallel.rank import Distributed
from vrambudget.training.loops.run import Run


class Pipeline(Distributed):
    """A rank's stages, and the loop that runs them. Raises VramBudgetError."""

    in_full = True

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job, self.ranks, self.rank = job, mesh.pp, job.rank or 0
        self.stages = mesh.pp * job.stages_per_rank
        self.microbatches = job.microbatches or job.batch
        _check(job, self.ranks, self.microbatches)
        self.loop = self
        self._pieces: list[Piece] = []

    def building(self) -> AbstractContextManager[None]:
        """Build the whole model without memory."""
        return on_meta()

    def cut(self, model: Module) -> None:
        """Take the rank's own stages."""
        own = range(self.rank, self.stages, self.ranks)
        self._pieces = pieces_of(model, stages=self.stages, own=own)

    def wrap(self, model: Module, called: Module) -> Module:
        """Give the rank's stages their memory."""
        del model
        for piece in self._pieces:
            build(piece)
        return called

    def train(self, run: Run) -> dict[str, Any]:
        """Train."""
        return train(run, self._schedule())

    def evaluate(self, run: Run) -> dict[str, Any]:
        """Refused when the job was checked."""
        raise NotImplementedError

    def kind(self, rank: int) -> int:
        """Return the rank: the first has the embedding, the last one the head."""
        return rank

    def _schedule(self) -> Schedule:
        own = zip(range(self.rank, self.stages, self.ranks), self._pieces, strict=True)
        stages = [self._stage(index, piece) for index, piece in own]
        return Schedule(self.job.schedule, stages, self.microbatches, self.ranks, self.rank)

    def _stage(self, index: int, piece: Piece) -> Stage:
        norm = piece.layers[0].attention_norm.weight
        assert self.job.block is not None  # noqa: S101 - resolved by the caller
        shape = (self.job.batch // self.microbatches, self.job.block, *norm.shape)
        ends = index == 0, index == self.stages - 1
        lets_go = torch_since(2, 15) and self.job.schedule != "Interleaved1F1B"
        return Stage(piece, index, *ends, shape, norm.dtype, lets_go)


def _check(job: Job, ranks: int, microbatches: int) -> None:
    """Raise VramBudgetError for what PyTorch refuses."""
    if job.batch % microbatches:
        raise VramBudgetError(
            f"batch is {job.batch}, which {microbatches} microbatches do not divide",
            hint="batch is the sum of all microbatches of a step",
        )
    if job.grad_accum > 1:
        raise VramBudgetError(
            f"grad_accum is {job.grad_accum}; a pipeline accumulates by microbatches",
            hint="raise batch and microbatches instead",
        )
    interleaved = job.schedule == "Interleaved1F1B"
    if job.stages_per_rank > 1 and not interleaved:
        raise VramBudgetError(
            f"stages_per_rank is {job.stages_per_rank}; schedule {job.schedule} has one",
            hint="use Interleaved1F1B",
        )
    if job.schedule == "1F1B" and microbatches < ranks:
        raise VramBudgetError(
            f"1F1B takes at least as many microbatches as stages; there are {microbatches} for"
            f" {ranks}",
            hint="raise microbatches and batch",
        )
    rounds = max(1, microbatches // ranks)
    if interleaved and microbatches % rounds:
        raise VramBudgetError(
            f"Interleaved1F1B takes a multiple of {rounds} microbatches, the number of its rounds;"
            f" there are {microbatches}"
        )
