"""DeBERTa's attention: scores of contents, plus those of contents with relative positions.

    query, key, value    [B * H, T, D], one batch of heads
    positions            a table [2 S, C] of S distances on each side, projected as queries and keys
                         in every layer and repeated for every row: [B * H, 2 S, D]
    scores               [B * H, T, T], to which content-to-position (c2p) and position-to-content
                         (p2c) scores are added once gathered from [B * H, T, 2 S]

There is one way to attend, by single operations.

Source: models/deberta_v2/modeling_deberta_v2.py (DisentangledSelfAttention) of transformers 5.17.
"""

from typing import TYPE_CHECKING

from vrambudget.dtypes import bool_, int64
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.layers import Dropout, Linear
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import add, add_scalar, mul_scalar
from vrambudget.ops.fill import add_, masked_fill
from vrambudget.ops.indexing import gather
from vrambudget.ops.linear import bmm
from vrambudget.ops.scripted import log_buckets
from vrambudget.ops.shape import (
    contiguous,
    expand,
    permute,
    transpose,
    unsqueeze,
    view,
)
from vrambudget.ops.softmax import softmax
from vrambudget.ops.stacking import repeat_first

if TYPE_CHECKING:
    from vrambudget.models.families.deberta_v2 import DebertaV2Config


def relative_positions(length: int, *, has_buckets: bool) -> Tensor:
    """build_relative_position: which row of the table each pair of tokens reads, [1, T, T]."""
    shape = (length, length)
    q_ids, k_ids = arange(length), arange(length)
    distances = made("sub", shape, int64)
    if has_buckets:
        distances = log_buckets(distances)
        distances = made("to_dtype", shape, int64)
    del q_ids, k_ids  # held until here
    return unsqueeze(distances, 0)


class DisentangledSelfAttention(Module):
    """DisentangledSelfAttention."""

    def __init__(self, config: "DebertaV2Config") -> None:
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.ways = config.position_ways if config.relative_attention else frozenset()
        self.is_relative = config.relative_attention
        self.query_proj = Linear(width, width)
        self.key_proj = Linear(width, width)
        self.value_proj = Linear(width, width)
        self.shares_keys = config.share_att_key
        self.pos_dropout = Dropout(config.hidden_dropout_prob)
        if self.is_relative and not self.shares_keys:
            self.pos_key_proj = Linear(width, width) if "c2p" in self.ways else None
            self.pos_query_proj = Linear(width, width) if "p2c" in self.ways else None
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor,
        relative_pos: Tensor | None,
        rel_embeddings: Tensor | None,
    ) -> Tensor:
        """[B, T, C] and a mask [B, 1, T, T] -> [B, T, C]."""
        query = self._for_scores(self.query_proj(hidden_states))
        key = self._for_scores(self.key_proj(hidden_states))
        value = self._for_scores(self.value_proj(hidden_states))
        scores = bmm(query, mul_scalar(transpose(key, 1, 2)))
        rel_att = None
        if rel_embeddings is not None and relative_pos is not None:
            rel_embeddings = self.pos_dropout(rel_embeddings)
            rel_att = self._bias(query, key, relative_pos, rel_embeddings)
        if rel_att is not None:
            scores = add(scores, rel_att)
        scores = view(scores, -1, self.heads, *scores.shape[1:])
        mask = made("to_dtype", mask.shape, bool_)
        scores = masked_fill(scores, made("bitwise_not", mask.shape, bool_))
        probs = softmax(scores)
        probs = self.dropout(probs)
        context = bmm(view(probs, -1, *probs.shape[2:]), value)
        context = view(context, -1, self.heads, *context.shape[1:])
        context = contiguous(permute(context, 0, 2, 1, 3))
        del rel_att, scores, mask, key  # held until here
        return view(context, *context.shape[:2], -1)

    def _for_scores(self, x: Tensor) -> Tensor:
        """transpose_for_scores: [B, T, C] -> [B * H, T, D]."""
        B, T, C = x.shape
        x = view(x, B, T, self.heads, -1)
        return view(contiguous(permute(x, 0, 2, 1, 3)), -1, T, C // self.heads)

    def _bias(
        self, query: Tensor, key: Tensor, relative_pos: Tensor, rel_embeddings: Tensor
    ) -> Tensor | None:
        """disentangled_attention_bias: [B * H, T, T]."""
        relative_pos = unsqueeze(relative_pos, 1)
        rel_embeddings = unsqueeze(rel_embeddings, 0)
        pos_key, pos_query = self._positions(rel_embeddings, query.shape[0] // self.heads)
        score = None
        if pos_key is not None:
            c2p_att = bmm(query, transpose(pos_key, 1, 2))
            c2p_pos = _clamped(relative_pos)
            c2p_att = gather(c2p_att, _of_every_head(c2p_pos, query))
            score = add_scalar(mul_scalar(c2p_att))
        if pos_query is not None:
            p2c_pos = _clamped(relative_pos, negated=True)
            p2c_att = bmm(key, transpose(pos_query, 1, 2))
            p2c_att = transpose(gather(p2c_att, _of_every_head(p2c_pos, key)), 1, 2)
            scaled = mul_scalar(p2c_att)
            score = add_scalar(scaled) if score is None else add_(score, scaled)
        return score

    def _positions(self, rel_embeddings: Tensor, batch: int) -> tuple[Tensor | None, Tensor | None]:
        """Return the table as keys and as queries of every row [B * H, 2 S, D]."""
        if self.shares_keys:
            query = repeat_first(self._for_scores(self.query_proj(rel_embeddings)), batch)
            key = repeat_first(self._for_scores(self.key_proj(rel_embeddings)), batch)
            return (key if "c2p" in self.ways else None), (query if "p2c" in self.ways else None)
        keys: Tensor | None = None
        queries: Tensor | None = None
        if self.pos_key_proj is not None:
            keys = repeat_first(self._for_scores(self.pos_key_proj(rel_embeddings)), batch)
        if self.pos_query_proj is not None:
            queries = repeat_first(self._for_scores(self.pos_query_proj(rel_embeddings)), batch)
        return keys, queries


def _clamped(relative_pos: Tensor, *, negated: bool = False) -> Tensor:
    """torch.clamp(relative_pos + span, 0, 2 * span - 1): [1, 1, T, T]."""
    source = made("neg", relative_pos.shape, int64) if negated else relative_pos
    shifted = made("add", source.shape, int64)
    del source
    clamped = made("clamp", shifted.shape, int64)
    del shifted
    return clamped


def _of_every_head(positions: Tensor, heads: Tensor) -> Tensor:
    """[1, 1, T, T] -> [B * H, T, T], without a copy."""
    T = positions.shape[-1]
    return expand(positions.viewed((1, T, T), None), heads.shape[0], T, T)
