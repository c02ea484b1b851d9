"""Which modules expert parallelism changes, and a model's experts cut to the rank's own.

    router    ep_router: its choices become the rank's own
    experts   grouped_gemm: every parameter [E, ...] is cut along its first dimension;
              moe_tp_experts: results are added up

Source: base_model_ep_plan of transformers' configurations (mixtral, qwen2_moe, qwen3_moe, gpt_oss,
deepseek_v2, deepseek_v3); transformers/distributed/tensor_parallel.py (MoEParamShard).
Not modelled: plans that cut attention as well (llama4); DeepGEMM's kernels (megamoe).
"""

from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.experts import Experts
from vrambudget.models.parts.moe import Router
from vrambudget.parallel.dtensor import Placement, ShardedTensorParameter
from vrambudget.parallel.expert.styles import AddsUp, RoutesToOwn
from vrambudget.parallel.group import Group
from vrambudget.training.lora_parameters import LoraParameter


def share_experts(model: Module, group: Group) -> None:
    """Leave each layer its rank's experts, and change its router. Raises VramBudgetError."""
    routers = [module for module in model.modules() if isinstance(module, Router)]
    layers = [module for module in model.modules() if isinstance(module, Experts)]
    if not layers:
        raise NotModelledError(
            f"{type(model).__name__} has no experts that are modelled: transformers has no expert"
            " parallel plan for it, or it is not known here",
            hint="Mixtral, Qwen2-MoE, Qwen3-MoE, GPT-OSS and DeepSeek V2 and V3 are",
        )
    if any(isinstance(module, LoraParameter) for module in model.modules()):
        raise NotModelledError(
            "LoRA on experts or routers with expert parallelism fails in PEFT 0.21, which adds"
            " plain factors to cut weights (ParamWrapper)",
            hint="name linear layers: --lora-targets q_proj,k_proj,v_proj,o_proj",
        )
    for router in routers:
        router.hooks = RoutesToOwn(_own(router.weight.shape[0], group))
    for experts in layers:
        _cut(experts, group)
        experts.hooks = AddsUp()


def _own(experts: int, group: Group) -> int:
    if experts % group.size:
        raise VramBudgetError(
            f"{experts} experts cannot be shared evenly among ep={group.size} ranks",
            hint="transformers refuses it, too; choose a number of ranks that divides them",
        )
    return experts // group.size


def _cut(experts: Experts, group: Group) -> None:
    own = [item for item in vars(experts).items() if isinstance(item[1], Parameter)]
    for name, parameter in own:
        first, *others = parameter.shape
        part = ShardedTensorParameter((_own(first, group), *others), parameter.dtype)
        part.placement = Placement()
        part.requires_grad = parameter.requires_grad
        setattr(experts, name, part)
