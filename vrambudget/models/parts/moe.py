"""What decoders with experts have in common: their block, their head, the load-balancing loss.

With `output_router_logits` the head adds to its loss how unevenly the routers spread tokens, and
its output holds every layer's router logits [N, E]: load_balancing_loss_func makes a scalar of
them, in which a padding mask [B, T] leaves padded tokens out.

Source: models/mixtral/modeling_mixtral.py (MixtralForCausalLM) and its copy in qwen3_moe;
transformers 5.17.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vrambudget.config.settings import Size
from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.experts import Experts
from vrambudget.models.parts.losses import causal_lm_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.creation import made
from vrambudget.ops.elementwise import add, mul, mul_scalar
from vrambudget.ops.fill import add_
from vrambudget.ops.ordering import bincount, topk
from vrambudget.ops.reduce import sum_all, sum_dim
from vrambudget.ops.shape import reshape, unsqueeze
from vrambudget.ops.softmax import softmax
from vrambudget.tape.events import Purpose


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


class Router(Parametrised):
    """From tokens to experts; a program says how it weighs the best."""

    is_captured = False
    captured: Tensor | None = None

    weight: Parameter  # [E, C]

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        result: tuple[Tensor, Tensor, Tensor] = super().__call__(hidden_states)
        if self.is_captured:
            self.captured = result[0]
        return result


class MoeCausalLM(CausalLM):
    """MixtralForCausalLM."""

    config: "MoeConfig"

    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *args: Any,
        num_items_in_batch: Tensor | None = None,
        **kwargs: Any,
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        items = num_items_in_batch
        if labels is None or not getattr(self.config, "output_router_logits", False):
            return super().forward(
                input_ids, labels, attention_mask, *args, num_items_in_batch=items, **kwargs
            )
        routers = [module for module in self.modules() if isinstance(module, Router)]
        for router in routers:
            router.is_captured = True
        hidden_states = getattr(self, self.base_model_prefix)(input_ids, attention_mask)
        router_logits = tuple(_release(router) for router in routers)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.logits(hidden_states)
            loss = causal_lm_loss(logits, labels, self.config.vocab_size, items)
            aux_loss = load_balancing_loss(
                router_logits,
                self.config.experts,
                self.config.num_experts_per_tok,
                attention_mask,
            )
            assert loss is not None  # noqa: S101 - there are labels
            loss = add_(loss, mul_scalar(aux_loss))
        return Outputs(loss, logits, (aux_loss, router_logits))


def _release(router: Router) -> Tensor:
    logits = router.captured
    assert logits is not None  # noqa: S101 - every layer has run
    router.captured, router.is_captured = None, False
    return logits


class MoeConfig(DecoderConfig):
    """A configuration of layers with experts, some of which may have none."""

    num_experts_per_tok: Size

    experts_class: ClassVar[type[Experts]] = Experts

    has_experts = True
    loads_in_4bit = False  # experts are no linear layers: bitsandbytes leaves them as they are
    ignored_keys = DecoderConfig.ignored_keys | {"router_aux_loss_coef"}

    @property
    def experts(self) -> int:
        """How many experts a layer has."""
        found: int = getattr(self, "num_local_experts", None) or vars(self)["num_experts"]
        return found

    def is_dense(self, number: int) -> bool:
        """Return whether a layer has no experts."""
        own = vars(self)
        dense, step = own.get("mlp_only_layers") or (), own.get("decoder_sparse_step", 1)
        first = own.get("first_k_dense_replace", 0)
        if "mlp_layer_types" in own:
            kinds = own["mlp_layer_types"] or ["dense"] + ["sparse"] * self.num_hidden_layers
            return bool(kinds[number] == "dense")
        return number < first or number in dense or (number + 1) % step != 0

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.num_experts_per_tok > self.experts:
            yield (
                f"num_experts_per_tok is {self.num_experts_per_tok},"
                f" but there are {self.experts} experts"
            )
        kinds = vars(self).get("mlp_layer_types")
        if kinds and len(kinds) != self.num_hidden_layers:
            yield f"mlp_layer_types has {len(kinds)} layers of {self.num_hidden_layers}"
