"""Training steps of small models of transformers that read pictures among words: one a row.

As in step_cases.py; `python vision_cases.py NAME FILE` runs one on the card, as a rehearsal does.
"""

import sys

import torch
from step_cases import rehearsed
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
from transformers.utils import logging

PICTURE, WORD, ROWS = 1000, 5, 2  # tokens of both, and rows of a batch
TEXT = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 2000,
}
EYES = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
TOKENS = {
    "image_token_id": PICTURE,
    "video_token_id": PICTURE + 1,
    "vision_start_token_id": PICTURE + 2,
    "vision_end_token_id": PICTURE + 3,
}


def row_of(tokens, words=64):
    """Return ids [rows, words + tokens] with the tokens of a picture behind ten words."""
    ids = torch.full((ROWS, words + tokens), WORD)
    ids[:, 10 : 10 + tokens] = PICTURE
    return ids


def by_grid(kind, eyes, **text):
    """A picture of 32 x 48 patches, of which each four are a token; its grid decides sizes."""
    text = {**TEXT, "rope_parameters": {"rope_theta": 1e6, "mrope_section": [8, 12, 12]}, **text}
    config = CONFIG_MAPPING[kind](text_config=text, vision_config=eyes, **TOKENS)
    look = config.vision_config
    patch = 3 * look.temporal_patch_size * look.patch_size**2
    ids = row_of(32 * 48 // 4)
    ids[:, 9] = TOKENS["vision_start_token_id"]
    return config, {
        "input_ids": ids,
        "pixel_values": torch.zeros(ROWS * 32 * 48, patch),
        "image_grid_thw": torch.tensor([[1, 32, 48]] * ROWS),
        "mm_token_type_ids": (ids == PICTURE).int(),
    }


def qwen2_vl(device):
    """Patches that all see each other."""
    eyes = {"depth": 2, "embed_dim": 128, "hidden_size": 256, "num_heads": 4, "mlp_ratio": 2}
    return trained(device, *by_grid("qwen2_vl", eyes))


def qwen2_5_vl(device):
    """Patches in windows in the first of two layers."""
    eyes = {"depth": 2, "out_hidden_size": 256, "num_heads": 4, "fullatt_block_indexes": [1]}
    return trained(device, *by_grid("qwen2_5_vl", {**EYES, **eyes}))


def qwen3_vl(device):
    """What the first layer sees goes to the first layer of the text."""
    eyes = {"depth": 2, "out_hidden_size": 256, "num_heads": 4, "deepstack_visual_indexes": [0]}
    eyes["num_position_embeddings"] = 256
    return trained(device, *by_grid("qwen3_vl", {**EYES, **eyes}, head_dim=64))


def of_pixels(kind, side, tokens, eyes, text=None, *, pictures=ROWS, **more):
    """Pictures of so many pixels along each side, of one size in all rows."""
    config = CONFIG_MAPPING[kind](
        text_config={**TEXT, **(text or {})}, vision_config={**EYES, **eyes}, **more
    )
    ids = row_of(tokens)
    return config, {"input_ids": ids, "pixel_values": torch.zeros(pictures, 3, side, side)}


def gemma3(device):
    """Pictures whose tokens see each other, pooled to 64 of them."""
    eyes = {"image_size": 224, "patch_size": 14}
    tokens = {"image_token_index": PICTURE, "boi_token_index": 1001, "eoi_token_index": 1002}
    text = {"head_dim": 64, "sliding_window": 128}
    config, given = of_pixels("gemma3", 224, 64, eyes, text, mm_tokens_per_image=64, **tokens)
    given["token_type_ids"] = (given["input_ids"] == PICTURE).long()
    return trained(device, config, given)


def llava(device):
    """CLIP's patches of the layer before the last."""
    eyes = {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14}
    text = {"model_type": "llama"}
    return trained(device, *of_pixels("llava", 336, 576, eyes, text, image_token_index=PICTURE))


def paligemma(device):
    """SigLIP's patches before a prefix that sees all of itself."""
    eyes = {"model_type": "siglip_vision_model", "image_size": 224, "patch_size": 14}
    eyes |= {"projection_dim": 256, "vision_use_head": False}
    text, more = {"model_type": "gemma", "head_dim": 64}, {"image_token_index": PICTURE}
    config, given = of_pixels("paligemma", 224, 256, eyes, text, projection_dim=256, **more)
    given["token_type_ids"] = (given["input_ids"] == WORD).long()
    return trained(device, config, given)


def mistral3(device):
    """Pixtral's patches, of which each four are merged."""
    eyes = {"model_type": "pixtral", "image_size": 448, "patch_size": 14, "head_dim": 32}
    text, more = {"model_type": "mistral", "head_dim": 64}, {"image_token_index": PICTURE}
    config, given = of_pixels("mistral3", 448, 256, eyes, text, spatial_merge_size=2, **more)
    given["image_sizes"] = torch.tensor([[448, 448]] * ROWS)
    return trained(device, config, given)


def internvl(device):
    """Two tiles a row, shuffled to a quarter of their patches."""
    eyes = {"image_size": [448, 448], "patch_size": [14, 14]}
    text, more = {"model_type": "qwen2"}, {"image_token_id": PICTURE}
    return trained(device, *of_pixels("internvl", 448, 512, eyes, text, pictures=2 * ROWS, **more))


def trained(device, config, given):
    """Return a step of AdamW under autocast, and what it is given."""
    logging.set_verbosity_error()
    model = AutoModelForImageTextToText.from_config(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = given["input_ids"]
    given |= {"attention_mask": torch.ones_like(ids), "labels": ids.clone()}

    def step(given):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(**given).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, ({name: x.to(device) for name, x in given.items()},)


CASES = {
    case.__name__: case
    for case in (
        *(qwen2_vl, qwen2_5_vl, qwen3_vl, gemma3, llava),
        *(paligemma, mistral3, internvl),
    )
}

ASK_CUDNN = {"qwen3_vl", "internvl"}
"""Of which convolutions take workspaces that cuDNN alone names."""

if __name__ == "__main__":
    rehearsed(CASES[sys.argv[1]], sys.argv[2])
