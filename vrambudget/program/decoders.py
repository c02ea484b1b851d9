"""Decoders whose layer is a program: what a type's own code does; all else is models.parts'.

    recorded   a layer with its weights, the norm behind the last one, which biases a key gives
    shared     embedding, masks, rotary tables, caches, attention, experts, heads and losses

`decoder_class("helium")` is the type's configuration, as that of a family in models.families.
Source: `tests/decoder_programs.py` writes the programs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar, Literal

from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.expressions import value as size_of
from vrambudget.models import RECORDED, config_class
from vrambudget.models.parts.attention import EagerAttention
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import DecoderConfig, Drops
from vrambudget.models.parts.experts import GptOssExperts
from vrambudget.models.parts.latent import LatentConfig, widths_of
from vrambudget.models.parts.layers import CheckpointedLayer, LayerNorm, ScaledEmbedding
from vrambudget.models.parts.moe import MoeCausalLM, MoeConfig
from vrambudget.models.parts.rotary import (
    AlphaRotaryEmbedding,
    ComplexRotaryEmbedding,
    Float32RotaryEmbedding,
    HalfRotaryEmbedding,
    Rotary,
)
from vrambudget.ops import creation
from vrambudget.program.decoder_body import BodyParts, PlayedModel
from vrambudget.program.decoder_eager import attends, eager_part
from vrambudget.program.decoder_fields import annotations, kinds_of
from vrambudget.program.decoder_layer import PlayedDecoderLayer
from vrambudget.program.decoder_modules import PlayedNorm, Weights
from vrambudget.program.decoder_parts import Parts, ProgramPart
from vrambudget.program.form import Program, Row
from vrambudget.program.keys import hold
from vrambudget.program.values import Values, operation

_OF_CLASS = {"full_every", "full_first", "makes_both_masks", "head_bias", "names", "rotary_first"}
_OF_CLASS |= {"reads_positions", "masks_by_position", "usual_rope", "enters_after_masks"}

_TABLES = {"float32": Float32RotaryEmbedding, "complex64": ComplexRotaryEmbedding}
"""What makes rotary tables of a type that is not the embeddings'."""

_OWN_CLASSES = {
    "gpt2": "GPT2Config",
    "opt": "OPTConfig",
    "falcon": "FalconConfig",
}
"""Types whose embeddings, norms or head are not Llama's: classes of models.families."""


@cache
def decoder_class(model_type: str) -> type["PlayedDecoderConfig"]:
    """Return the configuration of a type whose layer is recorded."""
    from vrambudget.program.catalog import program_at  # noqa: PLC0415 - it reads configurations

    program = program_at(RECORDED / f"{model_type}.program")
    source, every = program.source, []
    for variant in program.every():
        when = {**variant.when}
        (part,) = when.pop("part", ["layer"])
        every.append((part, when, variant))
    fields = source["fields"]
    bases: tuple[Any, ...] = (PlayedDecoderConfig, *kinds_of(source))
    if model_type in _OWN_CLASSES:
        home = import_module(f"vrambudget.models.families.{model_type}")
        bases = (getattr(home, _OWN_CLASSES[model_type]), *bases)
    own = {
        "__annotations__": {"model_type": Literal[model_type], **annotations(source)},
        "__module__": __name__,
        "__doc__": f"transformers' configuration of {model_type}, with its defaults.",
        "model_type": model_type,
        **fields,
        "program": program,
        "variants": [(when, Parts(v.program)) for part, when, v in every if part == "layer"],
        "eager_parts": [eager_part(v.program) for part, _, v in every if part == "eager"],
        "bodies": [(when, BodyParts(v.program)) for part, when, v in every if part == "body"],
        "named_sizes": {x for _, _, v in every for x in v.program.sizes},
        "tasks": tuple(source["tasks"]),
        "heads_share_width": source["width"] == "shared",
        "aliases": {**bases[0].aliases, **source.get("aliases", {})},
        "special_tokens": source["special_tokens"],
        "checked_with": tuple(source["followed_in"]),
        "ignored_keys": bases[0].ignored_keys | set(source["ignored"]),
        "embedded_by": tuple(map(operation, source["entered"])),
        "logits_by": tuple(map(operation, source["logits"])),
    }
    own |= {key: source[key] for key in _OF_CLASS & source.keys()}
    if "attentions" in source:
        own["attentions"] = tuple(source["attentions"])
    if any(word == "weight" and v[0].endswith("gate_up_proj_bias") for word, v in program.built):
        own["experts_class"] = GptOssExperts
    if source.get("has_half_tables"):
        own["rotary_embedding"] = HalfRotaryEmbedding
    elif source["tables"] in _TABLES:
        own["rotary_embedding"] = _TABLES[source["tables"]]
    if source.get("drops") is not None:
        own["drops"] = Drops(**source["drops"])
    if source["embedding"] == "scaled":
        own["embedding"] = ScaledEmbedding
    return type(f"{model_type.capitalize()}Config", bases, own)


_ALLOCATED: Mapping[str, Callable[..., Tensor]] = {
    "weight": Parameter,
    "buffer": partial(creation.made, "zeros"),
}

_BY_LAYER = {"layer_types": "layer_kinds", "no_rope_layers": "placed_layers"}
"""Keys that name something for each layer, and what says it of all."""


class PlayedDecoderConfig(DecoderConfig):
    """A configuration whose layer is a program's; `decoder_class` makes one for each type."""

    program: ClassVar[Program]
    variants: ClassVar[list[tuple[Mapping[str, Any], Parts]]]
    bodies: ClassVar[list[tuple[Mapping[str, Any], BodyParts]]]
    eager_parts: ClassVar[list[ProgramPart]]  # one at most
    usual_rope: ClassVar[Mapping[str, Any]] = {}
    named_sizes: ClassVar[frozenset[str]]
    reads_positions: ClassVar[bool] = False
    """Whether a layer's own code reads positions, besides what rotary tables have of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values: the class is made of its program where they are read."""
        return _restored, (self.model_type, self.__dict__, self.model_fields_set)

    def parts(self, number: int = 0) -> Parts:
        """Return those of the program whose keys are as this configuration has them of a layer."""
        for when, parts in self.variants[1:]:
            if all(self._key(key, number) in values for key, values in when.items()):
                return parts
        return self.variants[0][1]

    def body_parts(self, **called: bool) -> BodyParts:
        """Return what stands around the layers where the model is called so."""
        return next(
            parts
            for when, parts in self.bodies
            if all((called.get(k) if k in called else self._key(k, 0)) in when[k] for k in when)
        )

    def eager(self, layer: Module) -> EagerAttention:
        """Return how a layer attends by single operations."""
        if not self.eager_parts:
            return super().eager(layer)
        return partial(attends, self.eager_parts[0], layer)

    def decoder(self) -> Any:
        """Return the model that heads stand on, its weights allocated."""
        return PlayedModel(self) if self.bodies else super().decoder()

    @property
    def learned_positions(self) -> int | None:
        """The longest sequence that the model has positions for; None if they are computed."""
        found = self.program.source.get("positions")
        return None if found is None else size_of(found, self.widths())

    def _key(self, key: str, number: int) -> Any:
        if key == "attention":
            return context.options.attention
        if key == "mlp":
            assert isinstance(self, MoeConfig)  # noqa: S101 - others have no such programs
            return "dense" if self.is_dense(number) else "experts"
        found = getattr(self, _BY_LAYER.get(key, key))
        return found[number] if key in _BY_LAYER else found

    @property
    def rope(self) -> dict[str, Any]:
        """The parameters of rotary positions, the type's own where a file has none."""
        return super().rope or dict(self.usual_rope)

    def notes(self) -> Iterator[str]:
        """Yield how attention and weights are counted, where that is unusual."""
        if self.attentions == ("eager",):
            yield f"{self.model_type} attends by single operations (eager), and in no other way"
        if "quantization_config" in self.ignored_keys:
            yield (
                "weights count in the job's type: those that are published in fewer bits are"
                " dequantised for training, and wherever transformers has no kernels for them"
            )

    def rotary(self) -> Module:
        """Return what makes rotary tables; HunYuan's files name an `alpha`."""
        if self.rope_type == "dynamic" and self.rope.get("alpha"):
            return AlphaRotaryEmbedding(self.rotary_width, self.rope_type)
        return super().rotary()

    @property
    def rotary_width(self) -> int:
        """How many of a head's elements carry positions."""
        if self.program.source["tables"] is None:
            return 0
        usual = getattr(self, "partial_rotary_factor", None)
        return int(self.head_width * (1 if usual is None else self.partial_rotary_factor_of(usual)))

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        width = self.head_width * self.num_attention_heads
        if self.program.source["width"] == "square" and self.head_dim and width != self.hidden_size:
            yield (
                f"head_dim * num_attention_heads is {width};"
                f" attention's output takes hidden_size = {self.hidden_size}"
            )

    @property
    def said(self) -> dict[str, Any]:
        """Rates of dropout and noise, soft caps, and the activation."""
        fields, said = self.program.source["fields"], ("drop", "jitter", "softcap")
        rates = {key: getattr(self, key) for key in fields if any(word in key for word in said)}
        return {**rates, "hidden_act": self.hidden_act}

    def sizes_of(
        self, hidden_states: Tensor, rotary: Rotary | tuple[()], ranks: int
    ) -> dict[str, int]:
        """Return the sizes of a pass; of heads and the inner width this rank's."""
        return {
            **self.widths(ranks),
            "batch": hidden_states.shape[0],
            "length": hidden_states.shape[1],
            **({"rows": rotary[0].shape[0], "rotary_width": rotary[0].shape[2]} if rotary else {}),
        }

    def widths(self, ranks: int = 1) -> dict[str, int]:
        """Return the sizes that keys say; of heads and the inner width this rank's."""
        named = self.named_sizes & type(self).model_fields.keys()
        return {
            **{key: getattr(self, key) for key in named},
            **(widths_of(vars(self)) if isinstance(self, LatentConfig) else {}),
            "num_attention_heads": self.num_attention_heads // ranks,
            "num_key_value_heads": self.kv_heads // ranks,
            "heads_per_group": self.num_attention_heads // self.kv_heads,
            "head_dim": self.head_width,
            "hidden_size": self.hidden_size,
            "intermediate_size": (self.intermediate_size or 4 * self.hidden_size) // ranks,
        }

    def weights(self, built: Sequence[Row]) -> Weights:
        """Return the weights of what is built: without the biases that a key leaves out."""
        biases = self.program.source["biases"].items()
        left_out = {f"{x}.bias" for key, paths in biases if not getattr(self, key) for x in paths}
        sizes = {**self.widths(), "rotary_width": self.rotary_width}
        values = Values(sizes, context.options.dtype, None)
        rows = [(w, v) for w, v in built if w in _ALLOCATED and v[0] not in left_out]
        return [
            (v[0], partial(_ALLOCATED[w], tuple(values.of(v[2])), values.of(v[3]))) for w, v in rows
        ]

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated.

        Raises NotModelledError where a key is not as it was recorded.
        """
        source = self.program.source
        for key in source.get("fixed", ()):
            hold(key, getattr(self, key), {"is": source["fields"][key]})
        every = [self.parts(i) for i in range(self.num_hidden_layers)]
        weights = {parts: self.weights(parts.built) for parts in dict.fromkeys(every)}
        return [PlayedDecoderLayer(self, i, p, weights[p]) for i, p in enumerate(every)]

    def norm(self, width: int) -> Module:
        """Return the norm behind the last layer, its weights allocated."""
        part = self.parts().norm
        if part.is_layer_norm:
            return LayerNorm(width, bias=len(part.fixed) > 1, affine=bool(part.fixed))
        made = PlayedNorm(part)
        for name in sorted(part.fixed, reverse=True):  # the weight, then a bias
            setattr(made, name[1:], Parameter((width,), context.options.dtype))
        return made

    def causal_lm(self) -> CausalLM:
        """Return the model with a language modelling head, its weights allocated."""
        source = self.program.source
        base = MoeCausalLM if self.has_experts else CausalLM
        own = {"base_model_prefix": self.called("model")}
        own["is_named_for_causal_lm"] = source["is_named_for_causal_lm"]
        made: CausalLM = type(source["class"], (base,), own)(self)
        return made


def _restored(
    model_type: str, values: Mapping[str, Any], given: frozenset[str]
) -> PlayedDecoderConfig:
    cls: Any = config_class(model_type)
    made: PlayedDecoderConfig = cls._made(values, given)
    return made
