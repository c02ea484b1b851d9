"""What a server is started with, in vLLM's own words."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from vrambudget.config.settings import Settings, Size

Engine = Literal["vllm"]
KvCacheDtype = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]


class ServeOptions(Settings, title="server"):
    """vLLM's engine arguments, with its defaults."""

    engine: Engine = Field("vllm", description="whose rules are followed: vLLM 0.19")
    dtype: Literal["auto", "bfloat16", "float16"] = Field(
        "auto", description="of the weights; auto: bfloat16, before compute capability 8.0 float16"
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
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        0.9, description="the part of the card that the server may take"
    )
    tensor_parallel_size: Size = Field(1, description="cards that share each layer")
    pipeline_parallel_size: Size = Field(1, description="groups of cards that share the layers")
    kv_cache_dtype: KvCacheDtype = Field("auto", description="of keys and values")
    block_size: Literal[8, 16, 32, 64, 128] = Field(16, description="tokens of a block")

    def problems(self) -> Iterable[str]:
        """Yield what vLLM refuses."""
        tokens, seqs = self.max_num_batched_tokens, self.max_num_seqs
        if tokens is not None and seqs is not None and tokens < seqs:
            yield f"max_num_batched_tokens is {tokens}, less than max_num_seqs {seqs}"
