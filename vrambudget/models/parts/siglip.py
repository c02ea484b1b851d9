"""SigLIP's vision tower, idle: its weights lie on the GPU while a batch of text goes by.

Source: models/siglip/modeling_siglip.py of transformers 5.17 (SiglipVisionModel).
Not modelled: images.
"""

from typing import Literal

from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Size
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter
from vrambudget.models.parts.layers import Embedding, LayerNorm, Linear
from vrambudget.ops.creation import arange
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


class _Weights(Module):
    """A weight and a bias of any shape: a convolution's, for example."""

    def __init__(self, weight: tuple[int, ...], bias: int) -> None:
        self.weight = Parameter(weight, context.options.dtype)
        self.bias = Parameter((bias,), context.options.dtype)


class SiglipVisionEmbeddings(Module):
    """SiglipVisionEmbeddings."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        width, patch = config.hidden_size, config.patch_size
        self.patch_embedding = _Weights((width, config.num_channels, patch, patch), width)
        self.positions = (config.image_size // patch) ** 2
        self.position_embedding = Embedding(self.positions, width)
        with made_for(Purpose.WEIGHTS):
            self.position_ids = arange(self.positions)


class SiglipAttention(Module):
    """SiglipAttention."""

    def __init__(self, width: int) -> None:
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.q_proj = Linear(width, width)
        self.out_proj = Linear(width, width)


class SiglipMLP(Module):
    """SiglipMLP."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        self.fc1 = Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = Linear(config.intermediate_size, config.hidden_size)


class SiglipEncoderLayer(Module):
    """SiglipEncoderLayer."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        self.layer_norm1 = LayerNorm(config.hidden_size)
        self.self_attn = SiglipAttention(config.hidden_size)
        self.layer_norm2 = LayerNorm(config.hidden_size)
        self.mlp = SiglipMLP(config)


class SiglipEncoder(Module):
    """SiglipEncoder."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        self.layers = [SiglipEncoderLayer(config) for _ in range(config.num_hidden_layers)]


class MultiheadAttention(Module):
    """torch.nn.MultiheadAttention."""

    def __init__(self, width: int) -> None:
        self.in_proj_weight = Parameter((3 * width, width), context.options.dtype)
        self.in_proj_bias = Parameter((3 * width,), context.options.dtype)
        self.out_proj = Linear(width, width)


class SiglipPoolingHead(Module):
    """SiglipMultiheadAttentionPoolingHead."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        width = config.hidden_size
        self.probe = Parameter((1, 1, width), context.options.dtype)
        self.attention = MultiheadAttention(width)
        self.layernorm = LayerNorm(width)
        self.mlp = SiglipMLP(config)


class SiglipVisionModel(Module):
    """SiglipVisionModel, without its forward."""

    def __init__(self, config: SiglipVisionConfig) -> None:
        self.embeddings = SiglipVisionEmbeddings(config)
        self.encoder = SiglipEncoder(config)
        self.post_layernorm = LayerNorm(config.hidden_size)
        if config.vision_use_head:
            self.head = SiglipPoolingHead(config)
        again = arange(self.embeddings.positions)  # _init_weights copies it in once more
        del again
