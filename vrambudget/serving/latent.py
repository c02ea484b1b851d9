"""Models with multi-head latent attention: DeepSeek V2 and V3 as a server loads them.

    cache      [tokens, kv_lora_rank + rope width], one for all heads, whole on every rank
    q          q_proj [H (nope + rope) / tp, C]; with q_lora_rank q_b_proj [.., q_lora_rank], and
               q_a_proj together with kv_a_proj [q_lora + kv_lora + rope, C], whole on every rank
    kv         kv_b_proj [H (nope + v) / tp, kv_lora], o_proj [C, H v / tp]
    rotary     yarn: a table of the original positions times the factor, float32 for FlashInfer
    experts    from layer `first_k_dense_replace` on, with shared ones beside them

Source: vllm/model_executor/models/deepseek_v2.py, layers/rotary_embedding/
deepseek_scaling_rope.py, v1/kv_cache_interface.py (MLAAttentionSpec). vLLM 0.19.
Not modelled: sparse attention (V3.2), layers of multi-token prediction, quantised weights. Of the
one start that was published (V2 Lite, 29.43 GiB) 0.11 GiB of weights are not explained.
"""

from collections.abc import Iterator

from vrambudget.config.settings import Size
from vrambudget.models.parts.decoder import DecoderConfig

MODEL_TYPES = frozenset({"deepseek_v2", "deepseek_v3"})


class LatentConfig(DecoderConfig):
    """The keys of DeepSeek V2's and V3's configurations that decide what a server holds."""

    q_lora_rank: Size | None = None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    n_routed_experts: Size
    n_shared_experts: Size | None = None
    num_experts_per_tok: Size
    moe_intermediate_size: Size
    first_k_dense_replace: int = 0

    has_experts = True

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        return self.qk_rope_head_dim

    @property
    def latent_width(self) -> int:
        """Elements of a token in each layer's cache."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    @property
    def table_positions(self) -> int:
        """Rows of the rotary table."""
        original = self.rope.get("original_max_position_embeddings")
        factor = self.rope.get("factor")
        if self.rope_type == "yarn" and isinstance(original, int) and factor:
            return int(original * factor)
        return self.max_position_embeddings

    def attention_tensors(self, tp: int, *, rotary: bool) -> Iterator[int]:
        """Yield elements of one layer's, in 16 bit; `rotary`: with the table, which all share."""
        width, heads = self.hidden_size, self.num_attention_heads // tp
        queries = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        if self.q_lora_rank is None:
            yield queries * width
            yield self.latent_width * width
        else:
            yield (self.q_lora_rank + self.latent_width) * width
            yield self.q_lora_rank
            yield queries * self.q_lora_rank
        yield self.kv_lora_rank  # a norm
        yield heads * (self.qk_nope_head_dim + self.v_head_dim) * self.kv_lora_rank
        yield width * heads * self.v_head_dim
        if rotary:
            yield self.table_positions * self.qk_rope_head_dim * 2

    def absorbed(self, tp: int) -> tuple[int, int]:
        """Return elements of kv_b_proj's part for keys and of that for values."""
        rows = self.num_attention_heads // tp * self.kv_lora_rank
        return rows * self.qk_nope_head_dim, rows * self.v_head_dim

    def mlp_tensors(self, tp: int, layer: int) -> Iterator[int]:
        """Yield elements of one layer's MLP: dense, or experts with those that all tokens share."""
        width = self.hidden_size
        if layer < self.first_k_dense_replace:
            yield from _gated(width, self.intermediate_size // tp)
            return
        inner, experts = self.moe_intermediate_size // tp, self.n_routed_experts
        yield experts * width  # the router's
        yield from (experts * size for size in _gated(width, inner))
        if self.n_shared_experts:
            yield from _gated(width, self.n_shared_experts * inner)


def _gated(width: int, inner: int) -> Iterator[int]:
    yield 2 * inner * width
    yield width * inner
