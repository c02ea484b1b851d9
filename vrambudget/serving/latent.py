"""Multi-head latent attention as a server loads it: DeepSeek V2 and V3.

    cache      [tokens, kv_lora_rank + rope width], one for all heads, whole on every rank
    kv_b       of fp8 weights a copy in 16 bit, for products of its halves
    workspaces vLLM imports each kernel of attention that it may take, to ask it; FlashInfer's and,
               on sm100, CUTLASS's make 128 MiB as they are imported, while the model is built

Source: vllm/v1/kv_cache_interface.py (MLAAttentionSpec), platforms/cuda.py
(_get_backend_priorities, get_valid_backends), v1/attention/backends/mla/flashinfer_mla.py
(g_fi_workspace), cutlass_mla.py (g_sm100_workspace). vLLM 0.19. kv_b_proj's halves are views of it
(layers/attention/mla_attention.py, process_weights_after_loading).
Not modelled: sparse attention (V3.2), layers of multi-token prediction, quantised weights.
"""

from vrambudget.config.gpus import Gpu
from vrambudget.models.parts.latent import LatentConfig

_WORKSPACE = 128 * 2**20  # bytes, of one kernel
_DATACENTER_BLACKWELL = 10  # sm100


def workspace_bytes(gpu: Gpu, minor: int) -> int:
    """Return what kernels of attention allocate as vLLM imports them, whichever it takes then.

    FlashInfer's makes it as it is first used, and not as it is imported, from 0.25 on.
    """
    asks_cutlass = gpu.compute_capability[0] == _DATACENTER_BLACKWELL
    return _WORKSPACE * (asks_cutlass + (minor < 25))  # noqa: PLR2004


def prefill_context(longest: int, seqs: int, block: int) -> int:
    """Return the tokens whose keys and values a prefill in pieces makes anew at once.

    Eight requests of the greatest length, at most 64k (determine_chunked_prefill_workspace_size).
    """
    return max(min(max(8 * longest, 4 * seqs * block), 65_536), seqs * block)


def attention_elements(config: LatentConfig, step: int, context: int, tp: int) -> int:
    """Return what the profiled step's attention holds beside the hidden states.

    keys and values of the context [context, H, nope + v], queries, what comes out, latents
    """
    heads = config.num_attention_heads // tp
    anew = context * heads * (config.qk_nope_head_dim + config.v_head_dim)
    latents = (config.q_lora_rank or 0) + config.latent_width
    return anew + step * (heads * (config.query_width + config.v_head_dim) + latents)
