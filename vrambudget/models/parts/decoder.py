"""What transformers' decoder-only families have in common, most of them copies of Llama's code.

    Model          embedding, masks, rotary tables, layers, norm

A family says which parts it is made of (`DecoderConfig.make_layers`, `norm`, `embedding`,
`rotary_embedding`, `head_bias`; parts are in `decoder_layers`), what its modules are called
(`names`), and overrides what its own code does otherwise (`Model.entered`, `CausalLM.logits`).

Source: models/llama/modeling_llama.py and its namesakes in transformers 5.17.
Not modelled: tensor parallelism.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import divides
from vrambudget.config.settings import Probability, Size
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.attention import EagerAttention, eager_attention
from vrambudget.models.parts.cache import Cache, dynamic_cache
from vrambudget.models.parts.causal_lm import CausalLM, DecoderBody
from vrambudget.models.parts.classification import SequenceClassifier
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, Embedding
from vrambudget.models.parts.masks import Masks, causal_mask, positions, sliding_window_mask
from vrambudget.models.parts.rotary import RotaryEmbedding
from vrambudget.models.parts.rotary_config import RotaryConfig
from vrambudget.ops.dropout import dropout
from vrambudget.ops.elementwise import Activation, mul_scalar

LayerType = Literal["full_attention", "sliding_attention", "linear_attention"]


class Drops(NamedTuple):
    """How embeddings are dropped out."""

    key: str  # of the configuration, which says the rate
    module: str  # whose call it is; "" where the model's own code does it
    holds: bool  # whether the embeddings live on beside what the first layer reads


class Model(Module):
    """LlamaModel; Qwen2Model where layers of two kinds alternate."""

    def __init__(self, config: "DecoderConfig") -> None:
        self.config = config
        embedding = config.embedding(config.vocab_size, config.embedding_width)
        setattr(self, config.called("embed_tokens"), embedding)
        self.scales_embeddings = embedding.model_scales
        self.begin()
        layers = config.make_layers()
        setattr(self, config.called("layers"), layers)
        for index, kind in enumerate(config.layer_kinds):
            layers[index].attention_type = kind
        self.finish()

    def begin(self) -> None:
        """Make what comes before the layers besides the embeddings."""

    def finish(self) -> None:
        """Make what comes after the layers."""
        config = self.config
        if config.rotary_first:
            rotary = config.rotary_embedding(config.rotary_width, config.rope_type, last=False)
            self.rotary_emb: Module = rotary
            setattr(self, config.called("norm"), config.norm(config.hidden_size))
            rotary.initialise()
        else:
            setattr(self, config.called("norm"), config.norm(config.hidden_size))
            self.rotary_emb = config.rotary()
        if config.drops is not None and config.drops.module:
            setattr(self, config.drops.module, Dropout(config.drop_rate))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | Masks | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]."""
        if inputs_embeds is None:
            inputs_embeds = self.embedded(input_ids)
        if position_ids is None:
            position_ids = positions(input_ids.shape[1])
        if isinstance(attention_mask, dict):
            masks: Masks = attention_mask
        else:
            given = inputs_embeds, position_ids, attention_mask, past_key_values
            masks = {kind: self.mask(*given, kind) for kind in self.config.mask_kinds}
            del given
        if self.config.enters_after_masks:
            inputs_embeds = self.multiplied(inputs_embeds)
        hidden_states = self.entered(inputs_embeds)
        if self.config.drops is not None and not self.config.drops.holds:
            inputs_embeds = hidden_states
        rotary = self.rotary_emb(position_ids, inputs_embeds.dtype)
        if self.scales_embeddings:
            hidden_states = mul_scalar(hidden_states)
        for layer in self.module("layers"):
            mask = masks[layer.attention_type]
            hidden_states = layer(
                hidden_states,
                rotary=rotary[layer.attention_type] if isinstance(rotary, dict) else rotary,
                mask=mask,
                position_ids=position_ids,
                past_key_values=past_key_values,
            )
        y: Tensor = self.module("norm")(hidden_states)
        return y

    def module(self, name: str) -> Any:
        """Return what Llama calls by this name."""
        return getattr(self, self.config.called(name))

    def embedded(self, input_ids: Tensor) -> Tensor:
        """[B, T] -> [B, T, C]."""
        y: Tensor = self.module("embed_tokens")(input_ids)
        return y if self.config.enters_after_masks else self.multiplied(y)

    def multiplied(self, y: Tensor) -> Tensor:
        """Return embeddings [B, T, C] as the type multiplies them."""
        for operation in self.config.embedded_by:
            y = operation(y)
        return y

    def entered(self, inputs_embeds: Tensor) -> Tensor:
        """Return what the first layer reads [B, T, C]: embeddings, some of them dropped out."""
        drops = self.config.drops
        if drops is None:
            return inputs_embeds
        if drops.module:
            y: Tensor = getattr(self, drops.module)(inputs_embeds)
            return y
        return dropout(inputs_embeds, self.config.drop_rate, training=self.training)

    def mask(
        self,
        embeddings: Tensor,
        position_ids: Tensor | None,
        padding: Tensor | None,
        past: Cache | None,
        kind: LayerType,
    ) -> Tensor | None:
        """Return the mask of layers of this kind."""
        if not self.config.masks_by_position:
            position_ids = None
        if kind == "full_attention":
            return causal_mask(embeddings, position_ids, padding, past)
        return sliding_window_mask(embeddings, position_ids, self.config.window, padding, past)


class DecoderConfig(RotaryConfig):
    """The keys that these families share; each gives them its own defaults."""

    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    hidden_act: Activation = "silu"
    max_position_embeddings: Size
    attention_dropout: Probability = 0.0
    tie_word_embeddings: bool = False

    tasks: ClassVar[tuple[Task, ...]] = ("causal-lm", "seq-cls")

    embedding: ClassVar[type[Embedding]] = Embedding
    rotary_embedding: ClassVar[type[RotaryEmbedding]] = RotaryEmbedding
    head_bias: ClassVar[bool] = False
    names: ClassVar[Mapping[str, str]] = {}
    """What modules are called that are called otherwise than Llama's."""
    rotary_first: ClassVar[bool] = False
    """Whether rotary tables are made before the norm behind the last layer."""
    embedded_by: ClassVar[Sequence[Callable[[Tensor], Tensor]]] = ()
    enters_after_masks: ClassVar[bool] = False  # so embeddings lie beside the masks' tensors
    """What embeddings go through, as they are looked up."""
    logits_by: ClassVar[Sequence[Callable[[Tensor], Tensor]]] = ()
    """What logits go through."""
    drops: ClassVar[Drops | None] = None
    masks_by_position: ClassVar[bool] = True
    """Whether masks are made with positions, where packed rows are looked for."""

    @property
    def drop_rate(self) -> float:
        """How much of the embeddings is dropped out."""
        assert self.drops is not None  # noqa: S101 - nobody asks elsewhere
        rate: float = getattr(self, self.drops.key)
        return rate

    def called(self, name: str) -> str:
        """Return what Llama's module of this name is called."""
        return self.names.get(name, name)

    @property
    def kv_heads(self) -> int:
        """Heads of key and value."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """The width of the embeddings and of the head."""
        return self.hidden_size

    @property
    def head_width(self) -> int:
        """Elements of one head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def rotary(self) -> Module:
        """Return what makes rotary tables, or those of each kind of layer."""
        return self.rotary_embedding(self.rotary_width, self.rope_type)

    @property
    def window(self) -> int:
        """How many tokens a sliding layer looks back."""
        raise NotImplementedError

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to."""
        return ["full_attention"] * self.num_hidden_layers

    @property
    def mask_kinds(self) -> list[LayerType]:
        """The masks that a forward pass makes, in order."""
        return ["full_attention"]

    def new_cache(self) -> Cache:
        """Return an empty cache of keys and values."""
        kinds = self.layer_kinds
        return dynamic_cache([self.window if k == "sliding_attention" else None for k in kinds])

    @property
    def keeps_all_logits(self) -> bool:
        """Whether all tokens get logits, also where the last ones are asked for."""
        return False

    heads_share_width: ClassVar[bool] = False
    """Whether heads divide the hidden size even if they have a width of their own."""
    heads_have_widths: ClassVar[bool] = False
    """Whether heads' widths are keys of their own, and `head_dim` is none."""

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from super().problems()
        if self.heads_share_width or (self.head_dim is None and not self.heads_have_widths):
            yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.num_attention_heads % self.kv_heads:
            yield from divides(self, "num_key_value_heads", into="num_attention_heads")

    def make_layers(self) -> list[CheckpointedLayer]:
        """Return all layers, their weights allocated."""
        raise NotImplementedError

    def norm(self, width: int) -> Module:
        """Return the norm behind the last layer, its weights allocated."""
        raise NotImplementedError

    def inner(self, path: str) -> Module:
        """Return a module that holds a layer's others, by its path."""
        del path
        return Module()

    def eager(self, layer: Module) -> EagerAttention:
        """Return how a layer attends by single operations."""
        del layer
        return eager_attention

    def decoder(self) -> Any:
        """Return the model that heads stand on, its weights allocated."""
        return Model(self)

    def body(self) -> DecoderBody:
        """Return the model without a head, its weights allocated."""
        return DecoderBody(self, self.decoder())

    def build(self, task: Task) -> CausalLM | SequenceClassifier:
        """Return the model, its weights allocated."""
        if task == "seq-cls":
            name = self.called("model")
            return SequenceClassifier(self, self.decoder(), self.embedding_width, name=name)
        return self.causal_lm()

    def causal_lm(self) -> CausalLM:
        """Return the model with a language modelling head, its weights allocated."""
        raise NotImplementedError
