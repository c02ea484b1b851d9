"""What can be read from a live optimizer of torch, bitsandbytes or Trainer, as fields of a job.

Source: bitsandbytes optim/optimizer.py (Optimizer8bit, Optimizer1State), 0.50; transformers
optimization.py (Adafactor), 5.17; Trainer steps it without scale_parameter and relative_step.

Options that change what it allocates and have no rules here are errors.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from vrambudget.config.loops import TRAINERS
from vrambudget.errors import NotModelledError

_NAMES = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd", "Adafactor": "adafactor"}
_BITSANDBYTES: Mapping[object, str] = {
    ("adam", 8, False): "adamw-8bit",
    ("adam", 8, True): "paged-adamw-8bit",
    ("lion", 32, False): "lion",
    ("lion", 8, False): "lion-8bit",
}
"""By its name there, the bits of its states, and whether they are in managed memory."""
_SMALLEST_IN_8_BITS = 4096  # elements of a parameter: bitsandbytes' default
_UNMODELLED = ("amsgrad", "maximize", "capturable", "differentiable", "nesterov")
_UNMODELLED_ADAFACTOR = ("beta1", "scale_parameter", "relative_step")
_DECAY_COPIES_GRADIENTS = ("Adam", "SGD")


def read_optimizer(optimizer: Any, model: Any, loop: str | None = None) -> dict[str, Any]:
    """Return the job's optimizer fields. Raises NotModelledError for another kind of optimizer.

    `loop`: whose optimizer it is; transformers' own is known in those of its Trainer.
    """
    while hasattr(optimizer, "optimizer"):  # accelerate's wrapper
        optimizer = optimizer.optimizer
    kind = type(optimizer)
    if kind.__module__.startswith("bitsandbytes.optim"):
        return _read_bitsandbytes(optimizer, model)
    if kind.__module__ == "transformers.optimization" and loop in TRAINERS:
        return _read_adafactor(optimizer, model)
    if not kind.__module__.startswith("torch.optim") or kind.__name__ not in _NAMES:
        raise NotModelledError(
            f"an optimizer of the kind {kind.__module__}.{kind.__name__}",
            hint=f"modelled are torch.optim's {', '.join(_NAMES)}; others by name: optimizer=...",
        )
    groups: list[Mapping[str, Any]] = optimizer.param_groups
    for group in groups:
        _check(kind.__name__, group)
    if hasattr(model, "named_parameters"):
        _check_parameters(groups, model)
    implementation = {_implementation(group) for group in groups}
    if len(implementation) > 1:
        raise NotModelledError("parameter groups with different implementations")
    name = _NAMES[kind.__name__]
    if name == "sgd" and any(group["momentum"] for group in groups):
        name = "sgd-momentum"
    return {"optimizer": name, "optimizer_impl": implementation.pop()}


def _read_bitsandbytes(optimizer: Any, model: Any) -> dict[str, Any]:
    own = getattr(optimizer, "args", None)
    bits, smallest = getattr(own, "optim_bits", None), getattr(own, "min_8bit_size", None)
    kind = getattr(optimizer, "optimizer_name", None), bits, bool(optimizer.is_paged)
    if kind not in _BITSANDBYTES or (bits == 8 and smallest != _SMALLEST_IN_8_BITS):  # noqa: PLR2004
        raise NotModelledError(
            f"bitsandbytes' {type(optimizer).__name__}, states of {bits} bits",
            hint="modelled are AdamW8bit, PagedAdamW8bit, Lion and Lion8bit; others by name:"
            " optimizer=...",
        )
    if hasattr(model, "named_parameters"):
        _check_parameters(optimizer.param_groups, model)
    return {"optimizer": _BITSANDBYTES[kind]}


def _read_adafactor(optimizer: Any, model: Any) -> dict[str, Any]:
    for group in optimizer.param_groups:
        for option in _UNMODELLED_ADAFACTOR:
            if group.get(option):
                raise NotModelledError(f"transformers' Adafactor with {option}={group[option]}")
    if hasattr(model, "named_parameters"):
        _check_parameters(optimizer.param_groups, model)
    return {"optimizer": "adafactor"}


def _check(kind: str, group: Mapping[str, Any]) -> None:
    fused = bool(group.get("fused"))
    for option in _UNMODELLED:
        if group.get(option):
            raise NotModelledError(f"{kind} with {option}=True")
    decays = group.get("weight_decay") and not group.get("decoupled_weight_decay")
    if kind in _DECAY_COPIES_GRADIENTS and decays and not fused:
        raise NotModelledError(
            f"{kind} with weight_decay, which copies the gradients",
            hint="AdamW's weight decay does not, nor does fused=True",
        )


def _implementation(group: Mapping[str, Any]) -> str | None:
    if group.get("fused"):
        return "fused"
    return {True: "foreach", False: "for-loop"}.get(group.get("foreach"))  # type: ignore[arg-type]


def _check_parameters(groups: Iterable[Mapping[str, Any]], model: Any) -> None:
    """Compare the optimizer's parameters with those that require a gradient."""
    stepped = {id(p) for group in groups for p in group["params"]}
    left_out = [n for n, p in model.named_parameters() if p.requires_grad and id(p) not in stepped]
    if left_out:
        raise NotModelledError(
            f"{len(left_out)} parameters require a gradient and are not in the optimizer: "
            f"{left_out[0]}, ...",
            hint="their gradients would never be zeroed: requires_grad_(False) freezes them",
        )
