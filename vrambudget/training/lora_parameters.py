"""LoRA on parameters that no linear layer holds: experts and routers (peft's ParamWrapper).

    each forward reads W + B @ A * scaling: a tensor as large as all experts, kept for backward

PEFT knows the projections of a mixture of experts by their old names and translates them:

    Mixtral      gate, w1 and w3 (rank doubled, for both are one tensor), w2
    Qwen3-MoE    gate, gate_proj and up_proj (likewise), down_proj: no longer a dense layer's, or
                 shared experts'; DeepSeek, GLM 4.5, OLMoE and others as well

The factors are cast to the weights' type at every forward. Where alpha is the rank, as for rank 16,
gradients need no scaling.

Source: peft 0.21, tuners/lora/layer.py (ParamWrapper), tuners_utils.py (_inject_parameters),
utils/transformers_weight_conversion.py.
Not modelled: several adapters, other names of targets than these.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.engine.autocast import to
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import VramBudgetError
from vrambudget.models.parts.layers import Linear
from vrambudget.models.parts.parametrised import Parametrised, Replacement
from vrambudget.ops.elementwise import add, mul_scalar
from vrambudget.ops.linear import mm
from vrambudget.ops.low_rank import add_low_rank
from vrambudget.ops.shape import permute, reshape

ALPHA = 16

_QWEN_LIKE: Mapping[str, str] = {
    "gate": "weight",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
    "down_proj": "down_proj",
}
_MIXTRAL_LIKE: Mapping[str, str] = {
    "gate": "weight",
    "w1": "gate_up_proj",
    "w3": "gate_up_proj",
    "w2": "down_proj",
}
_PARAMETERS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "flex_olmo", "glm4_moe", "glm4_moe_lite"), _QWEN_LIKE
    ),
    **dict.fromkeys(("hunyuan_v1_moe", "olmoe", "qwen3_moe", "solar_open"), _QWEN_LIKE),
    **dict.fromkeys(("minimax_m2", "mixtral"), _MIXTRAL_LIKE),
}
"""model_type: {a target's name: the parameter that holds it now}.

Qwen3's are those of types whose conversion is called "qwen2_moe", Mixtral's of "mixtral".

Source: transformers/conversion_mapping.py (_MODEL_TO_CONVERSION_PATTERN), 5.17.
"""


def parameter_targets(model_type: str, targets: str | tuple[str, ...]) -> Mapping[str, str]:
    """Return the targets that PEFT translates, with the parameters that they mean.

    Raises VramBudgetError for one half of a tensor without the other.
    """
    names = _PARAMETERS.get(model_type, {})
    if isinstance(targets, str):  # all-linear
        return names
    chosen = {name: names[name] for name in targets if name in names}
    missing = [n for n, p in names.items() if p in chosen.values() and n not in chosen]
    if missing:
        halves = [n for n in chosen if names[n] == names[missing[0]]]
        raise VramBudgetError(
            f"LoRA on {halves[0]} alone: {' and '.join((*halves, *missing))} are one tensor",
            hint=f"name {missing[0]} too",
        )
    return chosen


def wrap_parameters(model: Module, rank: int, chosen: Mapping[str, str]) -> "list[LoraParameter]":
    """Put adapters around the parameters that `parameter_targets` chose."""
    ranks = {p: rank * [*chosen.values()].count(p) for p in chosen.values()}
    scaling = ALPHA / rank
    adapters = []
    for parent in list(model.modules()):
        for place, owner in list(vars(parent).items()):
            wrapped = owner
            for name in ("weight", "gate_up_proj", "down_proj"):
                if isinstance(owner, Parametrised) and name in ranks and hasattr(owner, name):
                    wrapped = LoraParameter(wrapped, owner, name, ranks[name], scaling)
                    adapters.append(wrapped)
            setattr(parent, place, wrapped)
    return adapters


class LoraParameter(Module):
    """peft's ParamWrapper: runs `base_layer` with an update of one parameter of `owner`."""

    def __init__(
        self, base: Module, owner: Parametrised, name: str, rank: int, scaling: float
    ) -> None:
        shape = getattr(owner, name).shape
        experts, out_features, features = shape if len(shape) == 3 else (1, *shape)  # noqa: PLR2004
        self.base_layer = base
        self.lora_A = Linear(features, rank * experts, bias=False)
        self.lora_B = Linear(rank * experts, out_features, bias=False)
        # Not among the attributes that make the tree of modules: `base_layer` is above it.
        self.target = (owner, name)
        self.experts = experts
        self.scaling = scaling

    def forward(self, *args: Any) -> Any:
        """Do what the wrapped layer does."""
        owner, name = self.target
        replacement = self._replacement(getattr(owner, name))
        with owner.parametrised(name, replacement):
            return self.base_layer(*args)

    def _replacement(self, parameter: Parameter) -> Replacement:
        if self.experts == 1:
            delta = to(mul_scalar(mm(self.lora_B.weight, self.lora_A.weight)), parameter.dtype)
            return lambda weight: add(weight, delta)
        weight_a, weight_b = self.lora_A.weight, self.lora_B.weight
        stack_a = reshape(weight_a, self.experts, -1, weight_a.shape[1])
        stack_b = permute(reshape(weight_b, weight_b.shape[0], -1, self.experts), 2, 0, 1)
        lhs, rhs = to(stack_b, parameter.dtype), to(stack_a, parameter.dtype)
        return lambda weight: add_low_rank(weight, lhs, rhs, scaling=self.scaling)
