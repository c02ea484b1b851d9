"""What decoders with experts have in common: their block, their head, the load-balancing loss.

With `output_router_logits` the head adds to its loss how unevenly the routers spread tokens, and
its output holds every layer's router logits [N, E].

Source: models/mixtral/modeling_mixtral.py (MixtralForCausalLM) and its copy in qwen3_moe;
transformers 5.17.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

from vrambudget.config.settings import Size
from vrambudget.engine.context import made_for
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.experts import Experts
from vrambudget.models.parts.load_balancing import load_balancing_loss
from vrambudget.models.parts.losses import causal_lm_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.ops.fill import add_
from vrambudget.tape.events import Purpose


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
        return number < first or number in dense or (number + 1) % step != 0

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.num_experts_per_tok > self.experts:
            yield (
                f"num_experts_per_tok is {self.num_experts_per_tok},"
                f" but there are {self.experts} experts"
            )
