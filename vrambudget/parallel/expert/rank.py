"""One rank of expert parallelism: built without memory, its experts cut, then materialised.

from_pretrained loads each rank's part in threads, and the order in which weights come to lie in
memory is theirs: reserved bytes after it may differ from the estimate.
"""

from collections.abc import Sequence

from vrambudget.config.device_mesh import DeviceMesh
from vrambudget.config.job import Job
from vrambudget.engine.context import on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError
from vrambudget.parallel.dtensor import ShardedTensorParameter
from vrambudget.parallel.expert.plan import share_experts
from vrambudget.parallel.group import Group
from vrambudget.parallel.rank import Materialised


class ExpertParallel(Materialised):
    """One of `layout.ep` ranks."""

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job = job
        self.group = Group(mesh.ep, job.rank or 0)

    def cut(self, model: Module) -> None:
        """Leave each layer the rank's experts."""
        with on_meta():
            share_experts(model, self.group)

    def stepped(self, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
        """Return all. Raises NotModelledError where PyTorch cannot step or clip them together."""
        kinds = {isinstance(p, ShardedTensorParameter) for p in parameters}
        together = self.job.optimizer_impl != "for-loop" or self.job.clip is not None
        if len(kinds) > 1 and together:
            raise NotModelledError(
                "PyTorch refuses to clip, or to step by foreach or fused kernels, experts that are"
                " cut among ranks together with parameters that are not",
                hint="use --optimizer-impl for-loop (AdamW(..., foreach=False)) and leave --clip"
                " out, or train adapters alone (--lora-rank)",
            )
        return parameters
