"""What can be read from a live model of transformers: its configuration, and fields of a job.

    task            the class's name: GPT2LMHeadModel, BertForSequenceClassification, ...
    precision       the parameters' dtype, with autocast if that is on now or by accelerate
    attention       config._attn_implementation
    checkpointing   whether its layers run again in backward, all of them, without re-entry
    LoRA            rank and targets of the one adapter that PEFT added
    freeze          the parameters that do not require a gradient
    quant           the weights that bitsandbytes keeps in 4 bit

The model is compared with its configuration, parameter by parameter: one that was changed by hand
is an error, and never treated as what its configuration says.

Not modelled: compiled and wrapped models, other adapters than plain LoRA, 8-bit weights.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vrambudget.config.fields.batches import TASK_OF_CLASS
from vrambudget.config.unfamiliar import tasks_of
from vrambudget.errors import NotModelledError
from vrambudget.integrations.live_lora import LORA_PARTS, read_lora
from vrambudget.integrations.live_quant import is_4bit, quantised_from, read_quant, shape_of

_WRAPPERS = {
    "OptimizedModule": "torch.compile changes what is kept",
    "DistributedDataParallel": "more than one GPU",
    "FullyShardedDataParallel": "more than one GPU",
    "DataParallel": "more than one GPU",
}
_PRECISIONS = {"torch.float32": "fp32", "torch.bfloat16": "bf16", "torch.float16": "fp16"}
_AUTOCAST = {"torch.bfloat16": "amp-bf16", "torch.float16": "amp-fp16"}
_ACCELERATE = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_REHEARSE = "`vrambudget rehearse --gpu GPU -- python SCRIPT` runs any script on a virtual GPU"


@dataclass(frozen=True, slots=True)
class LiveParameter:
    """What matters about one parameter, in the order of the model's own list."""

    name: str
    shape: tuple[int, ...]
    trained: bool
    in_4bit: bool = False

    def is_of(self, shape: tuple[int, ...]) -> bool:
        """Whether a parameter of this shape is meant; 4-bit weights of Conv1D are transposed."""
        return self.shape == shape or (self.in_4bit and self.shape == shape[::-1])


@dataclass(frozen=True, slots=True)
class LiveModel:
    """What was read; `parameters` are those of the model without its adapter."""

    config: Mapping[str, Any]
    fields: Mapping[str, Any]
    parameters: Sequence[LiveParameter]
    count: int  # of all, as the next
    trained: int
    is_prepared: bool = False  # by accelerate, whose outputs come back as float32
    quantised_from: str | None = None  # the 16-bit type of weights that are in 4 bit


def is_live(model: object) -> bool:
    """Return whether this is a live model, not a name, a path, a dict or a configuration."""
    return hasattr(model, "named_parameters")


def is_wrapped(model: object) -> bool:
    """Return whether this is a model in what changes how it runs."""
    return type(model).__name__ in _WRAPPERS


def is_touched(model: Any) -> bool:
    """Return whether a module runs other code than its class: a forward of its own, hooks.

    Those of accelerate (autocast around the model) and PEFT (inputs that want gradients) are known.
    """
    for module in model.modules():
        own = vars(module)
        if "forward" in own and "_original_forward" not in own:
            return True
        hooks = [hook for name in _HOOKS for hook in own.get(name, {}).values()]
        if any("make_inputs_require_grad" not in getattr(h, "__qualname__", "") for h in hooks):
            return True
    return False


def read_model(model: Any) -> LiveModel:
    """Return what can be read from a live model. Raises NotModelledError for other objects."""
    kind = type(model).__name__
    if is_wrapped(model):
        raise NotModelledError(
            f"a model in {kind}: {_WRAPPERS[kind]}",
            hint=f"pass the model itself; or {_REHEARSE}",
        )
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    config: Any = getattr(base, "config", None)
    if not hasattr(config, "to_dict"):
        raise NotModelledError(f"a {kind} is no model of transformers", hint=_REHEARSE)
    lora = read_lora(base, getattr(model, "peft_config", None))
    own = [(n, p) for n, p in base.named_parameters() if not LORA_PARTS & set(n.split("."))]
    every = [(math.prod(shape_of(p)), p.requires_grad) for p in model.parameters()]
    quant = read_quant(base)
    task = _task(type(base).__name__, config.to_dict())
    fields = {
        "task": task,
        **_precision({str(p.dtype) for _, p in own if not is_4bit(p)}, _autocast(base)),
        "attention": _attention(config),
        "checkpointing": _checkpointing(base),
        **_experts(config),
        **_caching(config, task),
        **lora,
        **quant,
    }
    if quant:
        fields.pop("weights", None)  # of what is not in 4 bit: the loop decides
    return LiveModel(
        config=config.to_dict(),
        fields=fields,
        parameters=[
            LiveParameter(n, shape_of(p), bool(p.requires_grad), is_4bit(p)) for n, p in own
        ],
        count=sum(numel for numel, _ in every),
        trained=sum(numel for numel, is_trained in every if is_trained),
        is_prepared=_is_prepared(base),
        quantised_from=_PRECISIONS.get(quantised_from(base) or ""),
    )


def _task(kind: str, values: Mapping[str, Any]) -> str:
    if not kind.endswith(tuple(TASK_OF_CLASS)):
        raise NotModelledError(
            f"{kind}: only models with a head that makes a loss are modelled", hint=_REHEARSE
        )
    return tasks_of({**values, "architectures": [kind]})[0]


def _precision(dtypes: set[str], autocast: str | None) -> dict[str, str]:
    if len(dtypes) != 1 or not dtypes <= _PRECISIONS.keys():
        raise NotModelledError(
            f"weights of type {' and '.join(sorted(dtypes))}",
            hint=f"modelled are those of one type, float32, bfloat16 or float16; or {_REHEARSE}",
        )
    (dtype,) = dtypes
    if autocast is None:
        return {"precision": _PRECISIONS[dtype]}
    own = {} if dtype == "torch.float32" else {"weights": _PRECISIONS[dtype]}
    return {"precision": _AUTOCAST[autocast], **own}


def _autocast(model: Any) -> str | None:
    """Return the dtype of autocast, if it is on now or accelerate put it around the forward.

    Source: accelerate 1.15, Accelerator.prepare_model (`_original_forward`).
    """
    torch, accelerate = sys.modules.get("torch"), sys.modules.get("accelerate.state")
    if torch is not None and torch.is_autocast_enabled("cuda"):
        return str(torch.get_autocast_dtype("cuda"))
    if accelerate is not None and _is_prepared(model):
        return _ACCELERATE.get(accelerate.AcceleratorState().mixed_precision)
    return None


def _is_prepared(model: Any) -> bool:
    """Return whether accelerate put autocast around the model's forward."""
    return "_original_forward" in vars(model)


def _attention(config: Any) -> str:
    attention = getattr(config, "_attn_implementation", None) or "sdpa"
    if attention not in ("sdpa", "eager"):
        raise NotModelledError(
            f"attention {attention!r}", hint=f'modelled are "sdpa" and "eager"; or {_REHEARSE}'
        )
    return str(attention)


def _experts(config: Any) -> dict[str, str]:
    """Return how a mixture's experts are run; nothing for a model without any."""
    chosen = getattr(config, "_experts_implementation", None)
    if chosen is None or not (
        hasattr(config, "num_experts") or hasattr(config, "num_local_experts")
    ):
        return {}
    return {"experts": str(chosen)}


def _caching(config: Any, task: str) -> dict[str, bool]:
    """Return that training fills a cache of keys and values, as decoders do by default.

    A model that reads images, too, does what the configuration of its language model says. Of
    encoder-decoders Whisper does, with labels, too.
    """
    keeps = task == "causal-lm" or config.model_type == "whisper"
    decodes = keeps and bool(getattr(config.get_text_config(), "use_cache", False))
    return {"use_cache": True} if decodes else {}


def _checkpointing(model: Any) -> str:
    layers = [
        module
        for module in model.modules()
        if any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__)
    ]
    on = [layer for layer in layers if layer.gradient_checkpointing]
    if not on:
        return "none"
    if len(on) < len(layers):
        raise NotModelledError(f"checkpointing of {len(on)} of {len(layers)} layers")
    options = getattr(on[0]._gradient_checkpointing_func, "keywords", {})  # noqa: SLF001 - no other way
    if options.get("use_reentrant", True):
        raise NotModelledError(
            "checkpointing with use_reentrant=True",
            hint="gradient_checkpointing_enable({'use_reentrant': False}) is PyTorch's own advice",
        )
    return "full"
