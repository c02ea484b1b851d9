"""What torchtitan's keys say together: its Llama 3, the degrees of its layouts, checkpointing.

A degree of -1 is what the others leave of the ranks. With shards weights are float32, gathered as
bfloat16 and reduced as float32; without any, and on one GPU, autocast does it.

Source: torchtitan 0.2, config/job_config.py (JobConfig), models/llama3/__init__.py
(llama3_configs), models/llama3/model/model.py (FeedForward), train.py (forward_backward_step).
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.errors import NotModelledError, VramBudgetError

_VOCABULARY = 128_256
_FLAVORS: Mapping[str, tuple[int, int, int, int, int, int]] = {
    "debugmodel": (256, 6, 16, 16, 768, 2048),
    "8B": (4096, 32, 32, 8, 14336, _VOCABULARY),
    "70B": (8192, 80, 64, 8, 28672, _VOCABULARY),
    "405B": (16384, 126, 128, 8, 53248, _VOCABULARY),
}
"""Width, layers, heads, heads of keys, width of the feed-forward, vocabulary."""
_SIZES = ("dim", "n_layers", "n_heads", "n_kv_heads", "hidden", "vocab_size")
_SIZES_OF_LLAMA = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size"),
)

_SELECTIVE = {"1": "full", "2": "selective-2", "op": "selective-op"}


def model_of(flavor: str) -> dict[str, Any]:
    """Return the configuration of a flavor of Llama 3. Raises NotModelledError for others."""
    if flavor not in _FLAVORS:
        raise NotModelledError(
            f"torchtitan's flavor {flavor!r} is not modelled",
            hint=f"of Llama 3 there are {', '.join(_FLAVORS)}; name a config.json of model_type"
            " titan for another",
        )
    return {"model_type": "titan", **dict(zip(_SIZES, _FLAVORS[flavor], strict=True))}


def flavor_of(values: Mapping[str, Any]) -> str | None:
    """Return the flavor that a configuration is of, torchtitan's own or transformers' Llama."""
    own = values.get("model_type") == "titan"
    names = _SIZES if own else _SIZES_OF_LLAMA
    if not own and values.get("model_type") != "llama":
        return None
    sizes = tuple(values.get(name) for name in names)
    return next((flavor for flavor, known in _FLAVORS.items() if known == sizes), None)


def finished(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with what several keys say together: checkpointing.

    Raises NotModelledError for other models and for checkpointing of every n-th layer, n > 2.
    """
    if (name := keys.get("model.name", "llama3")) != "llama3":
        raise NotModelledError(f"torchtitan's model {name!r} is not modelled: llama3 is")
    mode = keys.get("activation_checkpoint.mode", "selective")
    option = str(keys.get("activation_checkpoint.selective_ac_option", "2"))
    fields.setdefault("optimizer_impl", "fused")
    if mode != "selective":
        return fields
    if option not in _SELECTIVE:
        raise NotModelledError(
            f"torchtitan's selective_ac_option {option!r} is not modelled",
            hint="every layer (1), every second layer (2) and op are; `vrambudget rehearse"
            " --gpu GPU --ranks N -- python -m torchtitan.train` runs it",
        )
    return {**fields, "checkpointing": _SELECTIVE[option]}


def of_ranks_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the degrees say where there are several GPUs.

    Ranks of one sequence shard the parameters, too (ParallelDims, dp_shard_cp).
    """
    shards, replicas, tp, pp, cp = (
        _degree(keys, f"{name}_degree", usual)
        for name, usual in (
            ("data_parallel_shard", -1),
            ("data_parallel_replicate", 1),
            ("tensor_parallel", 1),
            ("pipeline_parallel", 1),
            ("context_parallel", 1),
        )
    )
    found: dict[str, Any] = {}
    mixed = keys.get("training.mixed_precision_param", "bfloat16") == "bfloat16"
    cuts = [f"{name}={n}" for name, n in (("tp", tp), ("pp", pp), ("cp", cp)) if n > 1]
    if shards != 1 or cp > 1:
        found |= {"precision": "fp32", "fsdp_wrap": "torchtitan"}
        found |= {"param_dtype": "bf16", "reduce_dtype": "fp32"} if mixed else {}
        found |= {"replicate": replicas} if replicas > 1 else {}
    data = ["fsdp2"] if shards != 1 or cp > 1 else ["ddp"] if replicas > 1 else []
    found["parallel"] = "+".join([*data, *cuts]) or None
    if tp > 1:
        loss = not keys.get("parallelism.disable_loss_parallel", False)
        found |= {"sequence_parallel": True, "loss_parallel": loss}
    if pp > 1:
        found["schedule"] = keys.get("parallelism.pipeline_parallel_schedule", "1F1B")
    if shards > 0:
        found["ranks"] = shards * replicas * tp * pp * cp
    return {name: value for name, value in found.items() if value is not None}


def _degree(keys: Mapping[str, Any], name: str, usual: int) -> int:
    value = keys.get(f"parallelism.{name}", usual)
    if isinstance(value, bool) or not isinstance(value, int) or value == 0:
        raise VramBudgetError(
            f"parallelism.{name} is {value!r}; it should be a number of ranks, or -1 for the rest"
        )
    return value
