"""Quantised weights of an SGLang server: the tensors of a layer by hand, and what is refused."""

import json

import pytest

from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import NotModelledError
from vrambudget.serving import sglang
from vrambudget.serving.linear import Linear
from vrambudget.serving.options import SglangOptions
from vrambudget.serving.sglang_quantised import sglang_quantisation
from vrambudget.serving.weights import load_decoder

H100, A100, T4 = find_gpu("h100"), find_gpu("a100-40gb"), find_gpu("t4")
K, QUERIES, SHARED = 4096, 4096, 1024
N = QUERIES + 2 * SHARED
NAMES = tuple(f"model.layers.0.self_attn.{part}_proj" for part in "qkv")
QKV = Linear("model.layers.0.self_attn.qkv_proj", NAMES, K, (QUERIES, SHARED, SHARED), K)
GROUPS = K // 128
LLAMA = load_decoder({"model_type": "llama"}, where="config.json")
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}


def read(values=None, asked=None, gpu=H100, config=LLAMA):
    return sglang_quantisation(values, asked, gpu, config, where="config.json")


@pytest.mark.parametrize(
    ("how", "gpu", "tensors"),
    [
        pytest.param(
            {"asked": "awq_marlin"},
            H100,  # where vLLM takes Machete
            [
                (K * N // 2, K * N // 2),
                (GROUPS * N * 2, GROUPS * N * 2),
                (GROUPS * N // 2, GROUPS * N // 2),
                (0, 4 * 132),  # the workspace: an int32 for each multiprocessor
            ],
            id="AWQ",
        ),
        pytest.param(
            {"values": FP8},
            H100,
            [(K * N, None), (4 * 3, 4 * N)],  # a scale of each projection, then of each output
            id="fp8",
        ),
        pytest.param(
            {"values": {**FP8, "activation_scheme": "static"}},
            H100,
            [(K * N, None), (4 * 3, 4 * N), (4 * 3, 4)],
            id="fp8, static",
        ),
        pytest.param(
            {"values": {**FP8, "weight_block_size": [128, 128]}},
            H100,
            [(K * N, None), (4 * (N // 128) * (K // 128), None)],
            id="fp8 in blocks",
        ),
        pytest.param(
            {"values": FP8},
            A100,
            [(K * N, K * N), (4 * 3, 2 * N), (0, 4 * 108)],
            id="fp8 by Marlin",
        ),
        pytest.param({"asked": "fp8"}, H100, [(2 * K * N, K * N), (0, 4 * N)], id="of 16 bits"),
    ],
)
def test_a_layer_holds_what_sglang_makes(how, gpu, tensors):
    assert list(read(**how, gpu=gpu).parts(QKV, gpu)) == tensors


def test_all_16_bit_weights_are_loaded_before_any_is_quantised():
    assert not read(asked="fp8").while_loading
    options = SglangOptions.parse({})
    plain = sglang.serve(LLAMA, H100, options)
    quantised = sglang.serve(LLAMA, H100, options, read(asked="fp8"))
    # half of the layers' weights; segments that they leave in part are still reserved
    assert 0.5 < quantised.weights_bytes / plain.weights_bytes < 0.6
    assert quantised.tokens[0] > plain.tokens[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"asked": "bitsandbytes"}, "weights quantised by bitsandbytes"),
        ({"values": {"quant_method": "compressed-tensors"}}, "quantised by compressed-tensors"),
        ({"asked": "awq", "gpu": T4}, "quantised weights of llama on Tesla T4"),
        (
            {"asked": "fp8", "config": load_decoder({"model_type": "mixtral"}, where="config")},
            "quantised weights of mixtral",
        ),
    ],
)
def test_what_sglang_has_no_rule_for_is_refused_by_name(how, words):
    with pytest.raises(NotModelledError, match=words):
        read(**how)


def test_a_configuration_says_how_its_weights_are_quantised(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "quantization_config": FP8}))
    assert main(["serve", str(path), "--gpu", "h100", "--engine", "sglang"]) == 0
    assert "fp8, a scale for each output" in capsys.readouterr().out
