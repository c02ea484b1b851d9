"""Decoders whose layer is a program: what a type's own code does; all else is models.parts'.

    recorded   a layer with its weights, the norm behind the last one, which biases a key gives
    shared     embedding, masks, rotary tables, caches, attention, experts, heads and losses

`decoder_class("helium")` is the type's configuration, as that of a family in models.families.
Source: `tests/decoder_programs.py` writes the programs.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from typing import Any, ClassVar, Literal

from vrambudget.dtypes import float32
from vrambudget.engine.context import context
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models import RECORDED, config_class
from vrambudget.models.parts.cache import Cache
from vrambudget.models.parts.causal_lm import CausalLM
from vrambudget.models.parts.decoder import DecoderConfig, Drops
from vrambudget.models.parts.latent import LatentConfig, cached, widths_of
from vrambudget.models.parts.layers import CheckpointedLayer, LayerNorm, ScaledEmbedding
from vrambudget.models.parts.moe import MoeCausalLM, MoeConfig
from vrambudget.models.parts.rotary import (
    AlphaRotaryEmbedding,
    ComplexRotaryEmbedding,
    Float32RotaryEmbedding,
    Rotary,
)
from vrambudget.ops import creation
from vrambudget.program.bound import Env
from vrambudget.program.decoder_fields import annotations, kinds_of
from vrambudget.program.decoder_modules import PlayedNorm, PlayedRouter
from vrambudget.program.decoder_parts import Parts, Pass
from vrambudget.program.form import Program
from vrambudget.program.keys import hold
from vrambudget.program.player import KINDS, WITH_BIAS
from vrambudget.program.values import Values, operation

_OF_CLASS = {"full_every", "makes_both_masks", "head_bias", "names", "rotary_first"}
_OF_CLASS |= {"reads_positions"}

_TABLES = {"float32": Float32RotaryEmbedding, "complex64": ComplexRotaryEmbedding}
"""What makes rotary tables of a type that is not the embeddings'."""

_OWN_CLASSES = {
    "gpt2": "GPT2Config",
    "opt": "OPTConfig",
    "falcon": "FalconConfig",
    "gpt_oss": "GptOssConfig",
}
"""Types whose embeddings, norms or head are not Llama's: classes of models.families."""


@cache
def decoder_class(model_type: str) -> type["PlayedDecoderConfig"]:
    """Return the configuration of a type whose layer is recorded."""
    from vrambudget.program.catalog import program_at  # noqa: PLC0415 - it reads configurations

    program = program_at(RECORDED / f"{model_type}.program")
    source = program.source
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
        "variants": [(variant.when, Parts(variant.program)) for variant in program.every()],
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
    if source["tables"] in _TABLES:
        own["rotary_embedding"] = _TABLES[source["tables"]]
    if source.get("drops") is not None:
        own["drops"] = Drops(**source["drops"])
    if source["embedding"] == "scaled":
        own["embedding"] = ScaledEmbedding
    return type(f"{model_type.capitalize()}Config", bases, own)


Weights = list[tuple[str, Callable[[], Tensor]]]
"""The weights and buffers of a layer, each with what allocates it."""


class PlayedDecoderLayer(CheckpointedLayer):
    """A layer whose forward pass is the program's."""

    def __init__(
        self, config: "PlayedDecoderConfig", number: int, parts: Parts, weights: Weights
    ) -> None:
        state = Pass(number=number, said=config.said)
        self.played = state, config, parts
        self.form = id(parts)  # layers of several kinds are not identical
        fixed = {*parts.layer.fixed}  # read here, or by an inner module that has none such
        for path, inner in parts.layer.inner.items():
            fixed |= {name for name in inner.fixed if name[1:].rpartition(".")[0] != path}
        for name, allocated in weights:
            path, _, last = name.rpartition(".")
            owner = self._module(path)
            setattr(owner, last, allocated())
            if f"@{name}" in fixed:  # others' modules may be replaced
                state.owners[f"@{name}"] = owner, last
        for path, kind in parts.kinds.items():
            if kind == "Dropout":  # a loop may switch modules off
                self._module(path)
        for module in self.modules():
            if isinstance(module, WITH_BIAS) and "bias" not in vars(module):
                module.bias = None

    def _module(self, path: str) -> Module:
        """Return the module at a path, made where it is not there yet."""
        if not path:
            return self
        above, _, last = path.rpartition(".")
        owner = vars(self._module(above))
        if last not in owner:
            owner[last] = self._made(path)
        found: Module = owner[last]
        return found

    def _made(self, path: str) -> Module:
        state, config, parts = self.played
        inner = parts.layer.inner.get(path)
        if inner is not None:
            return PlayedRouter(inner, state) if inner.routes else PlayedNorm(inner, state)
        if path == parts.layer.experts:
            assert isinstance(config, MoeConfig)  # noqa: S101 - it has experts
            made: Module = config.experts_class(config.hidden_act)
            return made
        kind = KINDS.get(parts.kinds.get(path, ""))
        return config.inner(path) if kind is None else kind.__new__(kind)

    def forward(
        self,
        hidden_states: Tensor,
        rotary: Rotary | tuple[()],
        mask: Tensor | None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
    ) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        state, config, parts = self.played
        state.prepare(self)
        state.cache = past_key_values
        state.dtype, state.eager = hidden_states.dtype, config.eager(self)
        state.tables = rotary[0].dtype if rotary else float32
        state.sizes = config.sizes_of(hidden_states, rotary, self.ranks)
        if isinstance(config, LatentConfig):
            state.sizes["cached"] = cached(past_key_values, state.number, state.sizes["length"])
        state.keeps = any(hasattr(module, "quantised") for module in self.modules())
        part = parts.layer
        env: Env = state.parameters(part.fixed)
        given: Any = hidden_states, *rotary, mask  # without a mask its name is None's
        if config.reads_positions:
            given = *given, position_ids
        env.update(zip(part.inputs, given, strict=True))
        try:
            y: Tensor = part.run(env, state, training=self.training)
        finally:
            state.cache = None
        return y


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

    def _key(self, key: str, number: int) -> Any:
        if key == "mlp":
            assert isinstance(self, MoeConfig)  # noqa: S101 - others have no such programs
            return "dense" if self.is_dense(number) else "experts"
        found = getattr(self, _BY_LAYER.get(key, key))
        return found[number] if key in _BY_LAYER else found

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
            **self._widths(ranks),
            "batch": hidden_states.shape[0],
            "length": hidden_states.shape[1],
            **({"rows": rotary[0].shape[0], "rotary_width": rotary[0].shape[2]} if rotary else {}),
        }

    def _widths(self, ranks: int = 1) -> dict[str, int]:
        named = self.program.sizes.keys() & type(self).model_fields.keys()
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

    def weights(self, parts: Parts) -> Weights:
        """Return a layer's weights: without the biases that a key leaves out."""
        biases = self.program.source["biases"].items()
        left_out = {f"{x}.bias" for key, paths in biases if not getattr(self, key) for x in paths}
        sizes = {**self._widths(), "rotary_width": self.rotary_width}
        values = Values(sizes, context.options.dtype, None)
        rows = [(w, v) for w, v in parts.built if w in _ALLOCATED and v[0] not in left_out]
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
        weights = {parts: self.weights(parts) for parts in dict.fromkeys(every)}
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
