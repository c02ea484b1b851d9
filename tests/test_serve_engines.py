"""SGLang and llama.cpp: pools, GGUF files and names, against logs that others published."""

import json
import struct

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.scenario import resolve
from vrambudget.serving import llama_cpp, sglang, tgi
from vrambudget.serving.gguf import read_gguf
from vrambudget.serving.gguf_model import of_file, of_name
from vrambudget.serving.gguf_types import row_bytes, type_of
from vrambudget.serving.options import LlamaCppOptions, SglangOptions, TgiOptions
from vrambudget.serving.weights import decoder_of, load_decoder, weight_bytes

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
    config = decoder_of(resolve(model).config)
    return sglang.serve(config, find_gpu(gpu), SglangOptions.parse(options))


def loaded(model="llama-3.1-8b", kind="Q4_K_M", gpu="24GB", **options):
    named = of_name(resolve(model).config, str(model), kind)
    return llama_cpp.serve(named, find_gpu(gpu), LlamaCppOptions.parse(options))


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


def test_a_latent_pool_of_sglang_has_one_row_for_all_heads(tmp_path, capsys):
    config = load_decoder(LITE, where="a test")
    found = sglang.serve(config, find_gpu("h100"), SglangOptions.parse({}))
    assert found.cell_bytes == 27 * (512 + 64) * 2
    # kv_b_proj's two halves once more, in each layer
    copies = 27 * 16 * (128 + 128) * 512 * 2
    table = 40 * 4096 * 64 * 2  # of rotary positions, in float32 where vLLM has 16 bit
    more = found.weights_bytes - weight_bytes(config, range(27), itemsize=2, tp=1)
    assert copies + table < more < copies + table + 40 * MIB
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LITE))
    assert main(["serve", str(path), "--gpu", "h100", "--engine", "sglang"]) == 0
    assert "31,104 bytes a token" in capsys.readouterr().out


def warmed_up(model="llama-3.1-8b", gpu="l4", **options):
    config = decoder_of(resolve(model).config)
    return tgi.serve(config, find_gpu(gpu), TgiOptions.parse(options))


def test_tgi_warms_up_with_what_the_card_computes_in_a_second():
    # 2 FLOP a weight, and attention's: 32 layers; an H100 is taken for 900 TFLOPS
    queries, shared = 4096, 1024
    flop = 32 * (2 * 4096 * (3 * queries + 2 * shared) + 6 * 4096 * 14336)
    assert warmed_up(gpu="h100").max_batch_prefill_tokens == 900 * 10**12 // flop
    assert warmed_up("qwen2.5-0.5b", gpu="h100").max_batch_prefill_tokens == 32768  # positions
    assert warmed_up(gpu="24GB").max_batch_prefill_tokens == 4096  # "nvidia-geforce-..": unknown


def test_tgi_warms_up_with_less_where_the_card_is_small():
    # 0.95 of nvidia-smi's total less the model, by what its launcher takes for a token
    total, layer = int(23034 * MIB * 0.7 * 0.95), 3 * 14336 * 4096 + 6144 + 4096 * 4096
    model = 2 * (32 * layer + 2 * 4096 * 128256)
    found = warmed_up(cuda_memory_fraction=0.7)
    assert found.max_batch_prefill_tokens == (total - model) // (131072 + 129024)


def test_the_cache_of_tgi_is_what_the_warm_up_leaves():
    found = warmed_up(max_batch_prefill_tokens=4096)
    assert found.token_bytes == 2 * 32 * 8 * 128 * 2
    taken = found.weights_bytes + found.warm_up_bytes + found.outside_bytes[0]
    left = found.may_take_bytes - taken
    assert found.tokens[1] == left // found.token_bytes + 4096
    assert found.may_take_bytes == int(find_gpu("l4").capacity_bytes * 0.9)
    # 7 hidden states, gate and up, the activation and the product, keys and values
    mlp = 4096 * 2 * (7 * 4096 + 4 * 14336)
    beside = found.warm_up_bytes - 4096 * found.token_bytes
    assert 0.9 * mlp < beside < 1.3 * mlp  # some of it in what joining weights left behind
    assert warmed_up(kv_cache_dtype="fp8_e5m2").token_bytes * 2 == found.token_bytes
    assert warmed_up(cuda_memory_fraction=0.9).tokens[1] < found.tokens[1]


def test_requests_of_the_warm_up_are_as_long_as_they_may_be():
    short = {"max_input_tokens": 1000, "max_total_tokens": 2000}
    found = warmed_up(max_batch_prefill_tokens=2500, **short)
    assert found.max_total_tokens == 2000
    assert found.requests(1)[0] == 128  # max_concurrent_requests
    # 1000, 1000 and 500 tokens of prompts, each with what it may generate but one
    left = (found.may_take_bytes - found.weights_bytes - found.warm_up_bytes) // found.token_bytes
    assert found.tokens[1] - left + found.outside_bytes[0] // found.token_bytes in {
        5996,
        5997,
        5998,
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-3.1-8b", "--num-shard", "2"], "num_shard 2 is not modelled"),
        (["gemma-2-2b"], "gemma2 in TGI is not modelled"),
        (["llama-3.1-8b", "--quantize", "eetq"], "quantize 'eetq' is not modelled"),
        (["llama-3.1-8b", "--max-input-tokens", "9", "--max-total-tokens", "9"], "less than max"),
        (["llama-3.1-8b", "--max-total-tokens", "999999"], "has 131072 positions"),
        (["llama-3.1-8b", "--kv-cache-dtype", "fp8"], "kv_cache_dtype is 'fp8'"),
    ],
)
def test_what_tgi_has_no_rule_for_is_refused(words, message, capsys):
    assert main(["serve", *words, "--gpu", "h100", "--engine", "tgi"]) == 2
    assert message in capsys.readouterr().err


def test_tgi_on_a_card_before_ampere_is_refused():
    with pytest.raises(NotModelledError, match="heads of 64 on Tesla T4"):
        warmed_up("llama-3.2-1b", gpu="t4")


def test_a_warm_up_that_does_not_fit_is_tgis_error(capsys):
    words = ["serve", "llama-3.1-8b", "--gpu", "l4", "--engine", "tgi"]
    assert main([*words, "--max-batch-prefill-tokens", "65536"]) == 1
    text = capsys.readouterr().out
    assert "Not enough memory to handle 65536 prefill tokens" in text
    assert main(["explain", text.splitlines()[0]]) == 0
    assert "TGI warms up with a prefill of 65536 tokens" in capsys.readouterr().out
    assert main([*words, "--max-total-tokens", "100000"]) == 1  # with what a request may generate
    assert "Not enough memory to handle 8049 prefill tokens" in capsys.readouterr().out


def test_tgi_prints_what_its_log_will_say_and_json(capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", "l4", "--engine", "tgi"]) == 0
    text = capsys.readouterr().out
    assert "Default `max_batch_prefill_tokens` to 8049" in text
    assert "Setting max batch total tokens to" in text
    words = ["serve", "llama-3.1-8b", "--gpu", "l4", "--engine", "tgi", "--format", "json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["engine"] == "tgi 3.3.7"


@pytest.mark.parametrize(
    ("model", "on_card", "on_host"),
    [
        pytest.param("llama-3.1-8b", 4403.49, 281.81, id="Llama 8B"),
        pytest.param("qwen2.5-7b-instruct", 4168.09, 292.36, id="Qwen 7B, biases"),
        pytest.param("mistral-7b", 4095.05, 70.31, id="Mistral 7B"),
    ],
)
def test_a_name_says_what_the_file_takes(model, on_card, on_host):
    """Public logs: "CUDA0 model buffer size = 4403.49 MiB", "CPU_Mapped ... 281.81 MiB"."""
    found = loaded(model)
    assert round(found.model_bytes / MIB, 2) == on_card
    assert round(found.host_bytes / MIB, 2) == on_host


@pytest.mark.parametrize(
    ("model", "options", "printed"),
    [
        pytest.param("llama-3.1-8b", {"ctx_size": 8192, "parallel": 4}, 1024.0, id="four slots"),
        pytest.param("qwen2.5-7b-instruct", {"ctx_size": 32768}, 1792.0, id="long"),
        pytest.param(
            "qwen2.5-7b-instruct",
            {"ctx_size": 16384, "cache_type_k": "q8_0", "cache_type_v": "q8_0", "flash_attn": True},
            476.0,
            id="q8_0",
        ),
    ],
)
def test_the_cache_is_what_the_log_prints(model, options, printed):
    """Public logs: "CUDA0 KV buffer size = 1024.00 MiB"."""
    assert loaded(model, **options).cache_bytes / MIB == printed


def test_a_compute_buffer_is_at_least_its_largest_tensors():
    assert loaded().compute_least_bytes == (128256 + 4096) * 512 * 4  # printed: 258.50 MiB
    scores = 8192 * 512 * 32 * 4
    assert loaded(ctx_size=8192).compute_least_bytes == scores  # printed: 560.00 MiB


def test_layers_with_a_window_have_fewer_cells():
    found = loaded("gemma-2-9b", ctx_size=8192)
    assert (found.cells, found.window_cells) == (8192, 4096 + 512)
    assert loaded("gemma-2-9b", ctx_size=8192, swa_full=True).window_cells is None


def test_a_model_without_an_output_has_its_table_twice():
    found, bare = loaded(LLAMA_3B), loaded({**LLAMA_3B, "tie_word_embeddings": False})
    assert found.host_bytes == row_bytes("Q6_K", 3072) * 128256
    assert bare.host_bytes == row_bytes("Q4_K", 3072) * 128256
    assert found.model_bytes == bare.model_bytes


def test_layers_may_stay_in_main_memory():
    whole, none = loaded(), loaded(n_gpu_layers=0)
    assert (none.model_bytes, none.cache_bytes) == (0, 0)
    half = loaded(n_gpu_layers=16)
    assert half.cache_bytes * 2 == whole.cache_bytes
    assert none.host_bytes > half.host_bytes > whole.host_bytes


@pytest.mark.parametrize(
    ("name", "tensor", "layer", "kind"),
    [
        ("Q4_K_M", "attn_v", 0, "Q6_K"),
        ("Q4_K_M", "attn_v", 4, "Q4_K"),
        ("Q4_K_M", "ffn_down", 31, "Q6_K"),
        ("Q4_K_M", "output", 0, "Q6_K"),
        ("Q8_0", "output", 0, "Q8_0"),
        ("Q3_K_M", "attn_output", 9, "Q4_K"),
        ("Q2_K", "attn_v", 9, "Q4_K"),
        ("Q4_K_S", "ffn_down", 3, "Q5_K"),
        ("F16", "ffn_up", 3, "F16"),
    ],
)
def test_kinds_of_tensors(name, tensor, layer, kind):
    assert type_of(name, tensor, 4096, layer=layer, layers=32, shared=4) == kind


def test_rows_of_odd_lengths_take_a_simpler_kind():
    assert type_of("Q4_K_M", "ffn_up", 896, layer=9, layers=24, shared=7) == "Q5_0"
    assert type_of("Q4_K_M", "attn_v", 900, layer=0, layers=24, shared=7) == "F16"


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def a_file(tmp_path, values=(), tensors=(), *, version=3, name="model.gguf"):
    """Write the header of a small Llama."""
    plain = {
        "llama.block_count": 2,
        "llama.embedding_length": 256,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.context_length": 4096,
        **dict(values),
    }
    entries = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    entries += [text(k) + struct.pack("<II", 4, v) for k, v in plain.items()]
    vocabulary = struct.pack("<IQ", 8, 2) + text("a") + text("b")
    entries.append(text("tokenizer.ggml.tokens") + struct.pack("<I", 9) + vocabulary)
    scores = struct.pack("<IQ", 6, 2) + struct.pack("<2f", 0.0, 1.0)
    entries.append(text("tokenizer.ggml.scores") + struct.pack("<I", 9) + scores)
    table = tensors or [
        ("token_embd.weight", (256, 1000), 12),
        ("output.weight", (256, 1000), 14),
        ("blk.0.ffn_up.weight", (256, 512), 12),
        ("blk.1.ffn_up.weight", (256, 512), 12),
        ("output_norm.weight", (256,), 0),
    ]
    rows = [text(n) + struct.pack(f"<I{len(d)}QIQ", len(d), *d, kind, 0) for n, d, kind in table]
    head = b"GGUF" + struct.pack("<IQQ", version, len(rows), len(entries))
    path = tmp_path / name
    path.write_bytes(head + b"".join(entries) + b"".join(rows) + b"\0" * 64)
    return path


def up(nbytes):
    return -(-nbytes // 128) * 128


def test_a_file_says_its_tensors_and_sizes(tmp_path):
    path = a_file(tmp_path)
    header = read_gguf(path)
    assert header.values["tokenizer.ggml.scores"] == [0.0, 1.0]
    assert header.tensors[1].kind == "Q6_K"
    model = of_file(path)
    assert (model.layers, model.vocabulary, model.keys) == (2, 1000, (128, 128))
    found = llama_cpp.serve(model, find_gpu("8GB"), LlamaCppOptions.parse({}))
    layer, output = 144 * (512 + 1), 210 * (1000 + 1)  # a row of 256 more: a multiple of 512
    assert found.model_bytes == 2 * up(layer) + up(output) + up(256 * 4)
    assert found.cache_bytes == 2 * 2 * 128 * 2 * 4096
    assert found.host_bytes == 144 * 1000


def test_the_command_reads_a_file(tmp_path, capsys):
    assert main(["serve", str(a_file(tmp_path)), "--gpu", "8GB", "--context", "2048"]) == 0
    assert "CUDA0 KV buffer size" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"GGML" + b"\0" * 40, "does not begin with GGUF", id="magic"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1", id="version"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 9, 0), "ends within its header", id="short"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "of something", id="many"),
    ],
)
def test_what_is_no_gguf_file_is_told(content, words, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(VramBudgetError, match=words):
        read_gguf(path)


def test_architectures_without_rules_are_refused(tmp_path):
    path = a_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(text("llama"), text("mamba")))
    with pytest.raises(NotModelledError, match="architecture 'mamba'"):
        of_file(path)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(
            ["llama-3.1-8b", "--engine", "sglang", "--max-model-len", "9"],
            "--max-model-len is an option of vllm, not of sglang",
            id="another's",
        ),
        pytest.param(
            ["llama-3.1-8b", "--engine", "llama.cpp"], "llama-3.1-8b:Q4_K_M", id="no kind"
        ),
        pytest.param(["llama-3.1-8b:Q4_K_X", "--engine", "llama.cpp"], "'Q4_K_X' says", id="kind"),
        pytest.param(
            ["llama-3.1-8b:Q4_0", "--engine", "llama.cpp", "--cache-type-v", "q4_0"],
            "needs flash_attn",
            id="flash",
        ),
        pytest.param(
            ["m.gguf", "--engine", "vllm"], "vllm is not counted with a GGUF file", id="file"
        ),
        pytest.param(["llama-3.1-8b", "--context", "0"], "context is 0", id="context"),
        pytest.param(
            ["mixtral-8x7b:Q4_0", "--engine", "llama.cpp"], "GGUF file of mixtral", id="experts"
        ),
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
    assert main(["serve", "llama-3.1-8b:F16", "--engine", "llama.cpp", "--gpu", "12GB"]) == 1
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
        ({"engine": "tgi", "max_num_seqs": 4}, "--max-num-seqs is an option of vllm, not of tgi"),
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


@pytest.mark.parametrize("engine", ["tgi", "llama.cpp"])
def test_servers_of_one_gpu_say_so(engine):
    with pytest.raises(NotModelledError, match="over 2 GPUs is not modelled"):
        vrambudget.serve("llama-3.1-8b:Q4_K_M", gpu="2x12GB", engine=engine)
