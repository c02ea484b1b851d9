"""Multi-head latent attention as a server loads it: DeepSeek V2 and V3.

    cache      [tokens, kv_lora_rank + rope width], one for all heads, whole on every rank
    q          q_proj [H (nope + rope) / tp, C]; with q_lora_rank q_b_proj [.., q_lora_rank], and
               q_a_proj together with kv_a_proj [q_lora + kv_lora + rope, C], whole on every rank
    kv         kv_b_proj [H (nope + v) / tp, kv_lora], o_proj [C, H v / tp]
    rotary     yarn: a table of the original positions times the factor, float32 for FlashInfer
    experts    from layer `first_k_dense_replace` on, with shared ones beside them

Source: vllm/model_executor/models/deepseek_v2.py, layers/rotary_embedding/
deepseek_scaling_rope.py, v1/kv_cache_interface.py (MLAAttentionSpec). vLLM 0.19.
Not modelled: sparse attention (V3.2), layers of multi-token prediction, quantised weights. Of the
one start of 0.19 that was published (V2 Lite, 29.43 GiB) 107 to 117 MiB of weights are not
explained. A start of 0.5.0 took 29.301 GiB (pull request 4650): what is counted here with a table
in 16 bit. Copies of kv_b_proj's halves, which SGLang makes, would be 108 MiB; the source that was
read keeps views of it (mla_attention.py, process_weights_after_loading), so none are counted.
"""

from collections.abc import Iterator

from vrambudget.models.parts.latent import LatentConfig


def table_positions(config: LatentConfig) -> int:
    """Return the rows of the rotary table."""
    original = config.rope.get("original_max_position_embeddings")
    factor = config.rope.get("factor")
    if config.rope_type == "yarn" and isinstance(original, int) and factor:
        return int(original * factor)
    return config.max_position_embeddings


def attention_tensors(config: LatentConfig, tp: int, *, rotary: bool) -> Iterator[int]:
    """Yield elements of one layer's, in 16 bit; `rotary`: with the table, which all share."""
    width, heads = config.hidden_size, config.num_attention_heads // tp
    queries = heads * config.query_width
    if config.q_lora_rank is None:
        yield queries * width
        yield config.latent_width * width
    else:
        yield (config.q_lora_rank + config.latent_width) * width
        yield config.q_lora_rank
        yield queries * config.q_lora_rank
    yield config.kv_lora_rank  # a norm
    yield heads * (config.qk_nope_head_dim + config.v_head_dim) * config.kv_lora_rank
    yield width * heads * config.v_head_dim
    if rotary:
        yield table_positions(config) * config.qk_rope_head_dim * 2


def absorbed(config: LatentConfig, tp: int) -> tuple[int, int]:
    """Return elements of kv_b_proj's part for keys and of that for values."""
    rows = config.num_attention_heads // tp * config.kv_lora_rank
    return rows * config.qk_nope_head_dim, rows * config.v_head_dim


def mlp_tensors(config: LatentConfig, tp: int, layer: int) -> Iterator[int]:
    """Yield elements of one layer's MLP: dense, or experts with those that all tokens share."""
    width = config.hidden_size
    if layer < config.first_k_dense_replace:
        yield from _gated(width, config.intermediate_size // tp)
        return
    inner, experts = config.moe_intermediate_size // tp, config.n_routed_experts
    yield experts * width  # the router's
    yield from (experts * size for size in _gated(width, inner))
    yield from _gated(width, config.n_shared_experts * inner)


def _gated(width: int, inner: int) -> Iterator[int]:
    yield 2 * inner * width
    yield width * inner
