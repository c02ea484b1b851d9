"""Generation: the prompt, the answer, the cache of keys and values, and how tokens are chosen."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Settings, Size
from vrambudget.declared import Before

CacheKind = Literal["dynamic", "static", "offloaded", "quantized", "none"]
CacheBits = Literal[2, 4]
Padding = Literal["none", "left"]
Pool = Literal["none", "mean", "cls", "last"]

USUAL_PROMPT = 1024
INFERENCE = ("generate", "forward")
"""Modes without a loss: the model's weights are in the precision that it computes in."""


def modelled_backend(value: Any) -> Any:
    """Return a quantised cache's backend. Raises ValueError for HQQ, which is refused by name."""
    if value == "hqq":
        raise ValueError(
            "a cache quantised by HQQ is not modelled, for its solver stops by values; quanto,"
            " transformers' default, is, and `vrambudget rehearse --gpu GPU -- python generate.py`"
            " runs the script as it is"
        )
    return value


class Generation(Settings, heading="generation"):
    """What `--mode generate` does, with the defaults of transformers' `generate`."""

    prompt: Size | None = Field(
        None,
        description="tokens of each prompt for --mode generate (default: 1024, or what the model"
        " has positions for besides the new tokens)",
    )
    new: Annotated[Size, Field(le=2**20)] = Field(
        128, description="tokens to generate: max_new_tokens"
    )
    cache: CacheKind = Field(
        "dynamic", description="cache_implementation of keys and values; none: use_cache=False"
    )
    cache_bits: CacheBits = Field(
        4, description="of a quantised cache: nbits of its cache_config, with quanto as its backend"
    )
    cache_backend: Annotated[Literal["quanto"], Before(modelled_backend)] = Field(
        "quanto", description="of a quantised cache: backend of its cache_config"
    )
    sample: bool = Field(default=False, description="sample tokens: do_sample=True")
    temperature: Annotated[float, Field(gt=0)] = Field(
        1.0, description="divides the logits before tokens are sampled"
    )
    top_k: Annotated[int, Field(ge=0)] = Field(
        50, description="sample from so many of the most probable tokens; 0: from all"
    )
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="sample from the most probable tokens that together reach this probability"
    )
    num_beams: Size = Field(1, description="beams of each prompt: num_beams")
    num_return: Size = Field(1, description="answers to each prompt: num_return_sequences")
    padding: Padding = Field(
        "none", description="left: prompts of different lengths, filled up with padding"
    )
    prefill_chunk: Size | None = Field(
        None, description="tokens of the prompt for each forward pass: prefill_chunk_size"
    )
    return_scores: bool = Field(
        default=False, description="keep the scores of each new token: output_scores=True"
    )
    return_logits: bool = Field(
        default=False, description="keep the logits of each new token: output_logits=True"
    )
    calls: Size = Field(1, description="calls of generate, one after the other")

    logits_to_keep: Annotated[int, Field(ge=0)] = Field(
        0, description="logits of so many last tokens with --mode forward; 0: of all"
    )
    with_grad: bool = Field(
        default=False, description="--mode forward without torch.no_grad(): the graph is kept"
    )
    pool: Pool = Field(
        "none", description="embeddings made of hidden states, with --mode forward --task embed"
    )

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Load 16-bit weights where nothing is trained and no precision is named.

        A forward pass keeps keys and values, as transformers' configurations say.
        """
        values = super().completed(values)
        if values.get("mode") in INFERENCE:
            cached = {"use_cache": True} if values["mode"] == "forward" else {}
            return {"precision": "bf16", **cached, **values}
        return values

    def problems(self) -> Iterable[str]:
        """Yield what `generate` refuses."""
        if self.num_return > self.num_beams and (self.num_beams > 1 or not self.sample):
            yield (
                f"num_return is {self.num_return}; without sample, or with beams, there are as many"
                f" answers as beams, {self.num_beams}: generate refuses more"
            )
        if self.num_beams > 1 and self.calls > 1:
            yield "calls with num_beams is not modelled: how long the best answers are decides"
        if self.calls > 1 and (self.return_scores or self.return_logits):
            yield "calls with return_scores or return_logits is not modelled"
        if self.num_beams > 1 and self.cache == "quantized":
            yield "num_beams with a quantised cache: transformers reorders its newest tokens alone"
        if self.prefill_chunk is not None and self.cache == "none":
            yield "prefill_chunk needs a cache, and cache is 'none'"
        if self.prefill_chunk is not None and self.cache == "static":
            yield "prefill_chunk with a static cache is not modelled: the passes are compiled"
