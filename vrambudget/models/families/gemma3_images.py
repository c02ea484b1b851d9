"""Gemma 3 of the repositories that read images, too: 4B, 12B, 27B (model_type gemma3).

A batch of text goes through Gemma 3 alone; the vision tower and its projector lie on the GPU. The
masks are made before the language model is called, without positions: rows are not looked through
for packing.

Source: models/gemma3/modeling_gemma3.py of transformers 5.17 (Gemma3ForConditionalGeneration),
models/siglip/modeling_siglip.py (SiglipVisionModel).
Not modelled: images.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field, Size, show
from vrambudget.config.unfamiliar import TEXT_ALONE
from vrambudget.dtypes import bool_
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.errors import VramBudgetError
from vrambudget.models import config_class
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.layers import Embedding, LayerNorm, Linear, Norm
from vrambudget.models.parts.masks import Masks
from vrambudget.ops.creation import arange, made
from vrambudget.tape.events import Purpose


class SiglipVisionConfig(ModelConfig):
    """transformers' SiglipVisionConfig, with its defaults: what decides the weights."""

    model_type: Literal["siglip_vision_model"] = "siglip_vision_model"
    hidden_size: Size = 768
    intermediate_size: Size = 3072
    num_hidden_layers: Size = 12
    num_channels: Size = 3
    image_size: Size = 224
    patch_size: Size = 16
    vision_use_head: bool = True

    ignored_keys = frozenset({"num_attention_heads", "hidden_act", "attention_dropout"})


def _holding(**parts: Module | Tensor | list[Module]) -> Module:
    """Return a module without a forward that holds what was made, in this order."""
    module = Module()
    vars(module).update(parts)
    return module


def _mlp(width: int, inner: int) -> Module:
    return _holding(fc1=Linear(width, inner), fc2=Linear(inner, width))


def _encoder_layer(width: int, inner: int) -> Module:
    return _holding(
        layer_norm1=LayerNorm(width),
        self_attn=_holding(
            k_proj=Linear(width, width),
            v_proj=Linear(width, width),
            q_proj=Linear(width, width),
            out_proj=Linear(width, width),
        ),
        layer_norm2=LayerNorm(width),
        mlp=_mlp(width, inner),
    )


def _pooling_head(width: int, inner: int) -> Module:
    dtype = context.options.dtype
    return _holding(
        probe=Parameter((1, 1, width), dtype),
        attention=_holding(
            in_proj_weight=Parameter((3 * width, width), dtype),
            in_proj_bias=Parameter((3 * width,), dtype),
            out_proj=Linear(width, width),
        ),
        layernorm=LayerNorm(width),
        mlp=_mlp(width, inner),
    )


def vision_tower(config: SiglipVisionConfig) -> Module:
    """Return SiglipVisionModel (models/siglip/modeling_siglip.py): its weights lie idle."""
    dtype, width, inner = context.options.dtype, config.hidden_size, config.intermediate_size
    patch, patches = config.patch_size, (config.image_size // config.patch_size) ** 2
    embeddings = _holding(
        patch_embedding=_holding(
            weight=Parameter((width, config.num_channels, patch, patch), dtype),
            bias=Parameter((width,), dtype),
        ),
        position_embedding=Embedding(patches, width),
    )
    with made_for(Purpose.WEIGHTS):
        embeddings.position_ids = arange(patches)  # type: ignore[attr-defined]
    tower = _holding(
        embeddings=embeddings,
        encoder=_holding(
            layers=[_encoder_layer(width, inner) for _ in range(config.num_hidden_layers)]
        ),
        post_layernorm=LayerNorm(width),
    )
    if config.vision_use_head:
        tower.head = _pooling_head(width, inner)  # type: ignore[attr-defined]
    again = arange(patches)  # _init_weights copies them in once more
    del again
    return tower


class Gemma3Model(Module):
    """Gemma3Model."""

    def __init__(self, config: "Gemma3Config") -> None:
        self.masks_ids = config.image_token_index >= config.vocab_size
        self.vision_tower = vision_tower(config.vision_config)
        width, dtype = config.vision_config.hidden_size, context.options.dtype
        self.multi_modal_projector = _holding(
            mm_input_projection_weight=Parameter((width, config.hidden_size), dtype),
            mm_soft_emb_norm=Norm(width),
        )
        self.language_model = config.language_model()

    def module(self, name: str) -> Any:
        """Return what Llama calls by this name: the head's weights may be the embeddings'."""
        return self.language_model.module(name)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | Masks | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        text = self.language_model
        llm_input_ids, special_image_mask = input_ids, None
        if self.masks_ids:
            special_image_mask = made("eq", input_ids.shape, bool_)
            llm_input_ids = made("clone", input_ids.shape, input_ids.dtype)
        inputs_embeds = text.embed_tokens(llm_input_ids)
        if not isinstance(attention_mask, dict):  # `generate` has built masks
            given = inputs_embeds, position_ids, attention_mask, past_key_values
            attention_mask = {kind: text.mask(*given, kind) for kind in text.config.mask_kinds}
        y: Tensor = text(
            input_ids, attention_mask, position_ids, past_key_values, inputs_embeds=inputs_embeds
        )
        del llm_input_ids, special_image_mask  # held until here
        return y


_Text: Any = config_class("gemma3_text")


class Gemma3Config(_Text):  # type: ignore[misc]  # a class that is made of a program
    """transformers' Gemma3Config: the keys of its `text_config`, and those of its vision tower."""

    model_type: Literal["gemma3"] = "gemma3"
    vision_config: SiglipVisionConfig = Field(default_factory=lambda: SiglipVisionConfig.parse({}))
    image_token_index: Size = 262_144
    use_cache: bool = Field(default=True, description="of text_config")

    checked_with = ("5.17",)
    ignored_keys: ClassVar[frozenset[str]] = _Text.ignored_keys | {
        *("boi_token_index", "eoi_token_index", "boi_token_id", "eoi_token_id"),
        "mm_tokens_per_image",
    }
    aliases: ClassVar[Mapping[str, str]] = {
        **_Text.aliases,
        "image_token_id": "image_token_index",
    }

    @property
    def caches_by_itself(self) -> bool:
        """Whether the language model keeps keys and values, whatever the job says."""
        return self.use_cache

    @property
    def mask_kinds(self) -> list[LayerType]:
        """Those that the layers need (create_masks_for_generate), in no fixed order: a set's."""
        return sorted(set(self.layer_kinds))

    @classmethod
    def parse(cls, values: Mapping[str, object], *, where: str | None = None) -> Self:
        """Return the configuration of a file's keys. Raises VramBudgetError for every mistake."""
        outer = {k: v for k, v in values.items() if k not in {"text_config", "vision_config"}}
        text = _table(values, "text_config", where)
        vision = SiglipVisionConfig.parse(_table(values, "vision_config", where), where=where)
        own = {"tie_word_embeddings": values.get("tie_word_embeddings", True)}
        own |= {"use_cache": text.get("use_cache", True)}
        own |= {"model_type": "gemma3", "vision_config": vision}
        parsed: Self = super().parse({**outer, **text, **own}, where=where)
        return parsed

    def notes(self) -> Iterator[str]:
        """Yield how the model is estimated."""
        yield f"{TEXT_ALONE}; Gemma3ForCausalLM, which has no eyes, is built from text_config alone"
        if self.use_cache:
            yield (
                "keys and values are cached in training, too: model.config.use_cache = False does"
                " not reach text_config, model.config.text_config.use_cache = False does"
            )

    def language_model(self) -> Any:
        """Gemma3TextModel."""
        return super().decoder()

    def decoder(self) -> Gemma3Model:
        """Gemma3Model."""
        return Gemma3Model(self)


def _table(values: Mapping[str, object], key: str, where: str | None) -> Mapping[str, Any]:
    """Return a configuration inside a configuration; without one, all of it is the default."""
    table = values.get(key)
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise VramBudgetError(f"{key} is {show(table)}; it should be a table", where=where)
    return table
