"""The step that vLLM profiles before it makes a cache: its MLP, and the warm-up of the sampler.

Source: vllm/v1/worker/gpu_model_runner.py (profile_run, _dummy_sampler_run),
v1/sample/ops/topk_topp_sampler.py, model_executor/layers/fused_moe/fused_moe.py
(TritonExperts.workspace_shapes). vLLM 0.19 to 0.33, which differ as `serving.vllm_versions` says.
"""

from vrambudget.config.gpus import Gpu
from vrambudget.models.families.gemma3_images import Gemma3Config
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.ops.workspaces import MIB
from vrambudget.serving.blocks import has_prefill_kernel
from vrambudget.serving.latent import attention_elements
from vrambudget.serving.linear import ServedLinear
from vrambudget.serving.mxfp4 import Mxfp4
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.parameters import layer_tensors
from vrambudget.serving.quantised import PackedWeights, Quantisation
from vrambudget.serving.vllm_versions import VllmRules

_HOPPER_WORKSPACE, _WORKSPACE = 32 * MIB, 8 * MIB + 128 * 1024
_BENCHMARK = 256 * MIB
_PICTURE_TOKENS = 256  # of Gemma 3 (mm_tokens_per_image)


def activations_bytes(
    config: DecoderConfig,
    gpu: Gpu,
    options: ServeOptions,
    sizes: tuple[int, int, int],
    *,
    sampling: VllmRules | None,
    quantised: Quantisation | None,
) -> int:
    """Return the peak of profile_run beyond the weights: the MLP's, or the sampler's after it.

    hidden states and residual [N, C]; gate and up [N, 2 I], their product [N, I]
    AWQ's own kernel: the largest weights of a layer in 16 bit, while it multiplies
    experts: two workspaces [N, k, max(I, C)] and [N, k, max(2 I, C)], which stay
    latent attention: keys and values of `context` tokens, as a prefill in pieces makes them anew
    logits [S, V] and their float32 copies; the first runner has random hidden states for them, and
    a buffer of its kernel for top-k and top-p. `sampling`: None on ranks that do not
    cuBLAS's workspace: from the first product on, which of quantised layers is the head's
    """
    step, seqs, context = sizes
    itemsize, tp = options.itemsize, options.tensor_parallel_size
    width, vocabulary = config.hidden_size, config.vocab_size
    inner = getattr(config, "moe_intermediate_size", config.intermediate_size) // tp
    hidden = step * width * itemsize
    workspace = _HOPPER_WORKSPACE if gpu.compute_capability == (9, 0) else _WORKSPACE
    mlp = 2 * hidden + 3 * step * inner * itemsize
    if isinstance(quantised, PackedWeights) and not quantised.repacked:
        linears = [t.elements for t in layer_tensors(config, 0, tp) if isinstance(t, ServedLinear)]
        mlp += max(linears) * itemsize
    if isinstance(config, MoeConfig | LatentConfig):
        columns = max(inner, width) + max(2 * inner, width)
        if isinstance(quantised, Mxfp4):
            columns = quantised.workspace_columns(inner, width, gpu)
        workspace += step * config.num_experts_per_tok * columns * itemsize
        mlp = 3 * hidden
    if isinstance(config, LatentConfig):
        mlp = max(mlp, 2 * hidden + attention_elements(config, step, context, tp) * itemsize)
    if quantised is None or isinstance(config, LatentConfig):
        mlp += workspace
    if "linear_attention" in config.layer_kinds and not has_prefill_kernel(gpu):
        mlp = max(mlp, 2 * hidden + workspace + _timed_bytes(config, step, tp, itemsize))
    pictures = _pictures(config, step, itemsize)
    if sampling is None:
        return pictures + mlp
    rows = (2 - sampling.is_second) * seqs * width * itemsize
    sampler = (itemsize + sampling.copies * 4) * seqs * vocabulary
    sampler += gpu.multiprocessors * vocabulary * 4 * (not sampling.is_second)
    return pictures + max(mlp, hidden + rows + sampler + workspace)


def _timed_bytes(config: DecoderConfig, step: int, tp: int, itemsize: int) -> int:
    """Return what a recurrent layer holds while Triton times its prefill's kernel.

    what is projected of the hidden states, and the output [N, H D]; Triton's own buffer, which is
    cleared between two runs (triton/backends/nvidia/driver.py: get_empty_cache_for_benchmark)
    """
    tensors = layer_tensors(config, config.layer_kinds.index("linear_attention"), tp)
    layers = [t for t in tensors if isinstance(t, ServedLinear) and ".linear_attn." in t.name]
    made = sum(t.inputs if t.name.endswith("out_proj") else t.width for t in layers)
    return step * made * itemsize + _BENCHMARK


def _pictures(config: DecoderConfig, step: int, itemsize: int) -> int:
    """Return what stays of the vision tower's profile: pixels, and embeddings of the step's tokens.

    As many pictures as make a step's tokens [n, 3, S, S], and what they become [n tokens, C].
    """
    if not isinstance(config, Gemma3Config):
        return 0
    pictures = max(1, step // _PICTURE_TOKENS)
    pixels: int = 3 * config.vision_config.image_size**2
    embedded: int = _PICTURE_TOKENS * config.hidden_size
    return pictures * (pixels + embedded) * itemsize
