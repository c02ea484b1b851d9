"""The keys of a recorded decoder's configuration: their types, and who says which layers slide."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from vrambudget.config.settings import Field, Probability, Size
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.models.parts.latent import LatentConfig
from vrambudget.models.parts.moe import MoeConfig
from vrambudget.models.parts.windows import (
    AllSlideIfAsked,
    EverySecondSlides,
    LaterLayersSlide,
    MostLayersSlide,
    RotaryByKindConfig,
    SlidingConfig,
    UnplacedSlide,
)
from vrambudget.ops.elementwise import Activation

_OF_WINDOWS = {
    *("layer_types", "use_sliding_window", "max_window_layers"),
    *("no_rope_layers", "no_rope_layer_interval"),
}
"""Keys that the classes of models.parts.windows declare."""


def kinds_of(source: Mapping[str, Any]) -> tuple[type[DecoderConfig], ...]:
    """Return the classes that say what a type's attention, experts and windows are."""
    fields = source["fields"].keys()
    latent = (LatentConfig,) if "kv_lora_rank" in fields else ()
    experts = (MoeConfig,) if fields & {"num_experts", "num_local_experts"} else ()
    return (*latent, *experts, *_windows_of(source))


def _windows_of(source: Mapping[str, Any]) -> tuple[type[DecoderConfig], ...]:
    """Return the class, if any, that says which layers see a window."""
    fields = source["fields"]
    if "max_window_layers" in fields:
        return (EverySecondSlides if source.get("makes_both_masks") else LaterLayersSlide,)
    if "no_rope_layers" in fields:
        return (UnplacedSlide,)
    if "full_every" in source:
        return (RotaryByKindConfig if source["rotates_by_kind"] else MostLayersSlide,)
    if "use_sliding_window" in fields:
        return (AllSlideIfAsked,)
    return (SlidingConfig,) if "sliding_window" in fields else ()


_CAP = Annotated[float, Field(gt=0)] | None
_TYPES: dict[str, Any] = {
    "hidden_act": Activation,
    "pad_token_id": int | None,
    "partial_rotary_factor": Annotated[float, Field(gt=0, le=1)],
    "sliding_window_pattern": Annotated[int, Field(ge=0)] | str | None,
    "use_bidirectional_attention": Literal[False] | None,
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), _CAP),
    "mlp_only_layers": tuple[int, ...] | None,
    "mlp_layer_types": tuple[Literal["dense", "sparse"], ...] | None,
    "first_k_dense_replace": Annotated[int, Field(ge=0)],
    "topk_method": Literal["greedy", "group_limited_greedy"],
    "router_jitter_noise": Annotated[float, Field(ge=0)],
    **dict.fromkeys(("num_key_value_heads", "head_dim", "sliding_window"), Size | None),
}


def annotations(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of a type's keys, whose usual values it has itself."""
    declared: dict[str, Any] = {}
    for base in kinds_of(source):
        declared |= base.__annotations__
    own = source["fields"].items()
    declared |= dict.fromkeys(source.get("fixed", ()), Any)
    return {k: declared.get(k) or _annotation(k, v) for k, v in own if k not in _OF_WINDOWS}


def _annotation(key: str, value: Any) -> Any:
    if key in _TYPES:
        return _TYPES[key]
    if isinstance(value, bool):
        return bool
    if value is None:
        return Size | None
    return Probability if isinstance(value, float) else Size
