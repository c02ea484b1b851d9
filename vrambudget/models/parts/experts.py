"""Mixtures of experts as transformers 5 runs them (integrations/moe.py).

    gate_up_proj [E, 2 I, C], down_proj [E, C, I]: all experts' weights are two tensors

N tokens go to k experts each: S = N * k rows.

    grouped_mm   sorted by expert, all rows go through two grouped products. How they spread over
                 the experts decides no memory: every tensor has S rows. Under autocast the experts
                 run in their weights' float32: grouped products are on none of its lists.
    eager        one expert after the other, on the rows it got: `rows_per_expert` says how many.
                 backward makes a gradient as large as all experts' weights for each of them.

    batched_mm   a product for each row, by a copy of its expert's weights; `generate` takes it for
                 decoding in place of grouped_mm (_optimize_model_for_decode)

Not modelled: expert parallelism, other implementations (deepgemm, sonicmoe), biases; gradients of
batched_mm.
"""

from vrambudget.dtypes import bool_, int32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import ACTIVATIONS, mul
from vrambudget.ops.fill import masked_fill, masked_fill_
from vrambudget.ops.grouped import grouped_linear
from vrambudget.ops.indexing import index_add_, index_pairs, index_rows
from vrambudget.ops.linear import linear, matmul
from vrambudget.ops.ordering import count_each, running_sum, sort
from vrambudget.ops.reduce import sum_dim, with_partial_sums
from vrambudget.ops.selection import nonzero
from vrambudget.ops.shape import permute, reshape, select, split, unsqueeze, view


class Experts(Parametrised):
    """MixtralExperts and its namesakes: gate and up projections are one tensor."""

    def __init__(self, experts: int, width: int, inner: int, hidden_act: str) -> None:
        super().__init__()
        dtype = context.options.dtype
        self.gate_up_proj = Parameter((experts, 2 * inner, width), dtype)
        self.down_proj = Parameter((experts, width, inner), dtype)
        self.act_fn = ACTIVATIONS[hidden_act]

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """[N, C], [N, k], [N, k] -> [N, C]."""
        if context.options.experts == "eager":
            return self._one_by_one(hidden_states, top_k_index, top_k_weights)
        if context.options.experts == "batched_mm":
            return self._batched(hidden_states, top_k_index, top_k_weights)
        return self._grouped(hidden_states, top_k_index, top_k_weights)

    def _grouped(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """grouped_mm_experts_forward."""
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

    def _batched(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """batched_mm_experts_forward: a copy of the chosen expert's weights for each row."""
        tokens, top_k = top_k_index.shape
        rows = tokens * top_k
        selected_hidden_states = made(
            "repeat_interleave", (rows, hidden_states.shape[1]), hidden_states.dtype
        )
        sample_weights = reshape(top_k_weights, -1)
        expert_ids = made("clamp", (rows,), int64)
        selected_weights = index_rows(self.value("gate_up_proj"), expert_ids)
        proj_out = _batched_linear(selected_hidden_states, selected_weights)
        proj_out = self._apply_gate(proj_out)
        selected_weights = index_rows(self.value("down_proj"), expert_ids)
        proj_out = _batched_linear(proj_out, selected_weights)
        weighted_out = mul(proj_out, unsqueeze(sample_weights, 1))
        final_hidden_states = sum_dim(view(weighted_out, tokens, top_k, -1), 1)
        result = to(final_hidden_states, hidden_states.dtype)
        del selected_hidden_states, selected_weights, expert_ids  # held until here
        return result

    def _one_by_one(
        self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
    ) -> Tensor:
        """MixtralExperts.forward."""
        (tokens, top_k), experts = top_k_index.shape, self.gate_up_proj.shape[0]
        final_hidden_states = made("zeros_like", hidden_states.shape, hidden_states.dtype)
        expert_mask = permute(made("one_hot", (tokens, top_k, experts), int64), 2, 1, 0)
        counts = rows_per_expert(tokens, top_k, experts)
        (expert_hit,) = nonzero(_is_hit(expert_mask), len(counts))
        for count in counts:
            made("eq", (), bool_)  # expert_idx == num_experts, read back
            top_k_pos, token_idx = nonzero(select(expert_mask, 0), count)
            current_state = index_rows(hidden_states, token_idx)
            gate_up = linear(current_state, select(self.value("gate_up_proj"), 0))
            gate, up = split(gate_up, gate_up.shape[-1] // 2, -1)
            del gate_up
            current_hidden_states = mul(self.act_fn(gate), up)
            current_hidden_states = linear(
                current_hidden_states, select(self.value("down_proj"), 0)
            )
            current_hidden_states = mul(
                current_hidden_states,
                index_pairs(unsqueeze(top_k_weights, 2), token_idx, top_k_pos),
            )
            final_hidden_states = index_add_(
                final_hidden_states,
                token_idx,
                to(current_hidden_states, final_hidden_states.dtype),
            )
        del expert_hit
        return final_hidden_states

    def _apply_gate(self, gate_up_out: Tensor) -> Tensor:
        gate, up = split(gate_up_out, gate_up_out.shape[-1] // 2, -1)
        return mul(self.act_fn(gate), up)


def _batched_linear(x: Tensor, weight: Tensor) -> Tensor:
    """torch.bmm(weight, x.unsqueeze(-1)).squeeze(-1): [S, I], [S, O, I] -> [S, O]."""
    y = matmul(weight, unsqueeze(x, x.ndim))
    return view(y, *y.shape[:2])


def rows_per_expert(tokens: int, top_k: int, experts: int) -> list[int]:
    """Return how many rows each expert that is hit gets, by the job's assumption.

    uniform: all alike, as far as they divide; collapsed: every token to the same k experts.
    """
    if context.options.routing == "collapsed":
        return [tokens] * top_k
    each, rest = divmod(tokens * top_k, experts)
    return [each + (i < rest) for i in range(experts if each else rest)]


def _is_hit(expert_mask: Tensor) -> Tensor:
    """torch.greater(expert_mask.sum(dim=(-1, -2)), 0)."""
    counts = made("sum", expert_mask.shape[:1], int64)
    with_partial_sums(expert_mask, (1, 2), accumulator=int64.itemsize)
    hit = made("gt", counts.shape, bool_)
    del counts
    return hit


def _inverse(permutation: Tensor) -> Tensor:
    """inv_perm[perm] = torch.arange(S)."""
    inverse = made("empty_like", permutation.shape, int64)
    positions = arange(permutation.shape[0])
    del positions
    return inverse
