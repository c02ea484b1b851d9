"""ViT as transformers writes it (models/vit/modeling_vit.py), for images of the model's own size.

A convolution cuts the image into patches, a class token is put before them, learned positions are
added; LayerNorm before each part; the classifier reads the class token.

Not modelled: interpolated positions, masked patches, the pooler.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig, divides
from vrambudget.config.settings import Probability, Size
from vrambudget.declared import Before
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.models.parts.attention import Attended, attend
from vrambudget.models.parts.encoder import heads
from vrambudget.models.parts.layers import CheckpointedLayer, Dropout, LayerNorm, Linear
from vrambudget.models.parts.losses import class_loss
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.convolution import convolution
from vrambudget.ops.elementwise import ACTIVATIONS, Activation, add
from vrambudget.ops.shape import (
    cat,
    contiguous,
    expand,
    open_slices,
    reshape,
    select,
    transpose,
    view,
)
from vrambudget.tape.events import Purpose


def _pair(value: Any) -> Any:
    """Return height and width, from one number or a list of two."""
    return tuple(value) if isinstance(value, list | tuple) else (value, value)


Pair = Annotated[tuple[Size, Size], Before(_pair)]


class PatchConvolution(Module):
    """nn.Conv2d whose kernel is its stride: weight [C, channels, p, q]."""

    def __init__(self, config: "ViTConfig") -> None:
        shape = (config.hidden_size, config.num_channels, *config.patch_size)
        self.weight = Parameter(shape, context.options.dtype)
        self.bias = Parameter((config.hidden_size,), context.options.dtype)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, C, h / p, w / q]."""
        return convolution(pixel_values, self.weight, self.bias)


class PatchEmbeddings(Module):
    """ViTPatchEmbeddings."""

    def __init__(self, config: "ViTConfig") -> None:
        self.projection = PatchConvolution(config)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, patches, C], channels outermost in memory."""
        y: Tensor = self.projection(pixel_values)
        return transpose(view(y, *y.shape[:2], -1), 1, 2)


class Embeddings(Module):
    """ViTEmbeddings."""

    def __init__(self, config: "ViTConfig") -> None:
        width, dtype = config.hidden_size, context.options.dtype
        self.cls_token = Parameter((1, 1, width), dtype)
        self.patch_embeddings = PatchEmbeddings(config)
        self.position_embeddings = Parameter((1, config.default_block, width), dtype)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, patches + 1, C]."""
        embeddings = self.patch_embeddings(pixel_values)
        cls_tokens = expand(self.cls_token, pixel_values.shape[0], *self.cls_token.shape[1:])
        embeddings = cat([cls_tokens, embeddings], dim=1)
        embeddings = add(embeddings, self.position_embeddings)
        dropped: Tensor = self.dropout(embeddings)
        return dropped


class Attention(Module):
    """ViTAttention."""

    def __init__(self, config: "ViTConfig") -> None:
        width = config.hidden_size
        self.head_dim = width // config.num_attention_heads
        self.dropout_p = config.attention_probs_dropout_prob
        self.q_proj = Linear(width, width, bias=config.qkv_bias)
        self.k_proj = Linear(width, width, bias=config.qkv_bias)
        self.v_proj = Linear(width, width, bias=config.qkv_bias)
        self.o_proj = Linear(width, width)

    def forward(self, hidden_states: Tensor) -> Attended:
        """[B, T, C] -> [B, T, C] and the weights."""
        query = heads(self.q_proj(hidden_states), self.head_dim)
        key = heads(self.k_proj(hidden_states), self.head_dim)
        value = heads(self.v_proj(hidden_states), self.head_dim)
        dropout_p = self.dropout_p if self.training else 0.0
        output, weights = attend(query, key, value, None, dropout_p=dropout_p, is_causal=False)
        output = contiguous(reshape(output, *output.shape[:2], -1))
        output = self.o_proj(output)
        return output, weights


class MLP(Module):
    """ViTMLP."""

    def __init__(self, config: "ViTConfig") -> None:
        self.act = ACTIVATIONS[config.hidden_act]
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.act(hidden_states)
        projected: Tensor = self.fc2(hidden_states)
        return projected


class Layer(CheckpointedLayer):
    """ViTLayer."""

    def __init__(self, config: "ViTConfig") -> None:
        self.attention = Attention(config)
        self.layernorm_before = LayerNorm(config.hidden_size)
        self.layernorm_after = LayerNorm(config.hidden_size)
        self.mlp = MLP(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C]."""
        residual = hidden_states
        hidden_states = self.layernorm_before(hidden_states)
        hidden_states, _ = self.attention(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = add(hidden_states, residual)
        residual = hidden_states
        hidden_states = self.layernorm_after(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return add(hidden_states, residual)


class Model(Module):
    """ViTModel."""

    def __init__(self, config: "ViTConfig") -> None:
        self.embeddings = Embeddings(config)
        self.layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.layernorm = LayerNorm(config.hidden_size)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """[B, channels, h, w] -> [B, patches + 1, C]."""
        embedding_output = self.embeddings(pixel_values)
        hidden_states = embedding_output
        for layer in self.layers:
            hidden_states = layer(hidden_states)
        sequence_output: Tensor = self.layernorm(hidden_states)
        del embedding_output  # held until here
        return sequence_output


class ViTForImageClassification(Module):
    """ViT with a classifier of the class token."""

    def __init__(self, config: "ViTConfig") -> None:
        self.vit = Model(config)
        self.classifier = Linear(config.hidden_size, config.num_labels)

    def forward(
        self,
        pixel_values: Tensor,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | None = None,
    ) -> Outputs:
        """[B, channels, h, w], [B] -> loss and logits [B, num_labels]."""
        sequence_output = self.vit(pixel_values)
        pooled_output = select(open_slices(sequence_output, 1), 1)
        pooled_output = open_slices(pooled_output, 1)  # [:, 0, :]
        with made_for(Purpose.LOGITS_AND_LOSS):
            logits = self.classifier(pooled_output)
        loss = class_loss(logits, labels, num_items_in_batch)
        return Outputs(loss, logits)


class ViTConfig(ModelConfig):
    """transformers' ViTConfig, with its defaults."""

    model_type: Literal["vit"] = "vit"
    hidden_size: Size = 768
    num_hidden_layers: Size = 12
    num_attention_heads: Size = 12
    intermediate_size: Size = 3072
    hidden_act: Activation = "gelu"
    hidden_dropout_prob: Probability = 0.0
    attention_probs_dropout_prob: Probability = 0.0
    image_size: Pair = (224, 224)
    patch_size: Pair = (16, 16)
    num_channels: Size = 3
    qkv_bias: bool = True

    tasks = ("image-cls",)
    reads_attention_mask = False
    loads_in_4bit = False
    followed_in = ("5.17",)
    ignored_keys = frozenset({"encoder_stride", "pooler_output_size", "pooler_act"})

    @property
    def default_block(self) -> int:
        """Patches, and the class token."""
        (height, width), (p, q) = self.image_size, self.patch_size
        return (height // p) * (width // q) + 1

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return (self.num_channels, *self.image_size)

    def for_job(self, job: Job) -> Self:
        """Return the configuration that trains `job`: positions are as many as its patches."""
        config = super().for_job(job)
        if job.image_size is None:
            return config
        size = (job.image_size, job.image_size)
        return config.model_copy(update={"image_size": size})

    def problems(self) -> Iterator[str]:
        """Yield what makes no model."""
        yield from divides(self, "num_attention_heads", into="hidden_size")
        if any(
            image < patch for image, patch in zip(self.image_size, self.patch_size, strict=True)
        ):
            yield f"patch_size is {self.patch_size}, larger than image_size = {self.image_size}"

    def build(self, task: Task) -> ViTForImageClassification:
        """Return the model, its weights allocated."""
        del task  # there is one
        return ViTForImageClassification(self)
