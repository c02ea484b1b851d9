"""One rank of FSDP1, as `vrambudget.parallel.distributed` wants a rank."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from vrambudget.config.device_mesh import REHEARSE, DeviceMesh
from vrambudget.config.job import Job
from vrambudget.dtypes import named
from vrambudget.engine.context import context, on_meta
from vrambudget.engine.module import Module
from vrambudget.errors import NotModelledError
from vrambudget.parallel.fsdp1.clip import Clip
from vrambudget.parallel.fsdp1.flat import FlatParameter, FlatSettings
from vrambudget.parallel.fsdp1.unit import fully_shard_data_parallel
from vrambudget.parallel.group import Group
from vrambudget.parallel.host import STATES
from vrambudget.parallel.rank import Distributed


class FSDP1(Distributed):
    """A model on the GPU, wrapped layer by layer. Raises NotModelledError.

    A library's, and one of 4-bit weights, lies in main memory before. accelerate's policy is
    MixedPrecision of one type for parameters, gradients and buffers; that of 4-bit weights is their
    storage's (transformers/distributed/fsdp.py, update_fsdp_plugin_peft). What is trained in 16 bit
    it makes float32 under mixed precision (accelerate/accelerator.py, prepare_model).
    """

    in_full = True

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.is_library = job.loop != "plain"
        if job.no_sync or (self.is_library and job.grad_accum > 1):
            raise NotModelledError(
                "FSDP 1 with no_sync is not modelled",
                hint=f"FSDP2 is; {REHEARSE}",
            )
        quantised = job.weight_dtype if job.quant else None
        mixed = (quantised or job.autocast_dtype) if self.is_library else None
        self.upcasts = self.is_library and job.autocast_dtype is not None
        self.settings = FlatSettings(
            Group(mesh.ranks, job.rank or 0),
            param_dtype=named(mixed or job.param_dtype),
            reduce_dtype=named(mixed or job.reduce_dtype),
            buffer_dtype=named(mixed),
            reshards=job.sharding_strategy == "FULL_SHARD",
            use_orig_params=self.is_library if job.use_orig_params is None else job.use_orig_params,
            forward_prefetch=job.forward_prefetch,
            backward_prefetch=job.backward_prefetch == "BACKWARD_PRE"
            or (job.backward_prefetch is None and not self.is_library),
            offload=job.cpu_offload,
            from_host=self.is_library or job.quant is not None,
        )
        self.keeps_cache = self.settings.from_host
        self.clips = Clip(has_others=job.quant is not None, offload=job.cpu_offload)
        self.states = STATES[job.optimizer]
        self.flats: list[FlatParameter] = []

    def building(self) -> AbstractContextManager[None]:
        """Return where the model is built: on the GPU, or in main memory."""
        return on_meta() if self.settings.from_host else nullcontext()

    def wrap(self, model: Module, called: Module) -> Module:
        """Wrap the model."""
        inner = getattr(model, "wrapped", model)
        root = called if self.is_library else None
        shared = fully_shard_data_parallel(inner, self.settings, root)
        context.got_gradient = shared.got_gradient
        self.flats = [unit.flat for unit in shared.units]
        if self.upcasts:
            for flat in self.flats:
                flat.upcast()
        return called

    def reference(self, build: Callable[[], Module]) -> Module:
        """Wrap it as the model is, in its own types (trl/models/utils.py, prepare_fsdp), 1.16."""
        with self.building():
            model = build()
        fully_shard_data_parallel(model, self.settings, model)
        return model

    def host_bytes(self) -> int:
        """Return what CPU offload has in main memory: shards, and gradients and states."""
        if not self.settings.offload:
            return 0
        return sum(
            flat.shard_numel * flat.dtype.itemsize * (2 + self.states if flat.requires_grad else 1)
            for flat in self.flats
        )

    def kind(self, rank: int) -> int:
        """Return the rank where it decides which original parameters it has parts of."""
        return rank if self.settings.use_orig_params else 0
