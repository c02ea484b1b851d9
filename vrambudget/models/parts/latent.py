"""Multi-head latent attention: DeepSeek V2, V3 and their kin (Kimi K2, Moonlight).

    latent     kv_a_proj_with_mqa [R + Dr, C]: what all heads' keys and values come from, and the
               one part of the keys that carries positions. Both are what a cache keeps
    keys       [B, H, T, Dn + Dr]: Dn from the latent by kv_b_proj, Dr the same for all heads
    values     [B, H, T, Dv], from the latent

Source: DeepseekV3Attention and its copy in deepseek_v2, transformers 5.17; layers are recorded.
Not modelled: layers of multi-token prediction, which `generate` alone would build; weights in
float8 (`quantization_config`): transformers dequantises them where it has no kernels for them.
"""

from collections.abc import Iterator, Mapping

from vrambudget.config.settings import Size
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.moe import MoeConfig

_SUMS = {
    "qk_head_dim": ("qk_nope_head_dim", "qk_rope_head_dim"),
    "latent_width": ("kv_lora_rank", "qk_rope_head_dim"),
    "expanded_width": ("qk_nope_head_dim", "v_head_dim"),
}
WIDTHS = tuple(_SUMS)
"""What projections make: of a head's queries, of a token's latent, of a head's keys and values."""


def widths_of(keys: Mapping[str, int]) -> dict[str, int]:
    """Return the widths that are sums of keys."""
    return {name: keys[a] + keys[b] for name, (a, b) in _SUMS.items()}


def cached(cache: Cache | None, layer: int, tokens: int) -> int:
    """Return for how many tokens a layer's cache returns latents, once it has these."""
    return tokens if cache is None else cache.layers[layer].mask_sizes(tokens)[0]


class LatentConfig(MoeConfig):
    """What latent attention's keys decide, and what they may be."""

    q_lora_rank: Size | None
    kv_lora_rank: Size
    qk_nope_head_dim: Size
    qk_rope_head_dim: Size
    v_head_dim: Size
    n_group: Size | None
    topk_group: Size | None

    heads_have_widths = True

    @property
    def compresses_queries(self) -> bool:
        """Whether queries come from a latent of their own."""
        return self.q_lora_rank is not None

    @property
    def query_width(self) -> int:
        """Elements of a head of queries and keys."""
        return widths_of(vars(self))["qk_head_dim"]

    @property
    def latent_width(self) -> int:
        """Elements of a token in each layer's cache."""
        return widths_of(vars(self))["latent_width"]

    @property
    def head_width(self) -> int:
        """Elements of a head's one part that carries positions."""
        return self.qk_rope_head_dim

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.kv_heads != self.num_attention_heads:
            yield (
                f"num_key_value_heads is {self.kv_heads}; latent attention has as many as"
                f" num_attention_heads = {self.num_attention_heads}"
            )
        if getattr(self, "topk_method", "") == "greedy":
            return
        if self.n_group is None or self.topk_group is None:
            yield "topk_method is group_limited_greedy, which needs n_group and topk_group"
        elif self.experts % self.n_group:
            yield f"n_group is {self.n_group}, which does not divide {self.experts} experts"
        elif self.topk_group > self.n_group:
            yield f"topk_group is {self.topk_group}, but there are {self.n_group} groups"
