"""How unevenly routers spread tokens over experts, as a loss (load_balancing_loss_func).

    logits [N, E] of each layer -> a scalar; a padding mask [B, T] leaves padded tokens out

Source: models/mixtral/modeling_mixtral.py and its copy in qwen3_moe, transformers 5.17.
"""

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, mul, mul_scalar
from vrambudget.ops.ordering import bincount, topk
from vrambudget.ops.reduce import sum_all, sum_dim
from vrambudget.ops.shape import reshape, unsqueeze
from vrambudget.ops.softmax import softmax


def load_balancing_loss(
    gate_logits: tuple[Tensor, ...], experts: int, top_k: int, attention_mask: Tensor | None
) -> Tensor:
    """Return the loss of the routers' logits, a float32 scalar."""
    if attention_mask is not None:
        return _without_padding(gate_logits, experts, top_k, attention_mask)
    tokens_per_expert_sum = made("zeros", (experts,), float32)
    router_prob_sum = made("zeros", (experts,), float32)
    for layer_gate in gate_logits:
        routing_weights = softmax(layer_gate)
        _, selected_experts = topk(routing_weights, top_k)
        tokens_per_expert_sum = add(
            tokens_per_expert_sum,
            to(bincount(reshape(selected_experts, -1), experts), float32),
        )
        router_prob_sum = add(router_prob_sum, sum_dim(to(routing_weights, float32), 0))
    tokens_per_expert = mul_scalar(tokens_per_expert_sum)  # / how many rows: a number
    router_prob_per_expert = mul_scalar(router_prob_sum)
    overall_loss = sum_all(mul(tokens_per_expert, unsqueeze(router_prob_per_expert, 0)))
    return mul_scalar(overall_loss)


def _without_padding(
    gate_logits: tuple[Tensor, ...], experts: int, top_k: int, attention_mask: Tensor
) -> Tensor:
    tokens_per_expert_sum = made("zeros", (experts,), float32)
    router_prob_sum = made("zeros", (experts,), float32)
    flat_mask = to(reshape(attention_mask, -1), float32)
    total_rows = None
    for layer_gate in gate_logits:
        routing_weights = softmax(layer_gate)
        _, selected_experts = topk(routing_weights, top_k)
        tokens_per_expert_sum = add(
            tokens_per_expert_sum, _masked_counts(experts, selected_experts)
        )
        router_prob_sum = add(
            router_prob_sum,
            sum_dim(mul(to(routing_weights, float32), unsqueeze(flat_mask, 1)), 0),
        )
        rows = sum_all(flat_mask)
        total_rows = mul_scalar(rows) if total_rows is None else add(total_rows, rows)  # 0.0 + rows
        del rows
    assert total_rows is not None  # noqa: S101 - there are layers
    # A quotient keeps its divisor as a product keeps the other factor; the divisor is a constant.
    tokens_per_expert = mul(tokens_per_expert_sum, total_rows)
    router_prob_per_expert = mul(router_prob_sum, total_rows)
    overall_loss = sum_all(mul(tokens_per_expert, unsqueeze(router_prob_per_expert, 0)))
    return mul_scalar(overall_loss)


def _masked_counts(experts: int, selected_experts: Tensor) -> Tensor:
    """zeros(E).scatter_add_(0, selected, flat_mask.repeat_interleave(k))."""
    counts = made("zeros", (experts,), float32)
    weights = made("repeat_interleave", (selected_experts.numel,), float32)
    del weights
    return counts
