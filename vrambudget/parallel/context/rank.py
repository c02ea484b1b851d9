"""One rank of a ring, around what else its layout does with the model.

    with context_parallel(mesh, buffers=[input_ids, labels, freqs_cis], ...):
        with autocast(...): loss = model(...)
        loss.backward()

Labels are cut as the tokens are, so the loss is that of the rank's own tokens. Without DDP or FSDP
around the model a script reduces gradients itself, in place.

Source: torchtitan/train.py (forward_backward_step), distributed/utils.py
(create_context_parallel_ctx).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from vrambudget.config.device_mesh import REHEARSE, DeviceMesh
from vrambudget.config.job import Job
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.models.families.titan import Transformer
from vrambudget.parallel.context.region import Buffer, context_parallel
from vrambudget.parallel.context.ring import Ring
from vrambudget.parallel.group import Group
from vrambudget.parallel.rank import Distributed


class Replicated(Distributed):
    """All weights on each rank, without a wrapper."""

    def wrap(self, model: Module, called: Module) -> Module:
        """Return what the loop calls."""
        del model
        return called


class ContextParallel(Distributed):
    """A rank whose rows are its part of a sequence; `inner`: DDP, FSDP2 or Replicated."""

    in_full = True

    def __init__(self, inner: Distributed, job: Job, mesh: DeviceMesh) -> None:
        self.inner = inner
        self.ring = Ring(Group(mesh.cp, (job.rank or 0) % mesh.cp), job.rotate_method)
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

    def region(self, batch: Mapping[str, Tensor]) -> AbstractContextManager[None]:
        """Cut the batch and the model's tables, and make attention pass around the ring."""
        cut = [Buffer(x, 1) for x in batch.values()]
        return context_parallel(self.ring, [*cut, *self._tables])
