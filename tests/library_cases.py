"""Live models of other libraries that no family knows: `vrambudget.preflight` follows them.

As in `live_cases`: each function returns a model and what preflight is told of it; a script's
`python library_cases.py NAME FILE` trains it. timm 1.0, diffusers 0.42, sentence-transformers 6.2.
"""

import torch
import transformers
from live_cases import main, mean_square


def images(model, *shape):
    return model, {"inputs": [torch.zeros(*shape)], "loss": mean_square}


def timm_vit():
    import timm  # noqa: PLC0415

    return images(timm.create_model("vit_tiny_patch16_224", num_classes=10), 4, 3, 224, 224)


def timm_swin():
    import timm  # noqa: PLC0415

    sizes = {"embed_dim": 32, "depths": (1, 1, 1, 1), "num_classes": 10}
    return images(timm.create_model("swin_tiny_patch4_window7_224", **sizes), 2, 3, 224, 224)


def timm_resnet():
    import timm  # noqa: PLC0415

    return images(timm.create_model("resnet18", num_classes=10), 4, 3, 96, 96)


def timm_deit3():
    import timm  # noqa: PLC0415

    sizes = {"depth": 3, "num_classes": 7, "drop_path_rate": 0.1}
    return images(timm.create_model("deit3_small_patch16_224", **sizes), 3, 3, 224, 224)


def timm_resmlp():
    import timm  # noqa: PLC0415

    return images(timm.create_model("resmlp_12_224", num_classes=10), 4, 3, 224, 224)


def timm_regnet():
    import timm  # noqa: PLC0415

    return images(timm.create_model("regnety_002", num_classes=10), 4, 3, 96, 96)


def diffusers_unet():
    from diffusers import UNet2DConditionModel  # noqa: PLC0415

    model = UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(32, 64),
        layers_per_block=1,
        cross_attention_dim=48,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        norm_num_groups=8,
    )
    inputs = {
        "sample": torch.zeros(2, 4, 16, 16),
        "timestep": torch.zeros(2, dtype=torch.long),
        "encoder_hidden_states": torch.zeros(2, 10, 48),
    }
    return model, {"inputs": inputs, "loss": mean_square}


def diffusers_dit():
    from diffusers import DiTTransformer2DModel  # noqa: PLC0415

    model = DiTTransformer2DModel(
        num_attention_heads=4,
        attention_head_dim=16,
        in_channels=4,
        num_layers=2,
        sample_size=16,
        patch_size=2,
        norm_num_groups=8,
    )
    inputs = {
        "hidden_states": torch.zeros(2, 4, 16, 16),
        "timestep": torch.zeros(2, dtype=torch.long),
        "class_labels": torch.zeros(2, dtype=torch.long),
    }
    return model, {"inputs": inputs, "loss": mean_square}


def diffusers_flux():
    from diffusers import FluxTransformer2DModel  # noqa: PLC0415

    model = FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32,
        pooled_projection_dim=24,
        axes_dims_rope=(4, 4, 8),
    )
    inputs = {
        "hidden_states": torch.zeros(2, 64, 16),
        "encoder_hidden_states": torch.zeros(2, 20, 32),
        "pooled_projections": torch.zeros(2, 24),
        "timestep": torch.zeros(2),
        "img_ids": torch.zeros(64, 3),
        "txt_ids": torch.zeros(20, 3),
    }
    return model, {"inputs": inputs, "loss": mean_square}


def diffusers_sd3():
    from diffusers import SD3Transformer2DModel  # noqa: PLC0415

    model = SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=48,
        caption_projection_dim=64,
        pooled_projection_dim=32,
        pos_embed_max_size=16,
    )
    inputs = {
        "hidden_states": torch.zeros(2, 4, 16, 16),
        "encoder_hidden_states": torch.zeros(2, 11, 48),
        "pooled_projections": torch.zeros(2, 32),
        "timestep": torch.zeros(2),
    }
    return model, {"inputs": inputs, "loss": mean_square}


def diffusers_vae():
    from diffusers import AutoencoderKL  # noqa: PLC0415

    model = AutoencoderKL(
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        norm_num_groups=8,
        latent_channels=4,
    )
    return images(model, 2, 3, 32, 32)


class Sentences(torch.nn.Module):
    """BERT, and what sentence-transformers puts on top of it."""

    def __init__(self):
        from sentence_transformers import models  # noqa: PLC0415

        super().__init__()
        sizes = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128}
        sizes |= {"num_attention_heads": 4, "vocab_size": 300}
        self.bert = transformers.BertModel(transformers.BertConfig(**sizes))
        self.pooling = models.Pooling(64, pooling_mode="mean")
        self.dense, self.normalize = models.Dense(64, 32), models.Normalize()

    def forward(self, input_ids, attention_mask):
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        features = {"token_embeddings": tokens, "attention_mask": attention_mask}
        return self.normalize(self.dense(self.pooling(features)))["sentence_embedding"]


def sentence_transformer():
    ids = torch.ones(4, 24, dtype=torch.long)
    inputs = {"input_ids": ids, "attention_mask": torch.ones(4, 24, dtype=torch.long)}
    return Sentences(), {"inputs": inputs, "loss": mean_square}


CASES = {
    case.__name__: case
    for case in (
        *(timm_vit, timm_swin, timm_resnet, diffusers_unet, diffusers_dit, diffusers_flux),
        *(diffusers_vae, sentence_transformer, timm_deit3, timm_resmlp, timm_regnet),
        diffusers_sd3,
    )
}
NEEDED = {"timm": "timm", "diffusers": "diffusers", "sentence": "sentence_transformers"}


if __name__ == "__main__":
    main(CASES)
