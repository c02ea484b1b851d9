"""Several GPUs: how many there are, how they share the work, and the libraries' own settings."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from vrambudget.config.device_mesh import DEEPSPEED, DeviceMesh, parse_mesh
from vrambudget.config.settings import TIP, Field, Settings, Size
from vrambudget.config.versions import plain_version
from vrambudget.declared import Before
from vrambudget.errors import VramBudgetError
from vrambudget.units import whole_number

DTypeName = Literal["fp32", "bf16", "fp16"]
Strategy = Literal["FULL_SHARD", "SHARD_GRAD_OP"]
BackwardPrefetch = Literal["BACKWARD_PRE", "NO_PREFETCH"]
Schedule = Literal["GPipe", "1F1B", "Interleaved1F1B"]
RotateMethod = Literal["allgather", "alltoall"]
FsdpWrap = Literal["blocks", "root", "torchtitan", "torchtitan-2024", "accelerate"]

MOST_RANKS = 2**20
Elements = Annotated[Size, Field(le=2**40)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Auto = Literal["auto"]

AUTO: dict[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "param_persistence_threshold": lambda hidden: 10 * hidden,
}
"""What transformers and accelerate put for "auto" (transformers/integrations/deepspeed.py,
trainer_config_finalize; accelerate/accelerator.py, _prepare_deepspeed)."""

_OF_DDP = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")
_OF_FSDP1 = ("sharding_strategy", "use_orig_params", "forward_prefetch", "backward_prefetch")
_LEFT_OUT = ("use_orig_params", "backward_prefetch")
"""Of FSDP 1, what accelerate leaves out of FSDP2's arguments (utils/dataclasses.py)."""
_OF_MIXED = ("param_dtype", "reduce_dtype", "cpu_offload")
_OF_ZERO = (
    *("reduce_bucket_size", "overlap_comm", "contiguous_gradients", "reduce_scatter"),
    *("offload_optimizer", "pin_memory", "deepspeed"),
)
_OF_ZERO3 = (
    "offload_param",
    *("sub_group_size", "prefetch_bucket_size", "max_live_parameters", "max_reuse_distance"),
    *("param_persistence_threshold", "model_persistence_threshold"),
)
_OF_PIPELINES = ("schedule", "microbatches", "stages_per_rank")
_OF_CP = ("rotate_method",)
_OF_TP = ("sequence_parallel", "loss_parallel")
_OF_FSDP2 = ("reshard_after_forward", "replicate", "output_dtype", "fsdp_wrap")


def _reshard(value: Any) -> Any:
    """Return true, false or a number of ranks, also from text."""
    words = {"true": True, "false": False}
    if isinstance(value, str):
        value = words.get(value.lower(), whole_number(value) or value)
    if value is None or isinstance(value, bool) or (isinstance(value, int) and value >= 1):
        return value
    raise ValueError("it should be true, false or a number of ranks, for example 8")


def _deepspeed(value: Any) -> Any:
    return (isinstance(value, str) and plain_version(value)) or value


DeepSpeedVersion = Annotated[Literal["0.18", "0.19"], Before(_deepspeed)]
Reshard = Annotated[bool | int | str | None, Before(_reshard)]


class Ranks(Settings, heading="several GPUs"):
    """How the ranks of a job share its work; `batch` is that of each rank."""

    ranks: Annotated[Size, Field(le=MOST_RANKS)] | None = Field(
        None, description="GPUs, one process each; --batch is that of each (--gpu 8xh100 says both)"
    )
    parallel: str | None = Field(
        None,
        description="how they share the work: ddp, zero1 (ZeroRedundancyOptimizer), fsdp2"
        " (fully_shard), fsdp1 (FullyShardedDataParallel), DeepSpeed's deepspeed1,"
        " zero2, zero3, tp=N (tensor parallel), fsdp2+tp=N, pp=N (pipeline), ep=N (experts), cp=N"
        " (context parallel), fsdp2+cp=N",
    )
    rank: Annotated[int, Field(ge=0, lt=MOST_RANKS)] | None = Field(
        None, description="the rank to report (default: the one that takes most)"
    )
    bucket_cap_mb: Annotated[Size, Field(le=2**20)] | None = Field(
        None, description="DDP: MiB of gradients in a bucket (default: 25, and 1 in the first)"
    )
    gradient_as_bucket_view: bool = Field(
        default=False, description="DDP: gradients are views of the buckets"
    )
    static_graph: bool = Field(default=False, description="DDP: the graph never changes")
    find_unused_parameters: bool = Field(
        default=False, description="DDP: look for parameters that got no gradient"
    )
    parameters_as_bucket_view: bool = Field(
        default=False, description="ZeroRedundancyOptimizer: parameters are views of buckets"
    )
    no_sync: bool = Field(
        default=False,
        description="accumulate without reducing: no_sync(), set_requires_gradient_sync(False)",
    )
    param_dtype: DTypeName | None = Field(
        None, description="FSDP2, MixedPrecisionPolicy: the type to gather and compute in"
    )
    reduce_dtype: DTypeName | None = Field(
        None, description="FSDP2, MixedPrecisionPolicy: the type that gradients are reduced in"
    )
    output_dtype: DTypeName | None = Field(
        None, description="FSDP2, MixedPrecisionPolicy: the type of a module's outputs"
    )
    reshard_after_forward: Reshard = Field(
        None,
        description="FSDP2: true, false, or a number of ranks to reshard to"
        " (default: true for layers, false for the root)",
    )
    fsdp_wrap: FsdpWrap = Field(
        "blocks", description="FSDP2: what fully_shard is called on besides the model itself"
    )
    replicate: Size = Field(1, description="FSDP2: copies of the shards (HSDP)")
    cpu_offload: bool = Field(
        default=False, description="FSDP 1 and 2: shards, gradients and states on the host"
    )
    sharding_strategy: Strategy = Field(
        "FULL_SHARD", description="FSDP 1: SHARD_GRAD_OP keeps layers gathered until backward"
    )
    use_orig_params: bool | None = Field(
        None,
        description="FSDP 1: step parts of the original parameters (default: true in Trainer)",
    )
    forward_prefetch: bool = Field(
        default=False, description="FSDP 1: gather the next layer before this one computes"
    )
    backward_prefetch: BackwardPrefetch | None = Field(
        None, description="FSDP 1: gather ahead in backward (default: BACKWARD_PRE; in Trainer, no)"
    )
    reduce_bucket_size: Auto | Elements = Field(
        500_000_000,
        description="DeepSpeed: elements of the buffer that gradients are reduced in; auto: what"
        " Trainer makes of the hidden size",
    )
    overlap_comm: bool | None = Field(
        None,
        description="DeepSpeed: reduce while backward runs, in two buffers (default: in stage 3)",
    )
    contiguous_gradients: bool = Field(
        default=True, description="DeepSpeed: gradients are copied into that buffer"
    )
    reduce_scatter: bool = Field(
        default=True, description="DeepSpeed: reduce each rank's slices, not the whole buffer"
    )
    sub_group_size: Elements = Field(
        1_000_000_000, description="ZeRO 3: elements of a rank that are stepped together"
    )
    prefetch_bucket_size: Auto | Count = Field(
        50_000_000, description="ZeRO 3: elements that are gathered ahead, for each module"
    )
    param_persistence_threshold: Auto | Count = Field(
        100_000, description="ZeRO 3: parameters of so many elements or fewer stay whole"
    )
    model_persistence_threshold: Count = Field(
        2**63 - 1, description="ZeRO 3: elements of all parameters that stay whole, at most"
    )
    max_live_parameters: Count = Field(
        1_000_000_000, description="ZeRO 3: elements that are whole at a time, besides those"
    )
    max_reuse_distance: Count = Field(
        1_000_000_000, description="ZeRO 3: parameters needed again within so many elements stay"
    )
    offload_optimizer: bool = Field(
        default=False,
        description="DeepSpeed: masters, their gradients and states in main memory, stepped there",
    )
    offload_param: bool = Field(
        default=False, description="ZeRO 3: weights in main memory while no layer needs them"
    )
    pin_memory: bool = Field(
        default=True, description="DeepSpeed's offload: main memory that the GPU reads by itself"
    )
    deepspeed: DeepSpeedVersion = Field(
        "0.19", description="the version of DeepSpeed whose rules are mirrored"
    )
    sequence_parallel: bool = Field(
        default=False, description="tensor parallel: norms and residuals are cut along the sequence"
    )
    loss_parallel: bool = Field(
        default=False, description="tensor parallel: logits stay cut along the vocabulary"
    )
    rotate_method: RotateMethod = Field(
        "allgather", description="context parallel: how keys and values come from other ranks"
    )
    schedule: Schedule = Field("1F1B", description="pipeline: the order of microbatches")
    microbatches: Size | None = Field(
        None, description="pipeline: equal parts of the batch (default: one for each sequence)"
    )
    stages_per_rank: Size = Field(1, description="pipeline: stages of each rank, if interleaved")

    @property
    def mesh(self) -> DeviceMesh:
        """How the ranks share the work. Raises VramBudgetError."""
        return parse_mesh(self.parallel, self.ranks)

    def problems(self) -> Iterable[str]:
        """Yield layouts and settings that do not go together."""
        try:
            mesh = self.mesh
        except VramBudgetError as error:
            yield f"{error.message}\n{TIP}{error.hint}" if error.hint else error.message
            return
        if self.rank is not None and self.rank >= mesh.ranks:
            yield f"rank is {self.rank}; ranks are numbered from 0 to {mesh.ranks - 1}"
        if mesh.data == "fsdp2" and mesh.shards % self.replicate:
            yield f"replicate is {self.replicate}, which does not divide {mesh.shards} ranks"
        yield from self._misplaced(_OF_DDP, "DDP", belongs=mesh.data in {"ddp", "zero1"})
        yield from self._misplaced(_OF_FSDP2, "FSDP2", belongs=mesh.data == "fsdp2")
        dropped = _LEFT_OUT if mesh.data == "fsdp2" and self._has_library() else ()
        names = [name for name in _OF_FSDP1 if name not in dropped]
        yield from self._misplaced(names, "FSDP 1", belongs=mesh.data == "fsdp1")
        shards = mesh.data in {"fsdp1", "fsdp2"}
        zero = mesh.data in DEEPSPEED
        yield from self._misplaced(_OF_ZERO, "DeepSpeed", belongs=zero)
        yield from self._misplaced(_OF_ZERO3, "ZeRO 3", belongs=mesh.data == DEEPSPEED[-1])
        yield from self._misplaced(_OF_MIXED, "FSDP", belongs=shards)
        yield from self._misplaced(_OF_PIPELINES, "pipelines", belongs=mesh.pp > 1)
        yield from self._misplaced(_OF_CP, "context parallelism", belongs=mesh.cp > 1)
        yield from self._misplaced(_OF_TP, "tensor parallelism", belongs=mesh.tp > 1)

    def _has_library(self) -> bool:
        """Whether a library's loop calls FSDP."""
        return getattr(self, "loop", "plain") != "plain"

    def _misplaced(self, names: Iterable[str], what: str, *, belongs: bool) -> Iterable[str]:
        for name in names:
            if not belongs and name in self.model_fields_set:
                value, default = getattr(self, name), type(self).model_fields[name].default
                if value != default and (value, default) != (False, None):
                    yield f"{name} is {value!r}, a setting of {what}; parallel is {self.parallel!r}"
