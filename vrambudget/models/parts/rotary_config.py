"""The keys of rotary embeddings in a configuration: which formula, over how much of a head.

`rope_scaling` is the older name of `rope_parameters`, and goes first where both are given; their
`rope_type` was `type` once.

Source: modeling_rope_utils.py (RotaryEmbeddingConfigMixin: convert_rope_params_to_dict,
standardize_rope_params).
"""

from collections.abc import Iterator
from typing import Any

from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import show
from vrambudget.models.parts.frequencies import FREQUENCIES


class RotaryConfig(ModelConfig):
    """A configuration with rotary embeddings."""

    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None

    ignored_keys = frozenset({"rope_theta"})

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters, by whichever name."""
        return self.rope_scaling or self.rope_parameters or {}

    @property
    def rope_type(self) -> str:
        """A key of FREQUENCIES; Phi-3's older files have other names for longrope."""
        found = str(self.rope.get("rope_type", self.rope.get("type", "default")))
        return "longrope" if found == "su" or "long_factor" in self.rope else found

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """Yield what makes the model impossible."""
        yield from super().problems()
        if self.rotary_width % 2:
            given = getattr(self, "head_dim", None)
            key = "head_dim" if given else "hidden_size / num_attention_heads"
            yield f"by {key}, {self.rotary_width} of a head are rotated; they go in pairs"
        if self.rope_type not in FREQUENCIES:
            key = "rope_scaling" if self.rope_scaling else "rope_parameters"
            known = ", ".join(FREQUENCIES)
            yield f"{key} has rope_type {show(self.rope_type)}; it should be one of {known}"

    def partial_rotary_factor_of(self, usual: float) -> float:
        """Return the share of a head that carries positions; `usual` where the file is silent."""
        factor = self.rope.get("partial_rotary_factor", usual)
        return factor if isinstance(factor, int | float) and 0 < factor <= 1 else usual
