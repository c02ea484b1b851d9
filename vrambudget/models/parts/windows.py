"""Which layers of a decoder see a sliding window only, and which masks a forward pass makes.

    SlidingConfig      all layers slide, or none (Mistral, Phi-3)
    BothMasksConfig    layers of two kinds, and both masks in any case (Gemma 2 and 3, OLMo 3)
    LaterLayersSlide   the layers from `max_window_layers` on (Qwen2, Qwen3), if asked for
    AllSlideIfAsked    all layers, if `use_sliding_window` says so (Qwen3-MoE)
    EverySecondSlides  every second one until `max_window_layers` (Qwen2-MoE), if asked for
    layer_types        a file's own list goes before the rule

Source: __post_init__ of the configuration classes, forward of the models (transformers 5.17).
"""

from collections.abc import Iterator
from typing import Annotated

from vrambudget.config.settings import Field, Size
from vrambudget.models.parts.decoder import DecoderConfig, LayerType

LayerTypes = tuple[LayerType, ...]


class SlidingConfig(DecoderConfig):
    """All layers see `sliding_window` tokens, or all if it is null."""

    sliding_window: Size | None = None

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
        if "sliding_attention" in self.layer_kinds:
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


class BothMasksConfig(LayerTypesConfig):
    """Layers of two kinds, and models that make the masks of both in any case."""

    @property
    def mask_kinds(self) -> list[LayerType]:
        """Both, whatever the layers need."""
        return ["full_attention", "sliding_attention"]


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


class AllSlideIfAsked(SlidingConfig):
    """With `use_sliding_window` all layers slide."""

    use_sliding_window: bool = False

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The one mask that a forward pass makes."""
        return super().mask_kinds if self.use_sliding_window else ["full_attention"]


class EverySecondSlides(BothMasksConfig):
    """With `use_sliding_window` every second layer before `max_window_layers` slides."""

    use_sliding_window: bool = False
    sliding_window: Annotated[int, Field(ge=0)] | None = 4096  # 0 once transformers has read it
    max_window_layers: int = Field(28, ge=0)

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
