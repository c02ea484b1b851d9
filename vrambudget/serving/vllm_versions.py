"""How vLLM's account of a GPU changed, 0.19 to 0.33: what comes out of its cache, by version.

    0.20   takes 0.92 of the GPU by default (0.9 before), and what it expects of CUDA graphs out of
           the cache; prints as tokens what requests of the greatest length hold together
    0.21   loads weights with max_split_size_mb:20: a tensor of 20 MiB has its segment alone
    0.22   some models run in a second model runner, from 0.29 on all
    0.26   keeps blocks of a window for the tokens of two steps, which run at once
    0.27   reads from the driver all that was taken: the second sampler's counts of tokens as well
    0.28   the second sampler is profiled without a float32 copy of the logits
    0.29   the second runner's graphs come out of the cache, too
    0.33   makes cuBLAS's handle before it counts; the second sampler is profiled with all it has

Source, of each version: vllm/config/cache.py (gpu_memory_utilization), envs.py
(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS), config/vllm.py (use_v2_model_runner),
v1/worker/gpu_worker.py (init_device, load_model, determine_available_memory), utils/mem_utils.py
(memory_profiling), v1/core/kv_cache_utils.py (get_kv_cache_capacity), v1/worker/gpu/model_runner.py
(_dummy_sampler_run, profile_cudagraph_memory), gpu/sample/sampler.py, gpu/sample/penalties.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

OLDEST, NEWEST = 19, 33
KNOWN = f"0.{OLDEST} to 0.{NEWEST}"
USUAL = "0.33"  # where none is asked for
ALONE_IN_SEGMENTS = 21
MULTI_STEP = 26
_LISTED: Final[Mapping[str, int]] = {  # model types, and since when the second runner has them
    "qwen3": 22,
    "llama": 23,
    "mistral": 23,
    "deepseek_v2": 24,
    "qwen2_moe": 24,
}
_BY_TRANSFORMERS = frozenset(
    (  # noqa: SIM905 - one line each would be a page
        "arcee dots1 flex_olmo glm hunyuan_v1_dense hunyuan_v1_moe olmo olmo2 olmo3 phi seed_oss"
        " smollm3 starcoder2"
    ).split()
)  # in 0.33; smollm3 in every version
_QUANTISED, _DENSE, _ALL = 24, 25, 29  # since when it has those


def minor_of(version: str) -> int | None:
    """Return 24 of "0.24", "v0.24.0" and "vllm 0.24"; None without rules of that version."""
    major, _, rest = version.removeprefix("vllm ").removeprefix("v").partition(".")
    minor = rest.partition(".")[0]
    is_known = major == "0" and minor.isdecimal() and OLDEST <= int(minor) <= NEWEST
    return int(minor) if is_known else None


def tables_bytes(rows: int, width: int, step: int, itemsize: int) -> int:
    """Return what the compiler holds at a first start: arguments of the kernel of the embedding.

    Inductor times it on tables of its own, [V / tp, C] and [N, C] twice. Compiled code is kept.
    vllm/config/compilation.py asks for benchmark_combo_kernel, torch/_inductor/codegen/
    triton_combo_kernel.py makes it (codegen_kernel_benchmark).
    """
    return (rows + 2 * step) * width * itemsize


@dataclass(frozen=True, slots=True)
class VllmRules:
    """What a version does with one model."""

    minor: int
    model_type: str
    is_dense: bool
    is_quantised: bool

    @property
    def is_second(self) -> bool:
        """Whether it runs in the second model runner."""
        if self.minor >= _ALL or (self.minor >= _DENSE and self.is_dense):
            return True
        first = _LISTED.get(self.model_type, _ALL)
        return self.minor >= (max(first, _QUANTISED) if self.is_quantised else first)

    @property
    def has_rotary_tables(self) -> bool:
        """Whether the model is vLLM's own, which has tables on the GPU; transformers' has none.

        model_executor/models/registry.py (_TRANSFORMERS_SUPPORTED_MODELS).
        """
        is_late = self.minor >= NEWEST or self.model_type == "smollm3"
        return not (is_late and self.model_type in _BY_TRANSFORMERS)

    @property
    def takes_graphs(self) -> bool:
        """Whether what CUDA graphs are expected to take comes out of the cache."""
        return self.minor >= (29 if self.is_second else 20)

    @property
    def copies(self) -> int:
        """Logits in float32 as the sampler is profiled: themselves, two of softmax and draws."""
        if not self.is_second or self.minor >= 33:  # noqa: PLR2004
            return 3
        return 0 if self.minor >= 28 else 1  # noqa: PLR2004

    def token_counts_bytes(self, seqs: int, vocabulary: int) -> int:
        """Return what comes out of the cache for counts of each request's tokens.

        of answers [S, V] in int32, of prompts [S, V / 32] a bit each
        """
        has_counts = self.is_second and self.minor >= 27  # noqa: PLR2004
        return 4 * seqs * (vocabulary + -(-vocabulary // 32)) * has_counts

    def outside(self, size: int, kernels: int) -> int:
        """Return what of memory outside PyTorch is counted: without kernels that were there."""
        return max(0, size - kernels) if self.minor >= 33 else size  # noqa: PLR2004
