"""ModernBERT as transformers writes it (models/modernbert/modeling_modernbert.py): base, large.

Every third layer sees all tokens, the others those of a window, by a mask whose distances are int64
[T, T] while it is made. Rows are padded: since 5.0 no other way is left. A head of its own stands
before the decoder and the classifier.

Not modelled: `sparse_prediction`, whose size is read back from the labels; regression
(`num_labels` 1) runs as a classification, whose few numbers take as much.
"""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from vrambudget.config.fields.batches import Task
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Field, Probability, Size, show
from vrambudget.dtypes import bool_
from vrambudget.engine.context import made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.body import EncoderBody
from vrambudget.models.parts.decoder import LayerType
from vrambudget.models.parts.encoder_model import tie_decoder
from vrambudget.models.parts.frequencies import FREQUENCIES
from vrambudget.models.parts.layers import Dropout, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss, masked_lm_loss
from vrambudget.models.parts.masks import Masks, bidirectional_mask, bidirectional_window_mask
from vrambudget.models.parts.modernbert_layers import Embeddings, Layer
from vrambudget.models.parts.outputs import Outputs
from vrambudget.models.parts.pooling import mean_of_tokens
from vrambudget.models.parts.rotary import RotaryByKind, RotaryEmbedding
from vrambudget.models.parts.windows import LayerTypes
from vrambudget.ops.creation import arange, made
from vrambudget.ops.elementwise import ACTIVATIONS, Activation
from vrambudget.ops.shape import open_slices, select, unsqueeze
from vrambudget.tape.events import Purpose


class Model(Module):
    """ModernBertModel."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.window = config.local_attention // 2
        self.embeddings = Embeddings(config)
        self.layers = [Layer(config, index) for index in range(config.num_hidden_layers)]
        self.final_norm = config.layer_norm()
        width = config.hidden_size // config.num_attention_heads
        self.rotary_emb = RotaryByKind(width, config.rope_types, RotaryEmbedding)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """[B, T] -> [B, T, C]."""
        position_ids = unsqueeze(arange(input_ids.shape[1]), 0)
        embeddings = hidden_states = self.embeddings(input_ids)
        masks: Masks = {
            "full_attention": bidirectional_mask(embeddings, attention_mask),
            "sliding_attention": bidirectional_window_mask(embeddings, attention_mask, self.window),
        }
        rotary = self.rotary_emb(position_ids, hidden_states.dtype)
        for layer in self.layers:
            kind = layer.attention_type
            hidden_states = layer(hidden_states, mask=masks[kind], rotary=rotary[kind])
        last_hidden_state: Tensor = self.final_norm(hidden_states)
        del embeddings  # held until here, by what the masks were made of (mask_kwargs)
        return last_hidden_state


class PredictionHead(Module):
    """ModernBertPredictionHead."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.dense = Linear(config.hidden_size, config.hidden_size, bias=config.classifier_bias)
        self.act = ACTIVATIONS[config.classifier_activation]
        self.norm = config.layer_norm()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[..., C] -> [..., C]."""
        y: Tensor = self.norm(self.act(self.dense(hidden_states)))
        return y


class ModernBertForMaskedLM(Module):
    """ModernBERT with a masked language modelling head."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.model = Model(config)
        self.head = PredictionHead(config)
        self.decoder = Linear(config.hidden_size, config.vocab_size, bias=config.decoder_bias)
        if config.tie_word_embeddings:
            tie_decoder(self.decoder, self.model.embeddings.tok_embeddings, None)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B, T] -> loss and logits [B, T, V]."""
        last_hidden_state = self.model(input_ids, attention_mask)
        features = self.head(last_hidden_state)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.decoder(features)
        del features  # an argument of a call that is over
        loss = masked_lm_loss(logits, labels)
        return Outputs(loss, logits)


class ModernBertForSequenceClassification(Module):
    """ModernBERT with a classifier of the first token, or of the mean of all."""

    def __init__(self, config: "ModernBertConfig") -> None:
        self.pools_mean = config.classifier_pooling == "mean"
        self.model = Model(config)
        self.head = PredictionHead(config)
        self.drop = Dropout(config.classifier_dropout)
        self.classifier = Linear(config.hidden_size, config.num_labels)

    def forward(
        self, input_ids: Tensor, labels: Tensor | None = None, attention_mask: Tensor | None = None
    ) -> Outputs:
        """[B, T], [B] -> loss and logits [B, num_labels]."""
        outputs = self.model(input_ids, attention_mask)  # held until this returns
        if self.pools_mean:
            if attention_mask is None:
                attention_mask = made("ones", input_ids.shape, bool_)
            last_hidden_state = mean_of_tokens(outputs, attention_mask)
        else:
            last_hidden_state = select(open_slices(outputs, 1), 1)  # [:, 0]
        pooled_output = self.head(last_hidden_state)
        pooled_output = self.drop(pooled_output)
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.classifier(pooled_output)
        loss = class_loss(logits, labels)
        return Outputs(loss, logits)


class ModernBertConfig(ModelConfig):
    """transformers' ModernBertConfig, with its defaults."""

    model_type: Literal["modernbert"] = "modernbert"
    pad_token_id: int | None = 50283
    vocab_size: Size = 50368
    hidden_size: Size = 768
    intermediate_size: Size = 1152
    num_hidden_layers: Size = 22
    num_attention_heads: Size = 12
    hidden_act: Activation = "gelu"
    max_position_embeddings: Size = 8192
    norm_bias: bool = False
    attention_bias: bool = False
    attention_dropout: Probability = 0.0
    layer_types: LayerTypes | None = None
    global_attn_every_n_layers: Size = 3
    local_attention: Size = Field(128, description="tokens of a window, half of them on each side")
    embedding_dropout: Probability = 0.0
    mlp_bias: bool = False
    mlp_dropout: Probability = 0.0
    decoder_bias: bool = True
    classifier_pooling: Literal["cls", "mean"] = "cls"
    classifier_dropout: Probability = 0.0
    classifier_bias: bool = False
    classifier_activation: Activation = "gelu"
    sparse_prediction: Literal[False] = False
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, dict[str, Any] | None] | None = None
    tie_word_embeddings: bool = True

    tasks = ("masked-lm", "seq-cls")
    loads_in_4bit = False
    checked_with = ("5.17", "5.23", "5.24")
    aliases: ClassVar[Mapping[str, str]] = {"hidden_activation": "hidden_act"}
    ignored_keys = frozenset(
        {
            *("initializer_cutoff_factor", "deterministic_flash_attn", "reference_compile"),
            *("global_rope_theta", "local_rope_theta", "sparse_pred_ignore_index"),
            *("norm_eps", "repad_logits_with_grad", "sliding_window"),
        }
    )

    @property
    def layer_kinds(self) -> list[LayerType]:
        """What each layer attends to: by the file, or all tokens in every third."""
        every = self.global_attn_every_n_layers
        layers = range(self.num_hidden_layers)
        usual = ["sliding_attention" if i % every else "full_attention" for i in layers]
        return list(self.layer_types or usual)  # type: ignore[arg-type]

    @property
    def rope_types(self) -> dict[LayerType, str]:
        """A key of FREQUENCIES for each kind of layer that there is."""
        given = self.rope_parameters or {}
        both = self.rope_scaling or {}
        types = {kind: {**(given.get(kind) or {}), **both} for kind in self.layer_kinds}
        return {kind: str(rope.get("rope_type", "default")) for kind, rope in types.items()}

    def layer_norm(self) -> LayerNorm:
        """Return one of the norms, its weights allocated."""
        return LayerNorm(self.hidden_size, bias=self.norm_bias)

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")
        if self.layer_types is not None and len(self.layer_types) != self.num_hidden_layers:
            yield (
                f"layer_types names {len(self.layer_types)} layers,"
                f" num_hidden_layers is {self.num_hidden_layers}"
            )
        for kind, name in self.rope_types.items():
            if name not in FREQUENCIES:
                known = ", ".join(FREQUENCIES)
                yield f"rope_parameters of {kind} has rope_type {show(name)}; known are {known}"

    def body(self) -> EncoderBody:
        """Return the model without a head, its weights allocated."""
        return EncoderBody(Model(self))

    def build(self, task: Task) -> ModernBertForMaskedLM | ModernBertForSequenceClassification:
        """Return the model, its weights allocated."""
        if task == "masked-lm":
            return ModernBertForMaskedLM(self)
        return ModernBertForSequenceClassification(self)
