"""A job's model, made ready for its ranks: built, cut or wrapped, and given its micro-batches.

    ddp, zero1    built on the GPU, then wrapped; the optimizer's states are shared (zero1)
    fsdp1         built on the GPU, wrapped layer by layer
    deepspeed1-3  built on the GPU in float32, then initialised
    fsdp2, tp, ep  built without memory, cut, then materialised
    pp            the same, and a loop of its own
    cp            as ddp or fsdp2 do it, and a loop with context_parallel

What a training loop has to know of it is in `parallel.rank`; a loop of one GPU has none.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from vrambudget.config.device_mesh import DEEPSPEED, REHEARSE, DeviceMesh
from vrambudget.config.job import Job
from vrambudget.config.loops import TRAINERS
from vrambudget.dtypes import named
from vrambudget.engine.context import on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import NotModelledError
from vrambudget.parallel.context.rank import ContextParallel, Replicated
from vrambudget.parallel.ddp import DdpSettings, DistributedDataParallel
from vrambudget.parallel.deepspeed.rank import DeepSpeed
from vrambudget.parallel.dtensor import ShardedTensorParameter
from vrambudget.parallel.expert.rank import ExpertParallel
from vrambudget.parallel.fsdp1.rank import FSDP1
from vrambudget.parallel.fsdp2.layer_hooks import surround
from vrambudget.parallel.fsdp2.parameter import Policies
from vrambudget.parallel.fsdp2.state import set_requires_gradient_sync
from vrambudget.parallel.fsdp2.wrap import FullyShard, Sharding, layers_of
from vrambudget.parallel.group import Group
from vrambudget.parallel.host import STATES
from vrambudget.parallel.meta import move
from vrambudget.parallel.pipeline.rank import Pipeline
from vrambudget.parallel.rank import Distributed, Materialised
from vrambudget.parallel.tensor.collectives import all_gather
from vrambudget.parallel.tensor.plan import parallelize
from vrambudget.parallel.zero1 import move_into_buckets, partitioned
from vrambudget.training.fused_head import FusedHead
from vrambudget.training.param_groups import decay_groups

_LIBRARIES = ("accelerate", *TRAINERS)
_PREPARED = ("ddp", "fsdp1", "fsdp2", *DEEPSPEED)
"""What libraries' trainings are modelled with: accelerate prepares their models."""


def distributed(job: Job) -> Distributed | None:
    """Return one rank of a job, None for a job of one GPU.

    Raises NotModelledError for combinations without rules.
    """
    mesh = job.mesh
    refuse(job, mesh)
    inner = _by_data(job, mesh)
    return inner if inner is None or mesh.cp == 1 else ContextParallel(inner, job, mesh)


def _by_data(job: Job, mesh: DeviceMesh) -> Distributed | None:
    if mesh.data == "fsdp2":
        return _FSDP2(job, mesh)
    if mesh.data == "fsdp1":
        return FSDP1(job, mesh)
    if mesh.data in DEEPSPEED:
        return DeepSpeed(job)
    if mesh.data in {"ddp", "zero1"}:
        return _DDP(job, mesh)
    return _cut_model(job, mesh)


def _cut_model(job: Job, mesh: DeviceMesh) -> Distributed | None:
    if mesh.pp > 1:
        return Pipeline(job, mesh)
    if mesh.ep > 1:
        return ExpertParallel(job, mesh)
    if mesh.cp > 1:
        return Replicated()
    return _TensorParallel(job, mesh) if mesh.tp > 1 else None


def refuse(job: Job, mesh: DeviceMesh) -> None:
    """Raise NotModelledError for what this layout is not modelled with."""
    cut = mesh.cuts > 1
    shards = mesh.data not in {None, "ddp"} or cut
    zero = mesh.data in DEEPSPEED
    mixed = mesh.tp > 1 and not job.sequence_parallel  # embeddings and norms are not cut
    problems = {
        f"the loop of {job.loop} with {mesh} on several ranks": job.loop != "plain"
        and (job.mode != "train" or job.loop not in _LIBRARIES or mesh.data not in _PREPARED),
        f"optimizer {job.optimizer} of sharded parameters": shards and job.optimizer not in STATES,
        f"a gradient scaler (amp-fp16) with {mesh}": job.precision == "amp-fp16" and cut,
        "fused SGD of sharded parameters, which PyTorch refuses,": mesh.data == "fsdp2"
        and job.optimizer in {"sgd", "sgd-momentum"}
        and job.optimizer_impl == "fused",
        "quantised weights in shards": job.quant is not None
        and (cut or (zero and (job.loop == "plain" or job.quant != "nf4"))),
        "autocast with DeepSpeed, whose bf16 and fp16 are its own (--precision bf16),": zero
        and job.precision.startswith("amp"),
        "evaluation with DeepSpeed": zero and job.mode != "train",
        "float32 adapters, as PEFT makes them, in 16-bit weights that ZeRO 3 cuts": job.loop
        in {"trainer", "accelerate"}
        and mesh.data == DEEPSPEED[-1]
        and job.lora_rank is not None
        and job.weight_dtype != "fp32",
        "checkpoints of adapters under ZeRO 3, which TRL makes reentrant,": mesh.data
        == DEEPSPEED[-1]
        and job.lora_rank is not None
        and job.checkpointing != "none",
        "DeepSpeed without an optimizer": zero and job.optimizer == "none",
        "accumulating with no_sync in DeepSpeed": zero and job.no_sync,
        f"generation with {mesh}": job.mode == "generate" and mesh.ep == 1,
        f"a forward pass with {mesh}": job.mode == "forward"
        and (mesh.data is not None or mesh.pp > 1 or mesh.cp > 1),
        "a library's evaluation on several ranks": job.loop != "plain" and job.evaluates,
        "LoRA with tensor parallelism": mesh.tp > 1 and job.lora_rank is not None,
        "context parallelism's evaluation": mesh.cp > 1 and (job.mode == "eval" or job.evaluates),
        "a pipeline's evaluation": mesh.pp > 1 and job.mode == "eval",
        "checkpointing by operation with context parallelism": mesh.cp > 1
        and job.checkpointing == "selective-op",
        "LoRA in a pipeline": mesh.pp > 1 and job.lora_rank is not None,
    }
    for what, is_asked in problems.items():
        if is_asked:
            raise NotModelledError(f"{what} is not modelled", hint=REHEARSE)
    if _scales_in_shards(job, mesh) and job.optimizer_impl == "fused":
        raise NotModelledError(
            "FSDP 1's gradient scaler with a fused optimizer ends in PyTorch's RuntimeError: its"
            " found_inf has the shape [1], which no step of the shape [] takes"
            " (ShardedGradScaler.unscale_, torch/optim/adam.py, _fused_adam)",
            hint='take --optimizer-impl foreach, TrainingArguments(optim="adamw_torch")',
        )
    if mixed and job.clip is not None:
        raise _mixed("clipping by a norm", "leave --clip out")
    if mesh.ep > 1 and job.experts == "eager":
        raise NotModelledError(
            "experts one by one (eager) with expert parallelism is not modelled: what is routed to"
            " other ranks has an index past the rank's own experts, which one_hot of its indices"
            " does not take (transformers 5.17)",
            hint="leave --experts out: grouped_mm, transformers' default, has rules",
        )
    stepped_together = job.optimizer != "none" and job.optimizer_impl != "for-loop"
    if mixed and mesh.data is None and stepped_together and job.mode == "train":
        steps = f"{job.optimizer_impl or 'foreach'} {job.optimizer}"
        raise _mixed(steps, "use --optimizer-impl for-loop")


def _scales_in_shards(job: Job, mesh: DeviceMesh) -> bool:
    """Return whether accelerate makes a ShardedGradScaler (get_grad_scaler, 1.15)."""
    return mesh.data == "fsdp1" and job.loop != "plain" and job.precision == "amp-fp16"


def _mixed(what: str, alternative: str) -> NotModelledError:
    return NotModelledError(
        f"{what} is refused by PyTorch for parameters of which some are cut among tp ranks and"
        " some are not",
        hint=f"{alternative}, or cut the norms as well (--sequence-parallel, model type titan)",
    )


class _TensorParallel(Materialised):
    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job = job
        self.group = Group(mesh.tp, (job.rank or 0) % mesh.tp)

    def cut(self, model: Module) -> None:
        _cut(model, self.job, self.group)


class _DDP(Distributed):
    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job = job
        self.group = Group(mesh.ranks, job.rank or 0)
        self.shares_states = mesh.data == "zero1"
        self.in_full = job.gradient_as_bucket_view
        self.lays_layers = not (self.in_full and job.no_sync)  # own gradients would enter buckets
        self.wrapped: DistributedDataParallel | None = None
        self.is_moved = job.loop in _LIBRARIES and job.quant is None and job.load is None

    def building(self) -> AbstractContextManager[None]:
        """Build where the script does; libraries move a model that they find in main memory."""
        return on_meta() if self.is_moved else nullcontext()

    def cut(self, model: Module) -> None:
        if self.is_moved:
            move(model)

    def wrap(self, model: Module, called: Module) -> Module:
        job = self.job
        settings = DdpSettings(
            bucket_cap_mb=job.bucket_cap_mb,
            gradient_as_bucket_view=job.gradient_as_bucket_view,
            static_graph=job.static_graph,
            find_unused_parameters=job.find_unused_parameters or _looks(job),
        )
        self.wrapped = DistributedDataParallel(model, called, settings)
        return self.wrapped

    def micro_batch(self, *, is_last: bool) -> None:
        assert self.wrapped is not None  # noqa: S101 - the loop runs what was wrapped
        no_sync = self.job.no_sync or self.job.loop in _LIBRARIES
        self.wrapped.require_backward_grad_sync = is_last or not no_sync

    def stepped(self, parameters: Sequence[Parameter]) -> Sequence[Parameter]:
        if not self.shares_states:
            return parameters
        ranks = partitioned(parameters, self.group)
        if self.job.parameters_as_bucket_view:
            move_into_buckets(ranks)
        return ranks[self.group.rank]

    def kind(self, rank: int) -> int:
        return rank if self.shares_states else 0


class _FSDP2(Distributed):
    in_full, lays_layers = True, True

    def __init__(self, job: Job, mesh: DeviceMesh) -> None:
        self.job = job
        shard = mesh.shards // job.replicate
        rank = (job.rank or 0) // (mesh.tp * mesh.pp)
        self.has_region = job.loop == "plain"
        self.keeps_cache = job.quant is not None
        self.sharding = Sharding(
            shard=Group(shard, rank % shard),
            replicate=Group(job.replicate, rank // shard) if job.replicate > 1 else None,
            policies=_policies(job),
            reshard=job.reshard_after_forward,  # type: ignore[arg-type]
            wrap=job.fsdp_wrap if self.has_region else "accelerate",
        )
        self.wrapped: FullyShard | None = None
        self.cuts = Group(mesh.tp, (job.rank or 0) % mesh.tp)

    def building(self) -> AbstractContextManager[None]:
        return on_meta()

    def cut(self, model: Module) -> None:
        if self.cuts.size > 1:
            _cut(model, self.job, self.cuts)

    def wrap(self, model: Module, called: Module) -> Module:
        root = getattr(model, "wrapped", model)
        self.wrapped = FullyShard(root, self.sharding)
        if self.sharding.wrap != "root":
            surround(layers_of(root))
        if self.has_region and self.job.quant is None:
            self.wrapped.materialise()
        else:
            trained = [p for p in root.parameters() if p.requires_grad]
            groups = decay_groups(root) if self.job.loop in TRAINERS else (trained,)
            self.wrapped.move_and_shard([p for group in groups for p in group])
        if isinstance(root, FusedHead):
            root.accessed = self._full_tensor
        return called

    def _full_tensor(self, weight: Tensor) -> Tensor:
        """Gather a head whose module is not called, if nothing that is called lies in its group."""
        if not isinstance(weight, ShardedTensorParameter):
            return weight
        if weight.requires_grad:
            raise NotModelledError(
                "the gradient of a head that TRL gathers is not modelled", hint=REHEARSE
            )
        return all_gather(weight, 0, self.sharding.shard)

    def reference(self, build: Callable[[], Module]) -> Module:
        """Shard it as a whole (trl/models/utils.py, prepare_fsdp), 1.16."""
        with on_meta():
            model = build()
        FullyShard(model, replace(self.sharding, wrap="root")).move_and_shard()
        return model

    def micro_batch(self, *, is_last: bool) -> None:
        if self.job.no_sync or self.job.loop in _LIBRARIES:
            assert self.wrapped is not None  # noqa: S101 - the loop runs what was wrapped
            set_requires_gradient_sync(self.wrapped.states, sync=is_last)

    def host_bytes(self) -> int:
        assert self.wrapped is not None  # noqa: S101 - it was
        if not self.job.cpu_offload:
            return 0
        states = STATES[self.job.optimizer]
        return sum(
            p.padded_numel * p.orig_dtype.itemsize * (2 + states if p.sharded.requires_grad else 1)
            for p in self.wrapped.parameters
        )

    def kind(self, rank: int) -> Hashable:
        """Return the lengths that it has of each that is cut."""
        assert self.wrapped is not None  # noqa: S101 - it was
        mesh, shard = self.job.mesh, self.sharding.shard.size
        own = Group(shard, rank // (mesh.tp * mesh.pp) % shard)
        return tuple(own.local(n) for n in sorted({p.shape[0] for p in self.wrapped.parameters}))


def _cut(model: Module, job: Job, group: Group) -> None:
    with on_meta():
        parallelize(
            model,
            group,
            sequence_parallel=job.sequence_parallel,
            loss_parallel=job.loss_parallel,
        )


def _policies(job: Job) -> Policies:
    """Return what fully_shard is given; accelerate gives the mixed precision's type for all."""
    mixed = job.autocast_dtype if job.loop != "plain" else None
    return Policies(
        param_dtype=named(mixed or job.param_dtype),
        reduce_dtype=named(mixed or job.reduce_dtype),
        output_dtype=named(mixed or job.output_dtype),
        offload=job.cpu_offload,
    )


def _looks(job: Job) -> bool:
    """Whether a kind of Trainer lets DDP look for unused parameters, as it does of a PeftModel.

    Source: transformers/trainer.py (_build_accelerator_args), 5.17.
    """
    return job.loop in TRAINERS and (job.checkpointing == "none" or job.lora_rank is not None)
