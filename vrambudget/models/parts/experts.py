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

Not modelled: other implementations (deepgemm, sonicmoe); gradients of
batched_mm.
"""

from typing import ClassVar

from vrambudget.dtypes import bool_, int32, int64
from vrambudget.engine.autocast import to
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.parametrised import Parametrised
from vrambudget.ops.clamp import clamp_to_numbers
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import ACTIVATIONS, add, add_scalar, mul, mul_scalar, sigmoid
from vrambudget.ops.fill import add_, masked_fill, masked_fill_
from vrambudget.ops.grouped import grouped_linear
from vrambudget.ops.indexing import index_add_, index_pairs, index_rows
from vrambudget.ops.linear import linear, matmul
from vrambudget.ops.ordering import count_each, running_sum, sort
from vrambudget.ops.reduce import sum_dim, with_partial_sums
from vrambudget.ops.selection import nonzero
from vrambudget.ops.shape import permute, reshape, select, slice_step, split, unsqueeze, view

Chosen = tuple[Tensor, Tensor, Tensor]
"""All weights [N, k], and of one expert's rows [n]: their tokens, and which of a token's k."""


class Experts(Parametrised):
    """MixtralExperts and its namesakes: gate and up projections are one tensor."""

    is_transposed: ClassVar[bool] = False  # [E, I, O] in place of [E, O, I]
    has_bias: ClassVar[bool] = False

    gate_up_proj: Parameter  # a program's, as all weights

    def __init__(self, hidden_act: str) -> None:
        super().__init__()
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
        weight, bias = self.value("gate_up_proj"), self.bias("gate_up_proj", expert_ids_g)
        selected_hidden_states_g = masked_fill_(selected_hidden_states_g, sentinel_mask)
        proj_out = self._grouped_linear(selected_hidden_states_g, weight, bias, offsets)
        proj_out = masked_fill(proj_out, sentinel_mask)
        proj_out = self.apply_gate(proj_out)
        weight, bias = self.value("down_proj"), self.bias("down_proj", expert_ids_g)
        proj_out = self._grouped_linear(proj_out, weight, bias, offsets)
        proj_out = masked_fill(proj_out, sentinel_mask)
        weighted_out = mul(proj_out, unsqueeze(sample_weights_g, 1))
        inv_perm = _inverse(perm)
        weighted_out = index_rows(weighted_out, inv_perm)
        final_hidden_states = sum_dim(view(weighted_out, tokens, top_k, -1), 1)
        del bias  # held until here
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
        weight = index_rows(self.value("gate_up_proj"), expert_ids)
        bias = self.bias("gate_up_proj", expert_ids)
        proj_out = self._batched_linear(selected_hidden_states, weight, bias)
        proj_out = self.apply_gate(proj_out)
        weight = index_rows(self.value("down_proj"), expert_ids)
        bias = self.bias("down_proj", expert_ids)
        proj_out = self._batched_linear(proj_out, weight, bias)
        weighted_out = mul(proj_out, unsqueeze(sample_weights, 1))
        final_hidden_states = sum_dim(view(weighted_out, tokens, top_k, -1), 1)
        result = to(final_hidden_states, hidden_states.dtype)
        del selected_hidden_states, weight, bias, expert_ids  # held until here
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
        frame: dict[str, Tensor] = {}
        for count in counts:
            made("eq", (), bool_)  # expert_idx == num_experts, read back
            top_k_pos, token_idx = nonzero(select(expert_mask, 0), count)
            current_state = index_rows(hidden_states, token_idx)
            weighted = self.one_expert(frame, current_state, (top_k_weights, token_idx, top_k_pos))
            final_hidden_states = index_add_(
                final_hidden_states, token_idx, to(weighted, final_hidden_states.dtype)
            )
            del weighted
        del expert_hit
        return final_hidden_states

    def one_expert(self, frame: dict[str, Tensor], current_state: Tensor, chosen: Chosen) -> Tensor:
        """Return one expert's rows [n, C], weighed; `frame`: the loop's variables."""
        gate_up = linear(current_state, select(self.value("gate_up_proj"), 0))
        frame["gate"], frame["up"] = split(gate_up, gate_up.shape[-1] // 2, -1)
        del gate_up
        frame["states"] = mul(self.act_fn(frame["gate"]), frame["up"])
        frame["states"] = linear(frame["states"], select(self.value("down_proj"), 0))
        frame["states"] = mul(frame["states"], weights_of(*chosen))
        return frame["states"]

    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        """[S, 2 I] -> [S, I]."""
        gate, up = split(gate_up_out, gate_up_out.shape[-1] // 2, -1)
        return mul(self.act_fn(gate), up)

    def bias(self, name: str, expert_ids: Tensor) -> Tensor | None:
        """Return the bias of each row's expert [S, O], if they have any."""
        if not self.has_bias:
            return None
        return index_rows(self.value(f"{name}_bias"), expert_ids)

    def _grouped_linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, offsets: Tensor
    ) -> Tensor:
        out = grouped_linear(x, weight, offsets, is_transposed=self.is_transposed)
        return out if bias is None else add_(out, bias)

    def _batched_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """[S, I], [S, O, I] -> [S, O]; a transposed weight is [S, I, O]."""
        if self.is_transposed:
            y = matmul(unsqueeze(x, 1), weight)
        else:
            y = matmul(weight, unsqueeze(x, x.ndim))
        y = view(y, y.shape[0], -1)
        return y if bias is None else add_(y, bias)


class GptOssExperts(Experts):
    """GptOssExperts: weights [E, C, 2 I] and [E, I, C], with biases; gate and up lie in pairs."""

    is_transposed = True
    has_bias = True

    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        """[S, 2 I] -> [S, I]."""
        gate, up = slice_step(gate_up_out, 2), slice_step(gate_up_out, 2)
        gate = clamp_to_numbers(gate, both=False)
        up = clamp_to_numbers(up, both=True)
        glu = mul(gate, sigmoid(mul_scalar(gate)))
        return mul(add_scalar(up), glu)

    def one_expert(self, frame: dict[str, Tensor], current_state: Tensor, chosen: Chosen) -> Tensor:
        """Return one expert's rows [n, C], weighed; `frame`: the loop's variables."""
        frame["gate_up"] = self._projected(current_state, "gate_up_proj")
        frame["gated_output"] = self.apply_gate(frame["gate_up"])
        frame["out"] = self._projected(frame["gated_output"], "down_proj")
        frame["weighted_output"] = mul(frame["out"], weights_of(*chosen))
        return frame["weighted_output"]

    def _projected(self, x: Tensor, name: str) -> Tensor:
        """X @ weight[expert] + bias[expert]."""
        weight = select(self.value(name), 0)
        return add(matmul(x, weight), select(self.value(f"{name}_bias"), 0))


def weights_of(top_k_weights: Tensor, token_idx: Tensor, top_k_pos: Tensor) -> Tensor:
    """top_k_weights[token_idx, top_k_pos, None]: [N, k], [n], [n] -> [n, 1]."""
    return index_pairs(unsqueeze(top_k_weights, 2), token_idx, top_k_pos)


def rows_per_expert(tokens: int, top_k: int, experts: int) -> list[int]:
    """Return how many rows each expert that is hit gets, by the job's assumption.

    uniform: all identical, as far as they divide; collapsed: every token to the same k experts.
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
