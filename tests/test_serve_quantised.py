"""Quantised weights of a vLLM server: the tensors of a layer by hand, and what is refused.

Whole models are held against published logs in test_serve.
"""

import json
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.serving.linear import ServedLinear
from vrambudget.serving.quantised import EightBitWeights, IgnoredLayers, PackedWeights
from vrambudget.serving.quantization_config import USUAL, cache_in_fp8, quantisation_of
from vrambudget.serving.weights import load_decoder, weight_bytes

H100, A100, L40S = find_gpu("h100"), find_gpu("a100-40gb"), find_gpu("l40s")
K, QUERIES, SHARED = 4096, 4096, 1024
N = QUERIES + 2 * SHARED
NAMES = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
QKV = ServedLinear("model.layers.0.self_attn.qkv_proj", NAMES, K, (QUERIES, SHARED, SHARED), K)
GROUPS = K // 128
FLOAT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}


def compressed(weights, inputs=None, **others):
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **others}


def read(values, asked=None, gpu=H100):
    return quantisation_of(values, asked, gpu, where="config.json")


@pytest.mark.parametrize(
    ("method", "gpu", "tensors"),
    [
        pytest.param(
            USUAL["awq_marlin"],
            A100,
            [
                (K * N // 2, K * N // 2),
                (GROUPS * N * 2, GROUPS * N * 2),
                (GROUPS * N // 2, GROUPS * N // 2),
                (0, 4 * 108),  # the workspace: an int32 for each multiprocessor
            ],
            id="AWQ by Marlin",
        ),
        pytest.param(
            USUAL["awq_marlin"],
            H100,
            [
                (K * N // 2, K * N // 2),
                (GROUPS * N * 2, None),
                (GROUPS * N // 2, GROUPS * N * 2),  # zeros times scales
            ],
            id="AWQ by Machete",
        ),
        pytest.param(
            USUAL["awq"],
            H100,
            [(K * N // 2, None), (GROUPS * N * 2, None), (GROUPS * N // 2, None)],
            id="AWQ as it is",
        ),
        pytest.param(
            USUAL["gptq_marlin"],
            A100,
            [
                (K * N // 2, K * N // 2),
                (GROUPS * N * 2, GROUPS * N * 2),
                (GROUPS * N // 2, 0),  # symmetric: zeros are dropped
                (4 * K, 0),
                (0, 4 * 108),
            ],
            id="GPTQ by Marlin",
        ),
        pytest.param(
            PackedWeights("gptq", 4, 128, zeros=False, ordered=True),
            H100,
            [
                (K * N // 2, K * N // 2),
                (GROUPS * N * 2, None),
                (GROUPS * N // 2, None),
                (4 * K, None),
                (0, 4 * K),
            ],
            id="GPTQ with desc_act by Machete",
        ),
        pytest.param(
            PackedWeights("wNa16", 8, -1, zeros=False, ordered=False),
            A100,
            [(K * N, K * N), (N * 2, N * 2), (16, None)],
            id="8 bits by AllSpark",
        ),
        pytest.param(
            EightBitWeights("fp8", "tensor", static=True),
            H100,
            [(K * N, None), (12, 4), (12, 4)],
            id="fp8",
        ),
        pytest.param(
            EightBitWeights("fp8", "block"),
            L40S,
            [(K * N, None), (4 * 48 * 32, None)],
            id="fp8 blocks",
        ),
        pytest.param(
            EightBitWeights("fp8", "channel"),
            A100,
            [(K * N, K * N), (0, 4 * 108), (4 * N, 2 * N)],
            id="fp8 by Marlin",
        ),
        pytest.param(USUAL["fp8"], H100, [(2 * K * N, K * N), (0, 4)], id="fp8 as it is loaded"),
        pytest.param(
            EightBitWeights("int8", "tensor", static=True, asymmetric=True),
            A100,
            [(K * N, None), (12, 4 * N), (4, 4), (0, 4 * N), (1, 4)],
            id="int8",
        ),
    ],
)
def test_the_tensors_of_a_layer(method, gpu, tensors):
    assert list(method.parts(QKV, gpu)) == tensors


def test_scales_are_whole_on_ranks_whose_columns_have_an_order():
    part = ServedLinear("down_proj", ("down_proj",), K // 2, (K,), K)
    ordered, plain = (
        list(PackedWeights("gptq", 4, 128, zeros=False, ordered=o).parts(part, A100))
        for o in (True, False)
    )
    assert ordered[1][0] == 2 * plain[1][0] == GROUPS * K * 2


@pytest.mark.parametrize(
    ("values", "asked", "expected"),
    [
        (None, None, None),
        (None, "fp8", USUAL["fp8"]),
        (None, "awq", USUAL["awq"]),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
            None,
            PackedWeights(
                "awq", 4, 64, zeros=True, ordered=False, ignored=IgnoredLayers((), "within")
            ),
        ),
        (
            {"quant_method": "gptq", "bits": 8, "group_size": -1, "desc_act": True, "sym": True},
            None,
            PackedWeights("gptq", 8, -1, zeros=False, ordered=False),
        ),
        (
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False},
            None,
            PackedWeights("gptq", 4, 128, zeros=False, ordered=True, repacked=False),
        ),
        (
            {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]},
            "fp8",
            EightBitWeights(
                "fp8", "tensor", static=True, ignored=IgnoredLayers(("lm_head",), "equal")
            ),
        ),
        (
            compressed({"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128}),
            None,
            PackedWeights(
                "wNa16", 4, 128, zeros=False, ordered=False, ignored=IgnoredLayers((), "pattern")
            ),
        ),
        (
            compressed(FLOAT, INPUTS, ignore=["lm_head"]),
            None,
            EightBitWeights("fp8", "channel", ignored=IgnoredLayers(("lm_head",), "pattern")),
        ),
        (
            compressed({**FLOAT, "type": "int", "strategy": "tensor"}, {**INPUTS, "type": "int"}),
            None,
            EightBitWeights("int8", "tensor", ignored=IgnoredLayers((), "pattern")),
        ),
    ],
)
def test_a_configuration_says_how(values, asked, expected):
    assert read(values, asked) == expected


@pytest.mark.parametrize(
    ("way", "names", "is_one"),
    [
        ("equal", ("model.layers.0.self_attn.q_proj",), True),
        ("equal", ("self_attn",), False),
        ("within", ("self_attn",), True),
        ("pattern", ("re:.*self_attn.*",), True),
        ("pattern", ("re:self_attn.*",), False),
    ],
)
def test_layers_that_stay_in_16_bit_are_named_in_each_methods_way(way, names, is_one):
    assert IgnoredLayers(names, way).has(QKV) is is_one


@pytest.mark.parametrize(
    ("values", "asked", "words"),
    [
        ({"quant_method": "quark"}, None, "weights quantised by 'quark' are not modelled"),
        ({"quant_method": "awq", "bits": 4, "group_size": 128}, None, "zero_point is None"),
        ({"quant_method": "awq", "bits": "4"}, None, "bits is '4'; it should be a whole number"),
        ({"quant_method": "gptq"}, "awq", "servers refuse that"),
        ({"quant_method": "gptq", "lm_head": True}, None, "lm_head = True is not modelled"),
        (
            {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [64, 64]},
            None,
            "weight_block_size",
        ),
        (compressed({**FLOAT, "num_bits": 4}), None, "float of 4 bits by channel"),
        (compressed(FLOAT, sparsity_config={"format": "sparse-24"}), None, "2:4 sparsity"),
        ({"quant_method": "compressed-tensors"}, None, "config_groups is None"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(values, asked, words):
    with pytest.raises(VramBudgetError, match=words):
        read(values, asked)


def test_a_card_too_old_is_refused():
    with pytest.raises(VramBudgetError, match="no awq for Tesla V100"):
        read(None, "awq", find_gpu("v100-16gb"))


def test_a_shape_without_a_kernel_is_refused():
    odd = ServedLinear("down_proj", ("down_proj",), 100, (96,), 100)
    with pytest.raises(NotModelledError, match=r"down_proj \[96, 100\]"):
        list(USUAL["gptq_marlin"].parts(odd, A100))
    plain = next(iter(USUAL["awq_marlin"].parts(odd, A100)))
    assert plain == (100 * 96 // 2, None)  # AWQ's own


def test_a_checkpoint_may_say_that_its_cache_is_fp8():
    assert cache_in_fp8(compressed(FLOAT, INPUTS, kv_cache_scheme={"num_bits": 8}))
    assert not cache_in_fp8(compressed(FLOAT, INPUTS))


def test_the_command_reads_a_quantised_configuration(tmp_path, capsys):
    path = tmp_path / "config.json"
    small = {"model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 16, "intermediate_size": 5632, "max_position_embeddings": 2048}
    way = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    path.write_text(json.dumps({**small, **heads, "quantization_config": way}))
    assert main(["serve", str(path), "--gpu", "24GB"]) == 0
    assert "awq, 4 bits in groups of 128" in capsys.readouterr().out
    assert main(["fit", str(path), "--gpu", "24GB", "--longest-model-len"]) == 0


def test_quantised_experts_are_refused(capsys):
    assert main(["serve", "mixtral-8x7b", "--gpu", "h100", "--quantization", "fp8"]) == 2
    assert (
        "experts in fp8, quantised as they are loaded, are not modelled" in capsys.readouterr().err
    )


def test_a_checkpoint_of_bitsandbytes_which_newer_versions_do_not_load_is_refused(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps({"model_type": "llama", "quantization_config": {"quant_method": "bitsandbytes"}})
    )
    assert main(["serve", str(path), "--gpu", "h100"]) == 2
    assert "quantised by 'bitsandbytes' are not modelled" in capsys.readouterr().err


REHEARSED = Path(__file__).parent / "records" / "serving" / "vllm-0.19.0-rehearsed-loads.jsonl"
LOADS = [json.loads(line) for line in REHEARSED.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("gpu", sorted({load["gpu"] for load in LOADS}))
def test_weights_are_those_that_vllm_loads_on_a_virtual_gpu(gpu):
    """Virtual records: three layers of Llama 3.1 8B and Qwen2.5 7B, two of gpt-oss."""
    card = find_gpu(gpu)
    for load in (load for load in LOADS if load["gpu"] == gpu):
        values, asked = load["model"], load["quantization"]
        config = load_decoder(values, where="a record")
        how = quantisation_of(values.get("quantization_config"), asked, card, where="a record")
        layers = range(config.num_hidden_layers)
        quantised = None if how is None else (how, card)
        found = weight_bytes(config, layers, itemsize=2, tp=1, quantised=quantised)
        assert abs(found / load["bytes"] - 1) < 0.0005, load
