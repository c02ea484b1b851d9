"""Which layers of a decoder see a sliding window only, and which masks a forward pass makes.

    SlidingConfig      all layers slide, or none (Mistral, Phi-3)
    MostLayersSlide    all but every nth (Gemma 2 and 3, OLMo 3, EXAONE 4)
    LaterLayersSlide   the layers from `max_window_layers` on (Qwen2, Qwen3), if asked for
    AllSlideIfAsked    all layers, if `use_sliding_window` says so (Qwen3-MoE)
    EverySecondSlides  every second one until `max_window_layers` (Qwen2-MoE), if asked for
    UnplacedSlide      the layers without rotary positions (SmolLM3), if asked for
    layer_types        a file's own list goes before the rule

Source: __post_init__ of the configuration classes, forward of the models (transformers 5.17).
"""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from vrambudget.config.settings import Field, Size, show
from vrambudget.engine.module import Module
from vrambudget.models.parts.decoder import DecoderConfig, LayerType
from vrambudget.models.parts.rotary import RotaryByKind

LayerTypes = tuple[LayerType, ...]


class SlidingConfig(DecoderConfig):
    """All layers see `sliding_window` tokens, or all if it is null."""

    sliding_window: Size | None = None

    @property
    def has_window(self) -> bool:
        """Whether the file names a window, used or not."""
        return self.sliding_window is not None

    @property
    def window(self) -> int:
        """How many tokens a sliding layer looks back."""
        assert self.sliding_window is not None  # noqa: S101 - no layer slides otherwise
        return self.sliding_window

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        return self.mask_kinds * self.num_hidden_layers

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The one mask that a forward pass makes."""
        return ["full_attention" if self.sliding_window is None else "sliding_attention"]


class LayerTypesConfig(SlidingConfig):
    """Layers of two kinds, by the file's `layer_types` or by the family's rule."""

    layer_types: LayerTypes | None = None

    makes_both_masks: ClassVar[bool] = False
    """Whether a forward pass makes the masks of both kinds, whatever the layers need."""

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        return list(self.layer_types or self.usual_layer_kinds)

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """What each layer attends to where the file does not say."""
        raise NotImplementedError

    @property
    def mask_kinds(self) -> list[LayerType]:
        """A full mask always, a sliding one where a layer needs it."""
        if self.makes_both_masks or "sliding_attention" in self.layer_kinds:
            return ["full_attention", "sliding_attention"]
        return ["full_attention"]

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            yield (
                f"layer_types names {len(self.layer_types)} layers,"
                f" num_hidden_layers is {self.num_hidden_layers}"
            )
        if "sliding_attention" in (self.layer_types or ()) and self.sliding_window is None:
            yield "layer_types names sliding layers, but sliding_window is null"


class MostLayersSlide(LayerTypesConfig):
    """All layers slide but every nth: by the type's rule, or by `sliding_window_pattern`."""

    full_every: ClassVar[int]
    """0 where all layers slide that a file does not list."""
    full_first: ClassVar[int] = 0
    """The first layer without a window, where that is not the last of so many."""

    @property
    def _every(self) -> Any:
        pattern = getattr(
            self, "sliding_window_pattern", self.full_every or self.num_hidden_layers + 1
        )
        return pattern if self.has_window else None

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.layer_types is None and (not isinstance(self._every, int) or self._every < 1):
            key = "sliding_window_pattern" if self.has_window else "sliding_window"
            value = getattr(self, key)
            came = "null" if value is None else show(value)
            yield f"{key} is {came}, which takes layer_types beside it"
        elif self.makes_both_masks and not self.has_window:
            yield "sliding_window is null, and the mask of sliding layers is made in any case"

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in all layers but every nth."""
        layers = range(1 - self.full_first, self.num_hidden_layers + 1 - self.full_first)
        return ["sliding_attention" if i % self._every else "full_attention" for i in layers]


class RotaryByKindConfig(MostLayersSlide):
    """Layers with a window and without one, each kind with rotary positions of its own."""

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of the layers without a window: those with one have the default."""
        by_kind = (self.rope_parameters or {}).get("full_attention")
        return self.rope_scaling or by_kind or {}

    def rotary(self) -> Module:
        """One of each kind."""
        types = {
            kind: self.rope_type if kind == "full_attention" else "default"
            for kind in self.layer_kinds
        }
        return RotaryByKind(self.rotary_width, types, self.rotary_embedding)


class LaterLayersSlide(LayerTypesConfig):
    """With `use_sliding_window` the layers from `max_window_layers` on slide."""

    use_sliding_window: bool = False
    sliding_window: Size | None = 4096
    max_window_layers: int = Field(28, ge=0)

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if "sliding_attention" in (self.layer_types or ()) and not self.use_sliding_window:
            yield "layer_types names sliding layers, but use_sliding_window is false"

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """Full attention up to `max_window_layers`."""
        slides = self.use_sliding_window and self.sliding_window is not None
        first = self.max_window_layers if slides else self.num_hidden_layers
        layers = range(self.num_hidden_layers)
        return ["full_attention" if i < first else "sliding_attention" for i in layers]


class UnplacedSlide(LayerTypesConfig):
    """Some layers have no rotary positions, and with `use_sliding_window` those slide."""

    use_sliding_window: bool = False
    no_rope_layers: tuple[int, ...] | None = None
    no_rope_layer_interval: Size = 4

    @property
    def placed_layers(self) -> list[int]:
        """Whether each layer has rotary positions, 1 or 0."""
        layers, interval = range(1, self.num_hidden_layers + 1), self.no_rope_layer_interval
        return [*(self.no_rope_layers or (int(i % interval > 0) for i in layers))]

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if len(self.placed_layers) < self.num_hidden_layers:
            yield (
                f"no_rope_layers names {len(self.placed_layers)} layers,"
                f" num_hidden_layers is {self.num_hidden_layers}"
            )

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """A window in layers without positions, if asked for."""
        slides = self.use_sliding_window and self.has_window
        return [
            "sliding_attention" if slides and not placed else "full_attention"
            for placed in self.placed_layers[: self.num_hidden_layers]
        ]


class AllSlideIfAsked(SlidingConfig):
    """With `use_sliding_window` all layers slide."""

    use_sliding_window: bool = False

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The one mask that a forward pass makes."""
        return super().mask_kinds if self.use_sliding_window else ["full_attention"]


class EverySecondSlides(LayerTypesConfig):
    """With `use_sliding_window` every second layer before `max_window_layers` slides."""

    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096  # 0 once transformers has read it
    max_window_layers: int = Field(28, ge=0)

    makes_both_masks = True

    @property
    def window(self) -> int:
        """How many tokens a sliding layer looks back; the mask of none is made all the same."""
        return (self.sliding_window or 0) if self.use_sliding_window else 0

    @property
    def usual_layer_kinds(self) -> list[LayerType]:
        """Sliding attention first, in turn with full attention."""
        slides = self.max_window_layers if self.use_sliding_window else 0
        layers = range(self.num_hidden_layers)
        return [
            "sliding_attention" if i < slides and i % 2 == 0 else "full_attention" for i in layers
        ]
