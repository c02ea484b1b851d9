"""An encoder-decoder as `generate` calls it: one model, and a program for each kind of call."""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.cache import EncoderDecoderCache
from vrambudget.models.parts.outputs import Outputs
from vrambudget.program.form import Program, Variant
from vrambudget.program.keys import bound_keys
from vrambudget.program.player import Played
from vrambudget.program.unfold import unfolded

_DECODERS = ("model.decoder.", "decoder.")
CALLS = ("encode", "first", "next")


class GeneratorConfig(ModelConfig):
    """A configuration with programs: what of it `generate` asks."""

    keys: Mapping[str, Any] = Field(default_factory=dict, description="the configuration")
    programs: tuple[Variant, ...] = ()

    @property
    def first(self) -> Program:
        """The head of the program that stands for all where they do not differ."""
        return self.programs[0].head

    @property
    def hidden_size(self) -> int | None:
        """The width of the hidden states, which sizes that are "auto" follow."""
        sizes = bound_keys(self.first, self.keys)
        return sizes.get("hidden_size", sizes.get("d_model"))

    @property
    def depths(self) -> tuple[int | None, int | None]:  # type: ignore[override]
        """Layers of a decoder whose calls were recorded, and the encoder's if a cache has as many.

        Of a key like "decoder_layers" transformers knows that it is the decoder's
        (PreTrainedConfig.get_text_config, 5.17).
        """
        key = next((row[1] for row in self.first.stacks if row[0].startswith(_DECODERS)), None)
        if key is None or not any("call" in variant.when for variant in self.programs):
            return None, None
        sizes = bound_keys(self.first, self.keys)
        of_encoder = self.first.keys["attribute_map"].get("num_hidden_layers", "")
        return sizes[key], None if key.startswith("decoder_") else sizes.get(of_encoder)

    def new_cache(self) -> EncoderDecoderCache | None:
        """Return an empty cache of a decoder whose calls were recorded."""
        depth, _ = self.depths
        return None if depth is None else EncoderDecoderCache.of(depth)

    @property
    def special_tokens(self) -> int:  # type: ignore[override]
        """Tokens that `generate` puts on the device."""
        tokens: int = self.first.source.get("special_tokens", 2)
        return tokens

    @property
    def forces_last_token(self) -> bool:  # type: ignore[override]
        """Whether `generate` ends with a token that its configuration names."""
        return bool(self.first.source.get("forces_last_token"))


class Generator(Played):
    """The model of a program, and the programs of what is called."""

    def __init__(
        self,
        program: Program,
        programs: Mapping[str, Program],
        sizes: dict[str, int],
        said: Mapping[str, Any],
    ) -> None:
        super().__init__(program, sizes, said)
        self._calls = {name: (own, unfolded(own, sizes)) for name, own in programs.items()}

    def _call(self, name: str, sizes: dict[str, int], **batch: Tensor) -> Outputs:
        self._program, self._rows = self._calls[name]
        self._bound, self._further = {}, sizes  # each step has sizes of its own
        outputs: Outputs = self(**batch)
        return outputs

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """[B, S] -> [B, S, C]."""
        batch = {"input_ids": input_ids, "attention_mask": attention_mask}
        return self._call("encode", {}, **batch).logits

    def decode(
        self,
        decoder_input_ids: Tensor,
        hidden_states: Tensor,
        attention_mask: Tensor,
        *,
        cache: EncoderDecoderCache | None = None,
        use_cache: bool = True,
    ) -> Outputs:
        """[B, T] and the encoder's [B, S, C] -> logits [B, T, V]."""
        del use_cache  # `generate` makes the cache
        target, sizes = decoder_input_ids.shape[1], {}
        if cache is not None:
            layer = cache.layers[0]
            length = layer.mask_sizes(1)[0]
            sizes = {"target": (target := layer.seen + 1), "cache_length": length}
            sizes["room"] = length  # its name in files of 0.3
        self._state.cache = cache
        batch = {
            "decoder_input_ids": decoder_input_ids,
            "encoder_states": hidden_states,
            "attention_mask": attention_mask,
        }
        outputs = self._call("next" if target > 1 else "first", sizes, **batch)
        return Outputs(None, outputs.logits, (hidden_states, cache))
