"""Layouts of a job over so many GPUs, and what each costs besides memory.

    DDP, ZeRO-1, FSDP2 with layers that are gathered once or twice, HSDP (shards within a node,
    copies between nodes), CPU offload, FSDP2 of what tensor parallelism within a node leaves,
    tensor parallelism alone, a pipeline (of torchtitan's Llama), DeepSpeed's ZeRO-2 and 3; each
    with and without checkpointing

Bytes that one rank sends in a step, of W ranks (rings, as NCCL's documentation counts them): an
all-gather or a reduce-scatter of n bytes takes n (W-1) / W, an all-reduce twice that.

    DDP      all-reduce of the gradients
    ZeRO-1   the same, and each rank sends the parameters that it stepped
    FSDP2    all-gather in forward, again in backward if layers are resharded, reduce-scatter
    HSDP     those within a node, and an all-reduce of the shards between nodes
    offload  besides, a rank's shards to the GPU for each gather, its gradients to main memory
    TP       besides, of hidden states: all-reduces behind each layer's two rows in forward, before
             its five columns in backward; the head's logits are gathered
    PP       hidden states of each microbatch to the next stage, their gradients back
    ZeRO-2   all-reduce of the gradients, all-gather of the parameters
    ZeRO-3   all-gathers in forward and backward, reduce-scatter

Layouts are compared by the time of a sequence: what is sent over the links, what is copied from
main memory, the forward pass that is run again. It is a rough figure, for an order only, at the
rates of NVIDIA's data sheets: an A100's for GPUs with NVLink, an A40's for all others.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from vrambudget.config.device_mesh import DEEPSPEED
from vrambudget.config.job import Job
from vrambudget.planning.lower_bound import ITEM_BYTES
from vrambudget.planning.recipes import LORA_RANK, SCALED_LORA, Trained, scaled_4_bit

Goal = Literal["full", "lora", "qlora", "any"]
GOALS: dict[Goal, tuple[Trained, ...]] = {
    "full": ("full",),
    "lora": ("lora",),
    "qlora": ("qlora",),
    "any": ("full", "lora", "qlora"),
}
_MOST_FRUGAL = "FSDP2"  # of several GPUs, without main memory's help, and with tensor parallelism
_AUTOCAST: dict[Trained, dict[str, Any]] = {
    "full": {"precision": "amp-bf16", "weights": "bf16"},
    "lora": {"precision": "amp-bf16", "weights": "bf16"},
    "qlora": {"precision": "amp-bf16"},
}
_COLUMNS, _ROWS = 5, 2  # products of a layer: queries, keys, values, gate, up; what follows them
CHECKPOINTING = "checkpointing"  # the last word of a layout that has it
MACHINE = 8  # GPUs that NVLink connects in most machines


@dataclass(frozen=True, slots=True)
class LayoutChoice:
    """One way to run a job: what to change of it, and in words."""

    name: str
    fields: dict[str, Any]
    gpus: int
    trains: Trained
    is_most_frugal: bool = False  # whether no other of its kind takes less of a GPU

    @property
    def kind(self) -> tuple[Trained, bool]:
        """What is trained, whether layers run again: layouts alike in it take similar batches."""
        return self.trains, self.fields["checkpointing"] != "none"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What a layout costs besides memory: bytes that a rank sends and copies in one step."""

    network_bytes: int
    host_bytes: int = 0  # between main memory and the GPU

    def per(self, sequences: int) -> "Traffic":
        """Return the share of one of so many sequences."""
        return Traffic(self.network_bytes // sequences, self.host_bytes // sequences)


class Rates(NamedTuple):
    """What a GPU does in a second, by its maker's data sheet."""

    flops: float  # of bfloat16 in tensor cores
    link_bytes: float  # to other GPUs, in one direction
    host_bytes: float  # to main memory, in one direction


_NVLINK = (
    "v100",
    "a100-40gb",
    "a100-80gb",
    "a800-80gb",
    "h100-80gb",
    "h800",
    "h200",
    "h20",
    "b200",
)
_RATES = {
    True: Rates(312e12, 300e9, 32e9),  # A100 SXM: NVLink 600 GB/s both ways, PCIe 4.0 x16 64
    False: Rates(149.7e12, 32e9, 32e9),  # A40: PCIe 4.0 x16
}


def seconds_per_sequence(gpu: str, moved: Traffic, again_flops: float) -> float:
    """Return the time of a sequence, beyond what all layouts take; `gpu`: its key in the table."""
    rates = _RATES[gpu.startswith(_NVLINK)]
    sent = moved.network_bytes / rates.link_bytes + moved.host_bytes / rates.host_bytes
    return sent + again_flops / rates.flops


def global_batch(job: Job) -> int:
    """Return the sequences of one optimizer step of all ranks; cuts of a sequence share them."""
    mesh = job.mesh
    return job.batch * job.grad_accum * (mesh.ranks // (mesh.tp * mesh.pp * mesh.cp))


def layouts(
    job: Job,
    gpus: int,
    goal: Goal,
    *,
    has_bfloat16: bool,
    per_node: int = MACHINE,
    autocast: Collection[Trained] = (),
    fsdp_wrap: str | None = None,
) -> Iterator[LayoutChoice]:
    """Yield the ways to run `job` on so many GPUs, for what is to be trained.

    Tensor parallelism stays within a machine, which has `per_node` of them. `autocast`: what is
    trained under autocast where weights are in 16 bits. `fsdp_wrap`: how the model's own trainer
    calls fully_shard.
    """
    for trained in GOALS[goal]:
        base = _trained(job, trained, has_bfloat16=has_bfloat16)
        base |= _AUTOCAST[trained] if trained in autocast else {}
        for checkpointing in dict.fromkeys((job.checkpointing, "full")):
            words: list[str] = [trained] if trained != "full" else []
            words += [CHECKPOINTING] if checkpointing != "none" else []
            fields = base | {"checkpointing": checkpointing}
            for way, more in _together(job, trained, gpus, per_node, has_bfloat16=has_bfloat16):
                if fsdp_wrap and str(more.get("parallel")).startswith("fsdp2"):
                    more["fsdp_wrap"] = fsdp_wrap
                name = ", ".join([way, *words])
                most_cut = f"{_MOST_FRUGAL} x TP {min(per_node, gpus // 2)}"
                frugal = way in {_MOST_FRUGAL, most_cut} and checkpointing != "none"
                yield LayoutChoice(name, fields | more, gpus, trained, frugal)


def _trained(job: Job, trained: Trained, *, has_bfloat16: bool) -> dict[str, Any]:
    rank = {"lora_rank": job.lora_rank or LORA_RANK}
    if trained == "full":
        scaled = {} if has_bfloat16 or job.precision != "amp-bf16" else {"precision": "amp-fp16"}
        return {"lora_rank": None, "quant": None, **scaled}
    if trained == "qlora":
        precision = "bf16" if has_bfloat16 else scaled_4_bit(job)
        return {**rank, "quant": "nf4", "precision": precision}
    return {**rank, "quant": None, **({"precision": "bf16"} if has_bfloat16 else SCALED_LORA)}


def _together(
    job: Job, trained: Trained, gpus: int, per_node: int, *, has_bfloat16: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    # A library's loop has words for less: DDP as it is by itself, FSDP2 as accelerate calls it.
    library = job.loop != "plain"
    views = {} if library else {"gradient_as_bucket_view": True}
    no_clip = {} if library else {"clip": None}
    yield "DDP", {"parallel": "ddp", **views}
    if trained == "full":
        more = {"parameters_as_bucket_view": True, "gradient_as_bucket_view": True}
        yield "ZeRO-1", {"parallel": "zero1", **more}
    # Frozen weights are in 16 bits, as for one GPU, or in 4.
    # GPUs without bfloat16 run float16 under autocast, with a gradient scaler.
    mixed = _mixed(job) if trained == "full" and has_bfloat16 and not library else {}
    fsdp2 = {"parallel": "fsdp2", **mixed, **({"reshard_after_forward": True} if library else {})}
    if gpus > per_node > 1 and gpus % per_node == 0:
        yield f"HSDP, {gpus // per_node} copies", {**fsdp2, "replicate": gpus // per_node}
    yield "FSDP2, gathered once", {**fsdp2, "reshard_after_forward": False}
    yield _MOST_FRUGAL, {**fsdp2}
    yield "FSDP2, CPU offload", {**fsdp2, "cpu_offload": True, **no_clip}
    if trained == "full":
        yield from _cut(gpus, per_node, fsdp2)
        yield f"PP {gpus}", _pipeline(job, gpus, autocast=bool(mixed.get("param_dtype")))
        if has_bfloat16 and (mixed or library):
            zero = {"precision": "bf16"}
            yield "DeepSpeed ZeRO-2", {"parallel": "deepspeed2", **zero}
            yield "DeepSpeed ZeRO-3", {"parallel": "deepspeed3", **zero}


def _cut(gpus: int, per_node: int, fsdp2: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ways that cut each layer among the GPUs of a machine."""
    if gpus <= per_node:
        yield f"TP {gpus}", {"parallel": f"tp={gpus}", "optimizer_impl": "for-loop"}
    for degree in (2, 4, 8):
        if degree < gpus and degree <= per_node and not gpus % degree:
            yield f"{_MOST_FRUGAL} x TP {degree}", {**fsdp2, "parallel": f"fsdp2+tp={degree}"}


def _pipeline(job: Job, gpus: int, *, autocast: bool) -> dict[str, Any]:
    """Return a pipeline's fields, whose step has the sequences that all ranks have otherwise."""
    fields = {"parallel": f"pp={gpus}", "batch": job.batch * gpus, "microbatches": gpus}
    return {**fields, "precision": "amp-bf16"} if autocast else fields


def _mixed(job: Job) -> dict[str, Any]:
    """Return FSDP2's mixed precision for what autocast does on one GPU."""
    if job.lora_rank is None and job.precision in {"amp-bf16", "fp32"} and job.weights is None:
        dtype = "bf16" if job.precision == "amp-bf16" else None
        return {"precision": "fp32", "param_dtype": dtype, "reduce_dtype": dtype and "fp32"}
    return {}


@dataclass(frozen=True, slots=True)
class Sizes:
    """What of a model decides what its ranks send."""

    parameters: int
    trainable: int
    layers: int = 0
    hidden_size: int = 0
    vocab_size: int = 0


def traffic(job: Job, sizes: Sizes) -> Traffic:
    """Return what one rank sends in a step of `job`, of a model of such sizes."""
    mesh, parameters, trainable = job.mesh, sizes.parameters, sizes.trainable
    if mesh.ranks == 1:
        return Traffic(0)
    stored = ITEM_BYTES[job.weight_dtype]
    if mesh.tp > 1:
        parameters, trainable = parameters // mesh.tp, trainable // mesh.tp
    cut = _of_hidden_states(job, sizes) + _between_stages(job, sizes)
    if mesh.data is None:
        return Traffic(cut)
    if mesh.data in DEEPSPEED:
        return Traffic(_of_zero(job, parameters * stored, trainable * stored))
    passes = 1 if job.no_sync else job.grad_accum
    if mesh.data in {"ddp", "zero1"}:
        sent = 2 * _ring(trainable * stored, mesh.ranks) * passes
        states = _ring(trainable * stored, mesh.ranks) if mesh.data == "zero1" else 0
        return Traffic(sent + states)
    shard = mesh.shards // job.replicate
    gathered = ITEM_BYTES[job.param_dtype or job.weight_dtype]
    reduced = ITEM_BYTES[job.reduce_dtype or job.param_dtype or job.weight_dtype]
    gathers = job.grad_accum * (1 if job.reshard_after_forward is False else 2)
    sent = gathers * _ring(parameters * gathered, shard)
    sent += passes * _ring(trainable * reduced, shard)
    if job.replicate > 1:
        sent += passes * 2 * _ring(trainable * reduced // shard, job.replicate)
    host = 0
    if job.cpu_offload:
        host = (gathers * parameters + passes * trainable) * stored // shard
    return Traffic(sent + cut, host)


def _of_zero(job: Job, parameters_bytes: int, gradients_bytes: int) -> int:
    ranks = job.mesh.ranks
    gathered, reduced = _ring(parameters_bytes, ranks), _ring(gradients_bytes, ranks)
    if job.mesh.data == DEEPSPEED[-1]:
        return job.grad_accum * (2 * gathered + reduced)
    times = job.grad_accum if job.mesh.data == DEEPSPEED[1] else 1
    return 2 * times * reduced + gathered


def _of_hidden_states(job: Job, sizes: Sizes) -> int:
    """Return what tensor parallelism sends in a step."""
    tp = job.mesh.tp
    if tp == 1:
        return 0
    item = ITEM_BYTES[job.param_dtype or job.autocast_dtype or job.weight_dtype]
    tokens = job.batch * (job.block or 1) * item
    rows = _ROWS * (2 if job.checkpointing != "none" else 1)
    hidden = (sizes.layers * (rows + _COLUMNS) + 1) * tokens * sizes.hidden_size
    return job.grad_accum * (2 * _ring(hidden, tp) + _ring(tokens * sizes.vocab_size, tp))


def _between_stages(job: Job, sizes: Sizes) -> int:
    """Return what a stage of a pipeline sends in a step; under autocast residuals are float32."""
    if job.mesh.pp == 1:
        return 0
    tokens = job.batch * (job.block or 1)
    return 2 * job.stages_per_rank * tokens * sizes.hidden_size * ITEM_BYTES[job.weight_dtype]


def _ring(nbytes: int, ranks: int) -> int:
    return nbytes * (ranks - 1) // ranks
