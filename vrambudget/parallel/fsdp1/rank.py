"""One rank of FSDP1, as `vrambudget.parallel.ranked` wants a rank."""

from vrambudget import dtypes
from vrambudget.config.job import Job
from vrambudget.config.layout import Layout
from vrambudget.engine.module import Module
from vrambudget.errors import NotModelledError
from vrambudget.parallel.fsdp1.clip import Clip
from vrambudget.parallel.fsdp1.flat import FlatSettings
from vrambudget.parallel.fsdp1.unit import fully_shard_data_parallel
from vrambudget.parallel.group import Group
from vrambudget.parallel.rank import Ranked

_DTYPES = {"fp32": dtypes.float32, "bf16": dtypes.bfloat16, "fp16": dtypes.float16, None: None}


class FSDP1(Ranked):
    """A model on the GPU, wrapped layer by layer. Raises NotModelledError."""

    in_full = True

    def __init__(self, job: Job, layout: Layout) -> None:
        if job.no_sync:
            raise NotModelledError(
                "FSDP 1 with no_sync is not modelled",
                hint="FSDP2 is, or `vrambudget rehearse --ranks N -- python train.py`",
            )
        self.settings = FlatSettings(
            Group(layout.ranks, job.rank or 0),
            param_dtype=_DTYPES[job.param_dtype],
            reduce_dtype=_DTYPES[job.reduce_dtype],
            reshards=job.sharding_strategy == "FULL_SHARD",
            use_orig_params=job.use_orig_params,
            forward_prefetch=job.forward_prefetch,
        )
        self.clips = Clip()

    def wrap(self, model: Module, called: Module) -> Module:
        """Wrap the model."""
        fully_shard_data_parallel(getattr(model, "wrapped", model), self.settings)
        return called

    def ranks_differ(self) -> bool:
        """Whether the last shards are padded: all take as much."""
        return self.settings.use_orig_params  # which original parameters a rank has parts of
