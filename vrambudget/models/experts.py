"""Mixtures of experts as transformers 5 runs them (integrations/moe.py).

    gate_up_proj [E, 2 I, C], down_proj [E, C, I]: all experts' weights are two tensors

N tokens go to k experts each: S = N * k rows, sorted by expert, go through two grouped products.
How the rows spread over the experts decides no memory: every tensor has S rows whoever computes
them.

Under autocast the experts run in their weights' float32: grouped products are on none of its lists.

Not modelled: expert parallelism, other implementations (deepgemm, sonicmoe), biases.
"""

from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.dtypes import bool_, int32, int64
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parametrised import Parametrised
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import ACTIVATIONS, mul
from vrambudget.ops.fill import masked_fill, masked_fill_
from vrambudget.ops.grouped import grouped_linear
from vrambudget.ops.indexing import index_rows
from vrambudget.ops.ordering import count_each, running_sum, sort
from vrambudget.ops.reduce import sum_dim
from vrambudget.ops.shape import reshape, split, unsqueeze, view


class Experts(Parametrised):
    """MixtralExperts and its namesakes: gate and up projections are one tensor."""

    def __init__(self, experts: int, width: int, inner: int, hidden_act: str) -> None:
        super().__init__()
        dtype = context.options.dtype
        self.gate_up_proj = Parameter((experts, 2 * inner, width), dtype)
        self.down_proj = Parameter((experts, width, inner), dtype)
        self.act_fn = ACTIVATIONS[hidden_act]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[N, C], [N, k], [N, k] -> [N, C] (grouped_mm_experts_forward)."""
        (tokens, top_k), experts = top_k_index.shape, self.gate_up_proj.shape[0]
        sample_weights = reshape(top_k_weights, -1)
        expert_ids = reshape(top_k_index, -1)
        expert_ids_g, perm = sort(expert_ids)
        selected_hidden_states_g = index_rows(
            hidden_states, made("floor_divide", perm.shape, int64)
        )
        sample_weights_g = index_rows(sample_weights, perm)
        histc_input = made("to_dtype", expert_ids_g.shape, int32)
        tokens_per_expert = count_each(histc_input, experts)
        offsets = running_sum(tokens_per_expert)
        sentinel_mask = unsqueeze(made("ge", expert_ids_g.shape, bool_), 1)
        selected_weights = self.value("gate_up_proj")
        selected_hidden_states_g = masked_fill_(selected_hidden_states_g, sentinel_mask)
        proj_out = grouped_linear(selected_hidden_states_g, selected_weights, offsets)
        proj_out = masked_fill(proj_out, sentinel_mask)
        proj_out = self._apply_gate(proj_out)
        selected_weights = self.value("down_proj")
        proj_out = grouped_linear(proj_out, selected_weights, offsets)
        proj_out = masked_fill(proj_out, sentinel_mask)
        weighted_out = mul(proj_out, unsqueeze(sample_weights_g, 1))
        inv_perm = _inverse(perm)
        weighted_out = index_rows(weighted_out, inv_perm)
        final_hidden_states = sum_dim(view(weighted_out, tokens, top_k, -1), 1)
        return to(final_hidden_states, hidden_states.dtype)

    def _apply_gate(self, gate_up_out: Tensor) -> Tensor:
        gate, up = split(gate_up_out, gate_up_out.shape[-1] // 2, -1)
        return mul(self.act_fn(gate), up)


def _inverse(permutation: Tensor) -> Tensor:
    """inv_perm[perm] = torch.arange(S)."""
    inverse = made("empty_like", permutation.shape, int64)
    positions = arange(permutation.shape[0])
    del positions
    return inverse
