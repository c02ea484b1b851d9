"""What a server is started with, in each engine's own words."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Literal

from vrambudget.config.settings import Field, Settings, Size
from vrambudget.serving.vllm_versions import KNOWN, OLDEST, USUAL, minor_of

Engine = Literal["vllm", "sglang", "llama.cpp"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]

QuantizationMethod = Literal[
    "awq", "awq_marlin", "gptq", "gptq_marlin", "fp8", "compressed-tensors"
]


class ServeOptions(Settings, heading="server"):
    """vLLM's engine arguments, with its defaults."""

    engine: Engine = Field("vllm", description="whose rules are used")
    engine_version: str = Field(USUAL, description="whose rules; llama.cpp: 2026-10 to 2025-05")
    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = Field(
        "auto", description="of the weights; auto: bfloat16, before compute capability 8.0 float16"
    )
    quantization: QuantizationMethod | None = Field(
        None,
        description="of the weights (default: what the configuration's quantization_config says);"
        " fp8 quantises 16-bit weights as they are loaded",
    )
    max_model_len: Size | None = Field(
        None, description="tokens of the longest request (default: the model's own limit)"
    )
    max_num_seqs: Size | None = Field(
        None, description="requests in one step (default: 1024 from 70 GiB on, A100 and others 256)"
    )
    max_num_batched_tokens: Size | None = Field(
        None,
        description="tokens in one step (default: 8192 from 70 GiB on, A100 and others 2048)",
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None,
        description="the part of the GPU that the server may take (default: 0.92, before 0.20 0.9)",
    )
    tensor_parallel_size: Size = Field(1, description="GPUs that share each layer")
    pipeline_parallel_size: Size = Field(1, description="groups of GPUs that share the layers")
    kv_cache_dtype: KvCacheDtype = Field("auto", description="of keys and values")
    block_size: Literal[8, 16, 32, 64, 128] = Field(16, description="tokens of a block")
    enforce_eager: bool = Field(
        default=False, description="neither torch.compile nor CUDA graphs, which take memory on top"
    )
    kv_cache_memory_bytes: Annotated[int, Field(ge=1)] | None = Field(
        None, description="of the cache, whatever --gpu-memory-utilization leaves"
    )
    cpu_offload_gb: Annotated[float, Field(ge=0)] = Field(
        0.0, description="GiB of the layers' weights that stay in main memory, of each GPU"
    )
    language_model_only: bool = Field(
        default=False, description="no tower for pictures, of a model that has one"
    )
    enable_expert_parallel: bool = Field(
        default=False, description="whole experts on each GPU, which is refused: rehearse it"
    )
    data_parallel_size: Size = Field(
        1, description="engines that share requests; more than 1 is refused: rehearse it"
    )
    enable_lora: bool = Field(
        default=False, description="adapters beside the weights, which is refused: rehearse it"
    )
    speculative_config: str | None = Field(
        None, description="a draft of the next tokens, as JSON, which is refused: rehearse it"
    )

    @property
    def minor(self) -> int:
        """The version's minor number: 24 of 0.24."""
        return minor_of(self.engine_version) or OLDEST

    @property
    def utilization(self) -> float:
        """The part of the GPU that the server may take."""
        return self.gpu_memory_utilization or (0.92 if self.minor > OLDEST else 0.9)

    @property
    def itemsize(self) -> int:
        """Bytes of a number, of weights that are not quantised."""
        return 4 if self.dtype in ("float", "float32") else 2

    def problems(self) -> Iterable[str]:
        """Yield what vLLM refuses."""
        if minor_of(self.engine_version) is None:
            yield f"engine_version is {self.engine_version!r}: {KNOWN} have rules"
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            yield f"max_num_batched_tokens is {tokens}, less than max_num_seqs {seqs}"


class SglangOptions(Settings, heading="server, with --engine sglang"):
    """SGLang's server arguments, with its defaults; sizes of ranks have vLLM's names, too."""

    engine: Engine = "sglang"
    dtype: Literal["auto", "bfloat16", "float16"] = Field("auto", description="of the weights")
    quantization: QuantizationMethod | None = Field(
        None, description="of the weights (default: what quantization_config says)"
    )
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="the part of the free memory for weights and the token pool (default: what"
        " chunked prefill and CUDA graphs leave, by SGLang's rule of thumb)",
    )
    context_length: Size | None = Field(
        None, description="tokens of the longest request (default: the model's own limit)"
    )
    chunked_prefill_size: Size | None = Field(
        None, description="tokens of a prefill step (default: 2048 to 16384, by the GPU)"
    )
    cuda_graph_max_bs: Size | None = Field(
        None, description="requests of the largest CUDA graph (default: 8 to 512, by the GPU)"
    )
    max_running_requests: Size | None = Field(
        None, description="requests at once (default: by the pool, 2048 to 4096)"
    )
    max_total_tokens: Size | None = Field(None, description="tokens of the pool, at most")
    page_size: Size = Field(1, description="tokens of a page")
    tensor_parallel_size: Size = Field(1, description="GPUs that share each layer")
    pipeline_parallel_size: Size = Field(1, description="groups of GPUs that share the layers")
    kv_cache_dtype: Literal["auto", "fp8_e4m3", "fp8_e5m2"] = Field(
        "auto", description="of keys and values"
    )
    ep_size: Size = Field(
        1, description="GPUs that share experts, each whole; more than 1 is refused: not modelled"
    )


LlamaCppVersion = Literal["2026-10", "2026-09", "2026-05", "2025-08", "2025-05"]
CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


GUESSED: Mapping[str, int | None] = {"none": 0, "draft-simple": None} | {
    **dict.fromkeys(("ngram-simple", "ngram-map-k", "ngram-map-k4v"), 48),
    "ngram-mod": 64,
    "ngram-cache": 8,
}
"""llama.cpp's ways to guess further tokens that have no cache of their own, and how many."""


class LlamaCppOptions(Settings, heading="server, with --engine llama.cpp"):
    """llama.cpp's arguments, with its defaults, but for layers: all are offloaded."""

    engine: Engine = "llama.cpp"
    engine_version: LlamaCppVersion = Field(
        "2026-10",
        description="whose defaults and rules are used; 2025-08 and 2025-05: before --fit",
    )
    ctx_size: Annotated[int, Field(ge=0)] = Field(
        4096, description="tokens of all slots together; 0: the model's own limit"
    )
    parallel: Size | None = Field(
        None, description="slots: requests at once (default: 4, which share the cache)"
    )
    kv_unified: bool = Field(
        default=False, description="slots share one cache (default without --parallel)"
    )
    batch_size: Size = Field(2048, description="tokens of a logical batch")
    ubatch_size: Size = Field(512, description="tokens of a physical batch")
    n_gpu_layers: Annotated[int, Field(ge=0)] | None = Field(
        None, description="layers on GPUs, the output among them (default: all)"
    )
    split_mode: Literal["none", "layer", "row"] = Field(
        "layer",
        description="none: one GPU (--main-gpu); layer: each GPU has a part of the layers; row:"
        " llama.cpp of 2026 does not load so with CUDA",
    )
    fit: Literal["on", "off"] = Field(
        "off", description="on: leave --fit-target free on each GPU, as llama.cpp's --fit does"
    )
    fit_target: Annotated[int, Field(ge=0)] = Field(1024, description="MiB that --fit leaves free")
    tensor_split: str = Field(
        "", description="parts of the layers on each GPU, as 3,1 (default: by free memory)"
    )
    main_gpu: Annotated[int, Field(ge=0)] = Field(0, description="the GPU of --split-mode none")
    override_tensor: str = Field("", description="where tensors lie: ffn_.*_exps=CPU,output=CPU")
    cpu_moe: bool = Field(default=False, description="all experts stay in main memory")
    n_cpu_moe: Annotated[int, Field(ge=0)] = Field(
        0, description="the experts of so many layers, from the first on, stay in main memory"
    )
    n_cpu_ffn: Annotated[int, Field(ge=0)] = Field(
        0, description="the MLPs, not experts, of so many layers stay in main memory"
    )
    no_kv_offload: bool = Field(default=False, description="the cache stays in main memory")
    cache_type_k: CacheType = Field("f16", description="of keys")
    cache_type_v: CacheType = Field("f16", description="of values; quantised: with flash_attn")
    flash_attn: Literal["auto", "on", "off"] = Field(
        "auto", description="attention without a matrix of scores; auto: on, in 2025 off"
    )
    swa_full: bool = Field(default=False, description="layers with a window keep all tokens")
    no_mmap: bool = Field(
        default=False, description="read the file to memory, instead of mapping it"
    )
    mlock: bool = Field(default=False, description="keep what is mapped in main memory")
    load_mode: Literal["auto", "none", "mmap", "mlock", "mmap+mlock", "dio"] = Field(
        "auto", description="both of these, since September 2026"
    )
    model_draft: str | None = Field(None, description="a draft model: a GGUF file, or name:Q4_K_M")
    spec_type: str = Field(
        "",
        description=f"what guesses further tokens: {', '.join(GUESSED)}"
        " (default: none, with a draft model draft-simple)",
    )
    spec_draft_n_max: Size = Field(3, description="tokens that a draft model guesses at once")
    cache_ram: Annotated[int, Field(ge=-1)] = Field(
        8192, description="MiB that prompts of earlier requests may take of main memory; -1: any"
    )
    lora: str | None = Field(None, description="an adapter's GGUF file")
    mmproj: str | None = Field(
        None, description="a projector's GGUF file; its compute buffer is not included"
    )

    @property
    def is_old(self) -> bool:
        """Whether the rules are those of before --fit."""
        return self.engine_version < "2026"

    @property
    def has_all_logits(self) -> bool:
        """Whether a batch has a row of logits for each token, and masks are float32 at first."""
        return self.engine_version < "2026-09"

    @property
    def outputs(self) -> int:
        """Rows of logits that a batch may have: of each slot one, and of each guessed token."""
        if self.has_all_logits:
            return self.ubatch_size
        kinds = self.spec_type or ("draft-simple" if self.model_draft else "none")
        most = (GUESSED.get(kind) for kind in kinds.split(","))
        guessed = max(self.spec_draft_n_max if n is None else n for n in most)
        return min(self.batch_size, self.slots_and_streams[0] * (1 + guessed))

    @property
    def is_mapped(self) -> bool:
        """Whether what main memory is short of is read from the file."""
        return self.load_mode in {"auto", "mmap"} and not (self.no_mmap or self.mlock)

    @property
    def slots_and_streams(self) -> tuple[int, int]:
        """How many requests run at once, and in how many caches."""
        if self.parallel is None:
            return (1 if self.is_old else 4, 1)
        return self.parallel, 1 if self.kv_unified else self.parallel

    def problems(self) -> Iterable[str]:
        """Yield what llama.cpp refuses, and what is not included."""
        for name in ("model_draft", "lora", "mmproj"):
            if getattr(self, name) is not None and self.is_old:
                yield f"what {name} names is included by the rules of 2026 alone"
        is_off = self.flash_attn == "off"
        is_off |= self.flash_attn == "auto" and self.is_old
        if self.cache_type_v not in {"f32", "f16", "bf16"} and is_off:
            yield f"cache_type_v is {self.cache_type_v!r}, which needs flash_attn"
        if others := {*self.spec_type.split(",")} - {"", *GUESSED}:
            what = "which has no rules: a layer or a head that predicts tokens has its own cache"
            yield f"spec_type is {', '.join(sorted(others))}, {what}"
        if self.load_mode != "auto" and self.has_all_logits:
            yield f"load_mode is --no-mmap or --mlock by the rules of {self.engine_version}"
        if self.split_mode == "row":
            why = "there are no rules for it" if self.is_old else "CUDA does not support it"
            yield f"split_mode is 'row': in llama.cpp of {self.engine_version} {why}; take layer"


LLAMA_CPP_SHORT: Mapping[str, str] = {
    "parallel": "-np",
    "kv_unified": "-kvu",
    "batch_size": "-b",
    "ubatch_size": "-ub",
    "split_mode": "-sm",
    "tensor_split": "-ts",
    "main_gpu": "-mg",
    "override_tensor": "-ot",
    "cpu_moe": "-cmoe",
    "n_cpu_moe": "-ncmoe",
    "n_cpu_ffn": "-ncffn",
    "no_kv_offload": "-nkvo",
    "cache_type_k": "-ctk",
    "cache_type_v": "-ctv",
    "flash_attn": "-fa",
    "fit": "-fit",
    "fit_target": "-fitt",
    "load_mode": "-lm",
    "model_draft": "-md",
    "mmproj": "-mm",
}
"""llama.cpp's short spellings of its options."""

AnyOptions = type[ServeOptions] | type[SglangOptions] | type[LlamaCppOptions]

CACHE_DTYPES = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
"""Of keys and values, in the words of all engines."""

OPTIONS: Mapping[str, AnyOptions] = {
    "vllm": ServeOptions,
    "sglang": SglangOptions,
    "llama.cpp": LlamaCppOptions,
}
"""The options of each engine whose rules are known."""
