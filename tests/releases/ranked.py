"""One rank's job of a record of several GPUs in plain PyTorch: `rehearse --ranks N -- python THIS`.

    python ranked.py RECORD.json

Of a record's `parallel` it knows `METHODS`. Models are built on the GPU with random weights.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

METHODS = ("ddp", "zero1", "fsdp1", "fsdp2")
_BUCKETS = (
    *("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters"),
)
_OF_FSDP1 = ("use_orig_params", "forward_prefetch", "limit_all_gathers")


def runs(record: Mapping[str, Any]) -> bool:
    """Whether this script can run a record's job."""
    layout = record.get("parallel") or {}
    known = {*_BUCKETS, *_OF_FSDP1, "param", "reduce", "strategy", "reshard", "no_sync", "offload"}
    known |= {"method", "world", "rank", "root_blocks"}
    model = record["model"] if isinstance(record["model"], dict) else {}
    plain = layout.get("method") in METHODS and set(layout) <= known and "lora_rank" not in record
    named = record["model"] in ("nanogpt", "gpt2")
    return plain and (named or model.get("model_type", "titan") != "titan")


def main() -> None:
    import torch  # noqa: PLC0415 - `runs` needs none of it
    import torch.distributed as dist  # noqa: PLC0415

    record = json.loads(Path(sys.argv[1]).read_text())
    layout = record["parallel"]
    dist.init_process_group("nccl")
    torch.cuda.set_device(0)
    precision = record.get("precision", "fp32")
    model, layers = _model(record, _dtype(precision) or torch.float32)
    if record.get("checkpointing") == "full":
        how = {"use_reentrant": False}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=how)
    model = _wrapped(model, layers, layout)
    optimizer = _optimizer(model, record, layout)
    accumulated = record.get("grad_accum", 1)
    for _ in range(record.get("steps", 3)):
        for micro in range(accumulated):
            ids = torch.ones(record["batch"], record["block"], dtype=torch.long, device="cuda")
            is_last = micro == accumulated - 1
            with _sync(model, layout, is_last=is_last), _autocast(precision):
                loss = model(input_ids=ids, labels=ids.clone())["loss"]
                loss.backward()
        if record.get("clip"):
            clip = getattr(model, "clip_grad_norm_", None)  # FSDP1's own
            parameters = model.parameters()
            clip(record["clip"]) if clip else torch.nn.utils.clip_grad_norm_(
                parameters, record["clip"]
            )
        optimizer.step()
        optimizer.zero_grad()


def _dtype(name: str | None) -> Any:
    import torch  # noqa: PLC0415

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    return types.get(name or "")


def _autocast(precision: str) -> AbstractContextManager[Any]:
    import torch  # noqa: PLC0415

    inner = _dtype(precision.removeprefix("amp-"))
    return torch.autocast("cuda", inner) if precision.startswith("amp-") else nullcontext()


def _model(record: Mapping[str, Any], dtype: Any) -> tuple[Any, list[Any]]:
    """Return the model, and its layers."""
    import torch  # noqa: PLC0415

    if record["model"] == "nanogpt":
        from vrambudget.measure.nanogpt import GPT  # noqa: PLC0415

        sizes = {"n_layer": 12, "n_head": 12, "n_embd": 768, "vocab_size": 50304, "bias": False}
        sizes |= {"dropout": record.get("dropout") or 0.0, "block_size": record["block"]}
        with torch.device("cuda"):
            model: Any = GPT(sizes).to(dtype)
    else:
        from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415

        config = AutoConfig.for_model(**record["model"])
        config.use_cache = False
        with torch.device("cuda"):
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    lists = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    return model, list(max(lists, key=len))


def _wrapped(model: Any, layers: list[Any], layout: Mapping[str, Any]) -> Any:
    from torch.distributed import fsdp  # noqa: PLC0415
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy  # noqa: PLC0415
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415

    types = {f"{name}_dtype": _dtype(layout.get(name)) for name in ("param", "reduce")}
    if layout["method"] in {"ddp", "zero1"}:
        return DistributedDataParallel(model, **{k: layout[k] for k in _BUCKETS if k in layout})
    if layout["method"] == "fsdp1":
        return fsdp.FullyShardedDataParallel(
            model,
            auto_wrap_policy=ModuleWrapPolicy({type(layers[0])}),
            sharding_strategy=fsdp.ShardingStrategy[layout.get("strategy", "FULL_SHARD")],
            mixed_precision=fsdp.MixedPrecision(**types),
            device_id=0,
            **{name: layout[name] for name in _OF_FSDP1 if name in layout},
        )
    options: dict[str, Any] = {"mp_policy": fsdp.MixedPrecisionPolicy(**types)}
    if layout.get("offload"):
        options["offload_policy"] = fsdp.CPUOffloadPolicy()
    if "reshard" in layout:
        options["reshard_after_forward"] = layout["reshard"]
    for layer in () if layout.get("root_blocks") else layers:
        fsdp.fully_shard(layer, **options)
    return fsdp.fully_shard(model, **options)


def _optimizer(model: Any, record: Mapping[str, Any], layout: Mapping[str, Any]) -> Any:
    import torch  # noqa: PLC0415
    from torch.distributed.optim import ZeroRedundancyOptimizer  # noqa: PLC0415

    how = {record["optimizer_impl"]: True} if record.get("optimizer_impl") else {}
    if layout["method"] == "zero1":
        return ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-4, **how)
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **how)


def _sync(model: Any, layout: Mapping[str, Any], *, is_last: bool) -> AbstractContextManager[Any]:
    """Reduce gradients in every backward pass; with `no_sync` in a step's last alone."""
    if not layout.get("no_sync"):
        return nullcontext()
    if layout["method"] == "fsdp2":
        model.set_requires_gradient_sync(is_last)
        return nullcontext()
    context: AbstractContextManager[Any] = nullcontext() if is_last else model.no_sync()
    return context


if __name__ == "__main__":
    main()
