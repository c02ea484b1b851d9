"""What decoders with experts have in common: their block, their head, the load-balancing loss.

With `output_router_logits` the head adds to its loss how unevenly the routers spread tokens, and
its output holds every layer's router logits [N, E].

Source: models/mixtral/modeling_mixtral.py (MixtralForCausalLM) and its copy in qwen3_moe;
transformers 5.17.
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.config.settings import Size
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.load_balancing import load_balancing_loss
from vrambudget.models.parts.losses import causal_lm_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.fill import add_
from vrambudget.tape.events import Purpose


class Router(Parametrised):
    """A linear layer from tokens to experts; families say how they weigh the best."""

    is_captured = False
    captured: Tensor | None = None

    def __init__(self, experts: int, width: int, top_k: int) -> None:
        super().__init__()
        self.top_k = top_k
        self.weight = Parameter((experts, width), context.options.dtype)

    def __call__(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, C] -> logits [N, E], weights [N, k], indices [N, k]."""
        result: tuple[Tensor, Tensor, Tensor] = super().__call__(hidden_states)
        if self.is_captured:
            self.captured = result[0]
        return result


class MoeCausalLM(CausalLM):
    """MixtralForCausalLM."""

    def __init__(self, config: "MoeConfig") -> None:
        super().__init__(config)
        self.moe_config = config

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
        if labels is None or not getattr(self.moe_config, "output_router_logits", False):
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
            loss = causal_lm_loss(logits, labels, self.moe_config.vocab_size, items)
            aux_loss = load_balancing_loss(
                router_logits,
                self.moe_config.experts,
                self.moe_config.num_experts_per_tok,
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
    """The keys that these families share."""

    num_experts_per_tok: Size

    has_experts = True
    loads_in_4bit = False  # experts are no linear layers: bitsandbytes leaves them as they are
    ignored_keys = DecoderConfig.ignored_keys | {"router_aux_loss_coef"}

    @property
    def experts(self) -> int:
        """How many experts a layer has; each family has a name for it."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.num_experts_per_tok > self.experts:
            yield (
                f"num_experts_per_tok is {self.num_experts_per_tok},"
                f" but there are {self.experts} experts"
            )

    def causal_lm(self) -> CausalLM:
        """MixtralForCausalLM, and its copy."""
        return MoeCausalLM(self)
