"""Multi-head latent attention as a server loads it: DeepSeek V2 and V3.

    cache      [tokens, kv_lora_rank + rope width], one for all heads, whole on every rank
    q          q_proj [H (nope + rope) / tp, C]; with q_lora_rank q_b_proj [.., q_lora_rank], and
               q_a_proj together with kv_a_proj [q_lora + kv_lora + rope, C], whole on every rank
    kv         kv_b_proj [H (nope + v) / tp, kv_lora], o_proj [C, H v / tp]
    rotary     yarn: a table of the original positions times the factor
    experts    from layer `first_k_dense_replace` on, with shared ones beside them
    workspaces vLLM imports each kernel of attention that it may take, to ask it; FlashInfer's and,
               on sm100, CUTLASS's make 128 MiB as they are imported, while the model is built

Source: vllm/model_executor/models/deepseek_v2.py, layers/rotary_embedding/
deepseek_scaling_rope.py, v1/kv_cache_interface.py (MLAAttentionSpec), platforms/cuda.py
(_get_backend_priorities, get_valid_backends), v1/attention/backends/mla/flashinfer_mla.py
(g_fi_workspace), cutlass_mla.py (g_sm100_workspace). vLLM 0.19. Copies of kv_b_proj's halves, which
SGLang makes, are views in vLLM (layers/attention/mla_attention.py, process_weights_after_loading).
Not modelled: sparse attention (V3.2), layers of multi-token prediction, quantised weights.
"""

from collections.abc import Iterator

from vrambudget.config.gpus import Gpu
from vrambudget.models.parts.latent import LatentConfig

_WORKSPACE = 128 * 2**20  # bytes, of one kernel
_DATACENTER_BLACKWELL = 10  # sm100


def workspace_bytes(gpu: Gpu) -> int:
    """Return what kernels of attention allocate as vLLM imports them, whichever it takes then."""
    asks_cutlass = gpu.compute_capability[0] == _DATACENTER_BLACKWELL
    return _WORKSPACE * (2 if asks_cutlass else 1)


def table_positions(config: LatentConfig) -> int:
    """Return the rows of the rotary table."""
    original = config.rope.get("original_max_position_embeddings")
    factor = config.rope.get("factor")
    if config.rope_type == "yarn" and isinstance(original, int) and factor:
        return int(original * factor)
    return config.max_position_embeddings


def attention_tensors(config: LatentConfig, tp: int, *, rotary: int) -> Iterator[int]:
    """Yield elements of one layer's; `rotary`: how often one of the table counts, 0 without it."""
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
        yield table_positions(config) * config.qk_rope_head_dim * rotary


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
