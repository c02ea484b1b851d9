"""Records of several GPUs, which say their layout in one object.

    "parallel": {"method": "fsdp2", "world": 8, "rank": 0, "param": "bf16", "reduce": "fp32", ...}

Its keys are those of the script that such records were measured with. Each is a field of a job by
another name; one that is not known is refused, for what it changes would be missing.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.settings import object_of, show
from vrambudget.errors import NotModelledError, VramBudgetError

READ_AS_ZERO = {"causal_mask": "built"}
"""How such records read back what decides about masks: rows looked packed, so masks were built."""

_PREPARED = ("trainer", "accelerate", "sft", "dpo")  # loops of libraries
_SAME = (
    *("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"),
    *("parameters_as_bucket_view", "no_sync", "replicate"),
    *("sequence_parallel", "loss_parallel", "schedule", "microbatches"),
    *("use_orig_params", "forward_prefetch", "backward_prefetch"),
)
_RENAMED = {
    "world": "ranks",
    "rank": "rank",
    "param": "param_dtype",
    "reduce": "reduce_dtype",
    "output": "output_dtype",
    "offload": "cpu_offload",
    "chunks": "stages_per_rank",
    "strategy": "sharding_strategy",
    "rotate": "rotate_method",
    **{name: name for name in _SAME},
}
_WRAPS = {"titan": "torchtitan", "titan2024": "torchtitan-2024"}


def check_words(mesh: Mapping[str, Any]) -> None:
    """Raise VramBudgetError where what a layout calls itself is no word."""
    for key in ("method", "wrap"):
        if not isinstance(word := mesh.get(key), str | None):
            raise VramBudgetError(f"parallel.{key} is {show(word)}; it should be a word")


def fields_of_mesh(mesh: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job's fields for a record's `parallel`. Raises VramBudgetError."""
    values = dict(mesh)
    method, world = values.pop("method", None), values.get("world")
    if not isinstance(world, int) or isinstance(world, bool):
        raise VramBudgetError(f"parallel.world is {world!r}; it should be a number of ranks")
    tp, cp = values.pop("tp", None), values.pop("cp", None)
    fields: dict[str, Any] = {"rank": 0, "parallel": _mesh(method, world, tp, cp)}
    if method == "fsdp2":
        fields |= _of_fsdp2(values)
    if method in _PREPARED:
        fields |= _of_library(values)
    if method in _PREPARED and "stage" in values:
        method = "zero"
    if method == "zero":
        fields |= _of_zero(object_of(values, "config"))
        values.pop("config", None)
        fields["parallel"] = f"deepspeed{values.pop('stage', None)}"
    if method == "fsdp1":
        values.pop("limit_all_gathers", None)  # it delays the CPU, and decides no size
    for key, value in values.items():
        if key not in _RENAMED:
            raise NotModelledError(f"parallel.{key} is not known: what it changes is not modelled")
        fields[_RENAMED[key]] = value
    return fields


def _of_zero(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of DeepSpeed's `zero_optimization` is a field; gathering is in place."""
    names = {name.removeprefix("stage3_"): value for name, value in config.items()}
    for name in ("offload_optimizer", "offload_param"):
        if name in names:
            device = dict(object_of(names, name))
            names[name] = device.pop("device", None) == "cpu"
            names |= device
    return {name: value for name, value in names.items() if name != "allgather_bucket_size"}


def _mesh(method: str | None, world: int, tp: int | None, cp: int | None) -> str:
    if cp is not None:
        return f"cp={cp}" if method == "none" else f"{method}+cp={cp}"
    if method in _PREPARED:
        return "ddp"
    if method == "zero":
        return "deepspeed"  # its stage follows
    if method in {"tp", "pp", "ep"}:
        return f"{method}={tp or world}"
    if method is None or method not in {"ddp", "zero1", "fsdp1", "fsdp2"}:
        raise NotModelledError(f"parallel.method {method!r} is not modelled")
    return f"{method}+tp={tp}" if tp else method


def _of_library(values: dict[str, Any]) -> dict[str, Any]:
    """Take what accelerate wraps with, if not with DDP: "fsdp": 1, or true for version 2."""
    version = values.pop("fsdp", None)
    fields: dict[str, Any] = {}
    if version:
        fields = {"parallel": "fsdp2", "reshard_after_forward": values.pop("reshard", True)}
    if version == 1 and version is not True:
        fields = {"parallel": "fsdp1"}
    if version and values.pop("fsdp_checkpointing", False):
        fields["checkpointing"] = "full"
    return fields


def _of_fsdp2(values: dict[str, Any]) -> dict[str, Any]:
    """Take what fully_shard is called on, and with which reshard_after_forward.

    The root is given that of the layers, unless the modules are torchtitan's.
    """
    wrap = values.pop("wrap", None)
    found = "root" if values.pop("root_blocks", False) else _WRAPS.get(wrap or "", "blocks")
    if wrap is not None and wrap not in _WRAPS:
        raise NotModelledError(f"parallel.wrap {wrap!r} is not known")
    return {"fsdp_wrap": found, "reshard_after_forward": values.pop("reshard", True)}
