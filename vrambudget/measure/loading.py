"""A model whose weights come from main memory, as `from_pretrained` brings them to the GPU.

The checkpoint is made up: tensors of the right shape and type in main memory.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from vrambudget.auto_classes import built


def loaded(
    build: Callable[..., Any], config: Any, job: Mapping[str, Any], dtype: torch.dtype
) -> Any:
    """Return the model of a job's `load`: through a device map, moved, or moved and then cast."""
    attention = job.get("attention", "sdpa")
    first = torch.float32 if job["load"] == "to-half" else dtype
    with torch.device("meta"):
        model = built(
            build, config, task=job.get("task", "causal-lm"), attention=attention, dtype=first
        )
    options = {"device_map": {"": 0}} if job["load"] == "device-map" else {}
    model = type(model).from_pretrained(
        None,
        config=config,
        state_dict=checkpoint_of(model),
        dtype=first,
        attn_implementation=model.config._attn_implementation,  # noqa: SLF001 - as it was chosen
        **options,
    )
    if job["load"] == "device-map":
        return model
    model.to("cuda")
    return model.to(dtype) if job["load"] == "to-half" else model


def checkpoint_of(model: Any) -> dict[str, torch.Tensor]:
    """Return tensors for all that a model's files would have; what is shared once."""
    shared = set(model.all_tied_weights_keys)
    return {
        name: torch.empty(x.shape, dtype=x.dtype)
        for name, x in model.state_dict().items()
        if name not in shared
    }
