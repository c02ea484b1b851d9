"""Optimizers by the names that a job has for them: torch.optim's and bitsandbytes'.

Muon takes matrices only. As its authors and torch's documentation advise, it gets those of the
hidden layers; AdamW steps all others (embeddings, the head, vectors) right after it.
"""

from collections.abc import Mapping
from typing import Any

import torch

_TORCH = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "sgd-momentum": torch.optim.SGD,
    "adafactor": torch.optim.Adafactor,
}
_BITSANDBYTES = {
    "lion": "Lion",
    "lion-8bit": "Lion8bit",
    "adamw-8bit": "AdamW8bit",
    "paged-adamw-8bit": "PagedAdamW8bit",
}


def make_optimizer(job: Mapping[str, Any], model: Any, parameters: list[Any]) -> Any:
    """Return the job's optimizer of the model's trainable parameters; None for "none"."""
    name = job.get("optimizer", "adamw")
    if name == "none":
        return None
    options: dict[str, Any] = {"lr": 1e-4}
    if name in _BITSANDBYTES:
        import bitsandbytes  # noqa: PLC0415 - only such jobs need it

        return getattr(bitsandbytes.optim, _BITSANDBYTES[name])(parameters, **options)
    implementation = job.get("optimizer_impl")
    if implementation in ("fused", "foreach"):
        options[implementation] = True
    elif implementation == "for-loop":
        options["foreach"] = False
    if name == "sgd-momentum":
        options["momentum"] = 0.9
    if name == "muon":
        return MuonThenAdamW(model, parameters, options)
    return _TORCH[name](parameters, **options)


class MuonThenAdamW:
    """Two optimizers that step one after the other; only one if the other has no parameters."""

    def __init__(self, model: Any, parameters: list[Any], options: dict[str, Any]) -> None:
        outer = {id(m.weight) for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        head = getattr(model, "get_output_embeddings", lambda: None)()
        if head is None:
            head = getattr(model, "lm_head", None)
        if head is not None:
            outer.add(id(head.weight))
        hidden = [p for p in parameters if p.ndim == 2 and id(p) not in outer]  # noqa: PLR2004
        known = set(map(id, hidden))
        others = [p for p in parameters if id(p) not in known]
        self.optimizers: list[Any] = []
        if hidden:
            self.optimizers.append(torch.optim.Muon(hidden, lr=options["lr"]))
        if others:
            self.optimizers.append(torch.optim.AdamW(others, **options))

    def step(self) -> None:
        """Step both."""
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self, *, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=set_to_none)
