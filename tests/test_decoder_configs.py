"""What decoders' configurations decide: which layers slide, which masks are made, what rotates."""

from typing import Any

import pytest

import vrambudget
from vrambudget.errors import VramBudgetError
from vrambudget.models import config_class


def parsed(model_type: str, **values: Any) -> Any:
    return config_class(model_type).parse({"model_type": model_type, **values})


# F: full attention, S: sliding window; layers, then the masks that a forward pass makes
LAYERS = [
    ("llama", {}, "FFFF", "F"),
    ("mistral", {"sliding_window": 4096}, "SSSS", "S"),
    ("mistral", {"sliding_window": None}, "FFFF", "F"),
    ("phi3", {}, "FFFF", "F"),
    ("phi3", {"sliding_window": 2047}, "SSSS", "S"),
    # use_sliding_window is off unless asked for, whatever sliding_window says
    ("qwen2", {"sliding_window": 128, "max_window_layers": 1}, "FFFF", "F"),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "FSSS", "FS"),
    ("qwen3", {"use_sliding_window": True}, "FFFF", "F"),  # 28 layers come before the first
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, "SSSS", "FS"),
    ("qwen3_moe", {}, "FFFF", "F"),
    ("qwen3_moe", {"use_sliding_window": True}, "SSSS", "S"),
    ("qwen2_moe", {}, "FFFF", "FS"),
    ("qwen2_moe", {"use_sliding_window": True, "max_window_layers": 2}, "SFFF", "FS"),
    ("gemma2", {}, "SFSF", "FS"),
    ("gemma2", {"layer_types": ["full_attention"] * 4}, "FFFF", "FS"),  # both masks all the same
    ("olmo3", {}, "SSSF", "FS"),
    ("exaone4", {"sliding_window_pattern": 2}, "SFSF", "FS"),
    ("smollm3", {"sliding_window": 8}, "FFFF", "F"),
    ("smollm3", {"sliding_window": 8, "use_sliding_window": True}, "FFFS", "FS"),
]


@pytest.mark.parametrize(("model_type", "values", "layers", "masks"), LAYERS)
def test_which_layers_slide(
    model_type: str, values: dict[str, Any], layers: str, masks: str
) -> None:
    config = parsed(model_type, num_hidden_layers=4, **values)

    assert "".join(kind[0].upper() for kind in config.layer_kinds) == layers
    assert "".join(kind[0].upper() for kind in config.mask_kinds) == masks


ROTARY = [
    ("llama", {}, "default", 128),
    ("llama", {"rope_scaling": None}, "default", 128),
    ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "llama3", 128),
    ("llama", {"rope_scaling": {"type": "yarn"}}, "yarn", 128),
    ("phi3", {"rope_scaling": {"type": "su"}}, "longrope", 96),
    ("phi3", {"partial_rotary_factor": 0.75, "num_attention_heads": 24}, "default", 96),
    ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "default", 48),
    ("gpt_neox", {}, "default", 24),
    ("gpt_neox", {"rotary_pct": 1.0}, "default", 96),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "default", 48),
    ("gpt_neox", {"rope_parameters": {"partial_rotary_factor": 1}}, "default", 96),
]


@pytest.mark.parametrize(("model_type", "values", "rope_type", "width"), ROTARY)
def test_how_much_of_a_head_rotates(
    model_type: str, values: dict[str, Any], rope_type: str, width: int
) -> None:
    config = parsed(model_type, **values)

    assert (config.rope_type, config.rotary_width) == (rope_type, width)


MISTAKES = [
    ("llama", {"rope_scaling": {"rope_type": "yarm"}}, "rope_scaling has rope_type 'yarm'"),
    ("qwen3", {"rope_parameters": {"type": 3}}, "rope_parameters has rope_type '3'"),
    ("gpt_neox", {"num_attention_heads": 7}, "num_attention_heads is 7, which does not divide"),
    ("opt", {"hidden_size": 770}, "num_attention_heads is 12, which does not divide"),
    ("mistral", {"num_key_value_heads": 5}, "num_key_value_heads is 5, which does not divide"),
    ("gemma2", {"sliding_window": None}, "sliding_window is null"),
    ("gemma2", {"layer_types": ["full_attention"]}, "layer_types names 1 layers"),
    ("exaone4", {"sliding_window": None}, "sliding_window is null, which takes layer_types"),
    ("exaone4", {"sliding_window_pattern": "LLLG"}, "which takes layer_types beside it"),
    ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers names 1 layers"),
    (
        "qwen2",
        {"num_hidden_layers": 1, "layer_types": ["sliding_attention"]},
        "use_sliding_window is false",
    ),
    ("gemma", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
]


@pytest.mark.parametrize(("model_type", "values", "message"), MISTAKES)
def test_mistakes_are_named(model_type: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(VramBudgetError) as caught:
        parsed(model_type, **values)

    assert message in caught.value.message


def test_heads_without_a_width_share_the_hidden_size() -> None:
    assert parsed("llama", hidden_size=640, num_attention_heads=5).head_width == 128
    assert parsed("mistral", hidden_size=640, num_attention_heads=8, head_dim=96).head_width == 96
    assert parsed("qwen3", hidden_size=640, num_attention_heads=32).head_width == 128
    with pytest.raises(VramBudgetError, match="does not divide hidden_size"):
        parsed("mistral", hidden_size=640, num_attention_heads=24)
    with pytest.raises(VramBudgetError, match="does not divide hidden_size"):  # not even then
        parsed("llama", hidden_size=640, num_attention_heads=24, head_dim=96)


def test_what_saved_files_carry_is_known() -> None:
    qwen = parsed("qwen2", use_mrope=False, rope_theta=1e6, attention_dropout=0.0)
    opt = parsed("opt", _remove_final_layer_norm=False, activation_dropout=0.0, layerdrop=0.0)
    gemma = parsed("gemma2", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=256)

    assert qwen.unknown_keys == opt.unknown_keys == gemma.unknown_keys == ()


def test_kimi_k2_is_read_as_deepseek_v3_whose_class_it_names() -> None:
    heads = {"num_attention_heads": 64, "num_key_value_heads": 64}
    sizes = {"hidden_size": 7168, "num_hidden_layers": 61, **heads}
    experts = {"n_routed_experts": 384, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1}
    published = {**sizes, **experts, "vocab_size": 163_840, "max_position_embeddings": 131_072}
    kimi, deepseek = (
        vrambudget.estimate(
            {"model_type": name, **published}, block=16, precision="bf16", mode="eval"
        )
        for name in ("kimi_k2", "deepseek_v3")
    )
    assert round(kimi.parameters.total / 1e12, 2) == 1.03  # "1T"
    assert kimi.peak == deepseek.peak
