"""SGLang and llama.cpp: pools, GGUF files and names, against logs that others published."""

import json

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.serving import sglang
from vrambudget.serving.options import SglangOptions
from vrambudget.serving.weights import load_decoder

GIB, MIB = 2**30, 2**20
LLAMA_3B = {"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28} | {
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}


def pool(model="llama-3.1-8b", gpu="h100", **options):
    config = load_decoder(find_model(model).values, where="a test")
    return sglang.serve(config, find_gpu(gpu), SglangOptions.parse(options))


@pytest.mark.parametrize(
    ("model", "printed"),
    [
        pytest.param("llama-3.1-8b", 15.02, id="Llama"),
        pytest.param("qwen2.5-0.5b", 0.98, id="Qwen"),
    ],
)
def test_sglang_weights_are_what_its_log_prints(model, printed):
    """SGLang's documentation, February 2026: "Load weight end. ... mem usage=15.02 GB"."""
    found = pool(model)
    assert round(found.weights_bytes / GIB, 2) == printed
    assert round(found.before_bytes[0] / GIB, 2) == 78.43  # "Load weight begin. avail mem=78.43"


def test_the_pool_is_a_part_of_what_was_free_less_the_weights():
    found = pool(mem_fraction_static=0.5)
    cell = 2 * 32 * 8 * 128 * 2
    assert found.cell_bytes == cell
    assert found.tokens[1] == (int(found.before_bytes[1] * 0.5) - found.weights_bytes) // cell
    assert found.requests(8192)[1] == found.tokens[1] // 8192
    assert pool(mem_fraction_static=0.5, kv_cache_dtype="fp8_e5m2").cell_bytes == cell // 2
    assert pool(mem_fraction_static=0.5, page_size=64).tokens[0] % 64 == 0


def test_the_default_fraction_is_what_the_rule_of_thumb_leaves():
    # 512 + 8192 * 1.5 + 256 * 2 + 1024 / 8 MiB of 81,559
    assert pool().fraction == round((81559 - 512 - 12288 - 512 - 128) / 81559, 3)
    assert (pool().chunk, pool("llama-3.2-1b", "t4").chunk) == (8192, 2048)


def test_requests_of_sglang_are_bounded():
    assert pool("qwen2.5-0.5b").running == (4096, 4096)
    assert pool(max_running_requests=3).requests(16) == (3, 3)


def test_layers_with_a_window_keep_all_tokens_in_sglang():
    # its pools for windows are gpt-oss's, Llama 4's, MiMo's and Step's alone
    assert pool("gemma-2-2b").cell_bytes == 2 * 26 * 4 * 256 * 2


LITE = {"model_type": "deepseek_v2", "hidden_size": 2048, "num_hidden_layers": 27} | {
    "num_attention_heads": 16,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
}


def test_what_no_start_of_sglang_held_is_refused(tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LITE))
    words = ["--gpu", "h100", "--engine", "sglang"]
    assert main(["serve", str(path), *words]) == 2
    assert main(["serve", "llama-3.1-8b", *words, "--quantization", "fp8"]) == 2
    assert "quantised weights are not modelled as SGLang loads them" in capsys.readouterr().err


def test_the_pool_holds_what_a_rehearsed_start_says():
    """SGLang 0.5.9 rehearsed on an H100: mem usage=15.02 GB, #tokens: 424807."""
    found = pool(mem_fraction_static=0.85)
    assert found.tokens[0] <= 424_807 <= found.tokens[1]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(
            ["llama-3.1-8b", "--engine", "sglang", "--max-model-len", "9"],
            "--max-model-len is an option of vllm, not of sglang",
            id="another's",
        ),
        pytest.param(["llama-3.1-8b:Q4_K_X", "--engine", "llama.cpp"], "'Q4_K_X' is no", id="kind"),
        pytest.param(
            ["m.gguf", "--engine", "vllm"], "vllm is not modelled with a GGUF file", id="file"
        ),
        pytest.param(["llama-3.1-8b", "--context", "0"], "context is 0", id="context"),
    ],
)
def test_what_cannot_be_is_told(words, told, capsys):
    assert main(["serve", *words, "--gpu", "24GB"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        (["llama-3.1-8b", "--engine", "sglang", "--gpu", "h100"], "sglang 0.5.9"),
        (["llama-3.1-8b:Q8_0", "--engine", "llama.cpp", "--gpu", "24GB"], "llama.cpp"),
    ],
)
def test_each_engine_has_a_report_and_json(words, engine, capsys):
    assert main(["serve", *words, "--context", "4096"]) == 0
    assert "4,096 tokens" in capsys.readouterr().out
    assert main(["serve", *words, "--format", "json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["engine"].startswith(engine)
    assert values["starts"] is True


def test_an_engine_that_does_not_start_says_so(capsys):
    assert main(["serve", "llama-3.1-8b", "--engine", "sglang", "--gpu", "12GB"]) == 1
    assert "Please try to increase --mem-fraction-static" in capsys.readouterr().out
    words = ["llama-3.1-8b:F16", "--engine", "llama.cpp", "--n-gpu-layers", "99"]
    assert main(["serve", *words, "--gpu", "12GB"]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT FIT")


def test_a_server_is_the_same_in_python(capsys):
    server = vrambudget.serve("llama-3.1-8b", gpu="h100", context=8192, max_num_seqs=64)
    assert server.starts
    assert server.values["max_num_seqs"] == 64
    options = ["--gpu", "h100", "--context", "8192", "--max-num-seqs", "64"]
    assert main(["serve", "llama-3.1-8b", *options]) == 0
    assert str(server) == capsys.readouterr().out.rstrip("\n")
    assert server._repr_html_().startswith("<pre>STARTS: ")
    assert json.loads(server.to_json())["max_num_seqs"] == 64


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"engine": "trt"}, "there is no engine 'trt'"),
        (
            {"engine": "sglang", "max_num_seqs": 4},
            "--max-num-seqs is an option of vllm, not of sglang",
        ),
        ({"max_num_sequences": 4}, "max_num_sequences"),
    ],
)
def test_a_mistake_in_a_servers_options_is_named(options, words):
    with pytest.raises(VramBudgetError, match=words):
        vrambudget.serve("llama-3.1-8b", gpu="h100", **options)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_several_gpus_share_each_layer_unless_stages_are_named(engine):
    def over(gpu, **options):
        return vrambudget.serve("llama-3.1-8b", gpu=gpu, engine=engine, **options).values

    assert over("4xh100") == over("h100", tensor_parallel_size=4)
    in_stages = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
    assert over("4xh100", pipeline_parallel_size=2) == over("h100", **in_stages)
    assert over("4xh100", **in_stages) == over("h100", **in_stages)
    with pytest.raises(VramBudgetError, match=r"gpu has 4 GPUs; .* share among 2"):
        over("4xh100", tensor_parallel_size=2)


def test_an_engine_without_rules_names_those_that_have_them(capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", "l4", "--engine", "tgi"]) == 2
    assert "(choose from 'vllm', 'sglang', 'llama.cpp')" in capsys.readouterr().err
