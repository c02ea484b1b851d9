"""A vLLM server: weights as its log prints them, blocks and concurrency by hand."""

import json
from pathlib import Path

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.gpus import find_gpu
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.serving.blocks import Groups, groups_of
from vrambudget.serving.gguf_known import find_served
from vrambudget.serving.options import ServeOptions
from vrambudget.serving.quantization_config import quantisation_of
from vrambudget.serving.vllm import serve
from vrambudget.serving.vllm_versions import OLDEST, USUAL, minor_of
from vrambudget.serving.weights import layers_of, load_decoder, weight_bytes

GIB = 2**30
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
}
PUBLISHED = Path(__file__).parent / "records" / "serving" / "vllm-0.19.0.jsonl"
LOGS = [json.loads(line) for line in PUBLISHED.read_text(encoding="utf-8").splitlines()]
BLOCKS = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
GEMMA = {"model_type": "gemma2"}  # 26 layers, every second one with a window of 4096


def config_of(model):
    return load_decoder(find_model(model).values, where="a test")


def served(model="llama-3.1-8b", gpu="h100", **options):
    """Return what a server of a name holds, also of "glm-4.5-air, 6 layers"."""
    name, _, layers = model.partition(", ") if isinstance(model, str) else (model, "", "")
    values = find_served(name).values
    if layers:
        few, own = int(layers.partition(" ")[0]), values["num_hidden_layers"]
        cut = {k: v[:few] for k, v in values.items() if isinstance(v, list) and len(v) == own}
        values = {**values, **cut, "num_hidden_layers": few}
    parsed, card = ServeOptions.parse({"engine_version": "0.19", **options}), find_gpu(gpu)
    how = values.get("quantization_config")
    quantised = quantisation_of(how, parsed.quantization, card, where="a test")
    return serve(load_decoder(values, where="a test"), card, parsed, quantised)


@pytest.mark.parametrize(
    ("model", "printed"),
    [pytest.param("llama-3.1-8b", 14.99, id="Llama"), pytest.param(QWEN, 14.25, id="Qwen")],
)
def test_weights_are_what_the_log_prints(model, printed):
    config = config_of(model)
    weights = weight_bytes(config, range(config.num_hidden_layers), itemsize=2, tp=1)
    assert round(weights / GIB, 2) == printed


def test_blocks_are_pages_of_every_layer():
    found = served()
    page = 2 * 16 * 8 * 128 * 2  # keys and values, tokens, heads, width, bytes
    assert found.blocks[0] == found.cache_bytes[0] // page // 32
    assert found.tokens[0] == found.blocks[0] * 16
    assert found.concurrency[0] == found.blocks[0] / (131072 // 16)


def test_the_sampler_is_the_peak_where_many_rows_are_sampled():
    # 14 bytes a logit, the top-k kernel's buffer, hidden states, sampled rows twice, workspace
    logits, buffer = 14 * 1024 * 128256, 132 * 128256 * 4
    hidden, rows = 8192 * 4096 * 2, 2 * 1024 * 4096 * 2
    assert served().activations_bytes == logits + buffer + hidden + rows + 32 * 2**20


def test_an_fp8_cache_holds_twice_the_tokens():
    once, twice = served(), served(kv_cache_dtype="fp8")
    assert twice.blocks[0] in {2 * once.blocks[0], 2 * once.blocks[0] + 1}


def test_layers_of_two_kinds_are_two_groups_and_a_window_needs_fewer_blocks():
    config = config_of(GEMMA)
    groups = groups_of(config, range(26))
    assert groups == Groups((4096, None), 13, width=2 * 4 * 256, narrower=(1, 1))
    # 8192 tokens: 512 blocks; (4095 + 2048) / 16 rounded up is 384, and one more
    assert groups.blocks_of(8192, 2048, 16) == 512 + 385


def test_cards_that_share_layers_share_heads_and_weights():
    alone, shared = served(), served(tensor_parallel_size=2)
    assert shared.weights_bytes < 0.52 * alone.weights_bytes
    assert shared.tokens[0] > 2 * alone.tokens[0]


def test_pipeline_ranks_get_layers_as_vllm_deals_them_out():
    config = config_of({"model_type": "llama", "num_hidden_layers": 30})
    assert [len(layers) for layers in layers_of(config, 4)] == [7, 8, 8, 7]
    deep = served(pipeline_parallel_size=2)
    assert deep.groups.layers == 16


def test_the_defaults_are_those_of_the_card():
    assert (served().max_num_seqs, served().max_num_batched_tokens) == (1024, 8192)
    small = served(gpu="a100-80gb")
    assert (small.max_num_seqs, small.max_num_batched_tokens) == (256, 2048)


def test_requests_are_bounded_by_the_sequences_of_a_step():
    assert served(max_num_seqs=4).requests(16) == (4, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param({"tensor_parallel_size": 3}, "does not divide 32", id="heads"),
        pytest.param({"max_model_len": 2**18}, "has 131072 positions", id="positions"),
        pytest.param({"pipeline_parallel_size": 64}, "has 32 layers", id="layers"),
        pytest.param({"enable_expert_parallel": True}, "is not modelled", id="experts"),
        pytest.param({"enable_lora": True}, "adapters have weights", id="lora"),
        pytest.param({"speculative_config": "{}"}, "a draft has", id="draft"),
        pytest.param({"data_parallel_size": 2}, "is not modelled", id="engines"),
        pytest.param({"kv_cache_memory_bytes": 70 << 30}, "beside the weights", id="cache"),
        pytest.param(
            {"max_num_seqs": 9, "max_num_batched_tokens": 8}, "less than max_num_seqs", id="step"
        ),
    ],
)
def test_what_vllm_refuses_is_an_error(options, words):
    with pytest.raises(VramBudgetError, match=words):
        served(**options)


def test_flags_that_people_paste_are_understood(capsys):
    words = ["serve", "llama-3.1-8b", "--gpu", "h100", "--format", "json"]
    flags = "--block-size 32 --enforce-eager --max-num-seqs 256 --kv-cache-dtype fp8_e4m3"
    assert main([*words, *flags.split(), "--kv-cache-memory-bytes", "20000000000"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["block_size"], found["max_num_seqs"]) == (32, 256)
    assert found["graphs_bytes"] == [0, 0]
    assert found["cache_bytes"] == [20_000_000_000] * 2
    assert found["blocks"][0] == 20_000_000_000 // (2 * 32 * 8 * 128) // 32


def test_weights_in_main_memory_are_whole_parameters_as_a_rehearsal_of_vllm_took_them():
    # `rehearse -- vllm serve qwen2.5-0.5b --enforce-eager --cpu-offload-gb 0.3`, vLLM 0.19.0
    found = served("qwen2.5-0.5b", max_model_len=8192, cpu_offload_gb=0.3, enforce_eager=True)
    assert round(found.weights_bytes / 2**30, 2) == 0.62
    assert round(found.activations_bytes / 2**30, 2) == 2.15
    assert found.tokens[0] < 5_963_392 < found.tokens[1]


def test_awqs_own_kernel_holds_what_a_rehearsed_start_says():
    # vLLM 0.19.0 on a virtual RTX 3060: activations 0.47 GiB, 36,256 tokens; two RTX 3090 18.58 GiB
    eager = served(gpu="12GB", quantization="awq", max_model_len=8192, enforce_eager=True)
    assert round(eager.activations_bytes / GIB, 2) == 0.47
    assert eager.tokens[0] <= 36_256 <= eager.tokens[1]
    two = {"quantization": "awq", "max_model_len": 8192, "tensor_parallel_size": 2}
    assert round(served("llama-3.3-70b", "rtx-3090", **two).weights_bytes / GIB, 2) == 18.58


def test_a_server_that_does_not_start_says_what_would_with_the_command(capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", "12GB"]) == 1
    text = capsys.readouterr().out
    options = "--quantization awq_marlin --max-model-len 8192"
    command = f"vrambudget serve llama-3.1-8b --gpu rtx-3060 {options}"
    assert f"4 requests of 8,192 tokens, of a checkpoint in AWQ: {command}" in text
    assert main(command.split()[1:]) == 0
    assert capsys.readouterr().out.startswith("STARTS: 4 requests of 8,192 tokens")


@pytest.mark.parametrize(
    ("words", "command"),
    [
        ("phi-2 --gpu h100", "--gpu h100 -- vllm serve phi-2"),
        (
            "deepseek-v3 --gpu 8xb200 --max-model-len 8192",
            "--gpu b200 -- vllm serve deepseek-v3 --max-model-len 8192 --tensor-parallel-size 8",
        ),
        ("llama-3.1-8b --gpu 24GB --enable-lora", "vllm serve llama-3.1-8b --enable-lora"),
        (
            "gpt-oss-20b --gpu h100 --engine sglang",
            "python -m sglang.launch_server --model-path gpt-oss-20b",
        ),
    ],
)
def test_what_has_no_rules_is_answered_by_the_engines_own_start(capsys, words, command):
    assert main(["serve", *words.split()]) == 2
    error = capsys.readouterr().err
    assert "vrambudget rehearse --gpu " in error
    assert command in error


@pytest.mark.parametrize(
    ("gpu", "shared", "range_of_gib"),
    [
        ("h100", 1, (0.24, 0.27)),
        ("h100", 8, (2.13, 2.21)),
        ("24GB", 1, (0.05, 0.27)),
        ("l40s", 4, (0.20, 0.36)),
        ("a100-80gb", 4, (0.20, 2.21)),
    ],
)
def test_what_no_code_says_is_the_range_that_was_published_of_such_gpus(gpu, shared, range_of_gib):
    found = served(gpu=gpu, tensor_parallel_size=shared)
    assert [round(n / 2**30, 2) for n in found.outside_bytes] == list(range_of_gib)


def test_a_plan_for_serving_ranks_what_starts_by_requests(capsys):
    assert main(["plan", "llama-3.1-70b", "--serve", "--gpu", "4xh100", "--format", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["requests"] for row in rows] == sorted((r["requests"] for r in rows), reverse=True)
    shared = {(r["engines"], r["tensor_parallel_size"], r["pipeline_parallel_size"]) for r in rows}
    assert {(1, 4, 1), (1, 1, 4), (1, 2, 2), (2, 2, 1), (4, 1, 1)} <= shared
    plain = next(
        r for r in rows if r["weights"] == "as they are" and r["tensor_parallel_size"] == 4
    )
    found = served("llama-3.1-70b", tensor_parallel_size=4, max_model_len=8192)
    assert rows[-1]["requests"] > 0
    assert plain["weights_bytes"] == found.weights_bytes
    assert plain["rehearsal"] == f"vrambudget rehearse --gpu h100 -- {plain['command']}"


def test_a_plan_for_serving_says_what_it_cannot_do(capsys):
    words = ["plan", "llama-3.1-70b", "--serve", "--gpu", "24GB"]
    assert main(words) == 1
    assert "next: more GPUs (--gpu 2xrtx-4090)" in capsys.readouterr().out
    assert main([*words, "--batch", "3"]) == 2
    assert main([*words, "--context", "10000000"]) == 2
    assert main(["plan", "gpt2", "--gpu", "24GB", "--context", "8"]) == 2
    capsys.readouterr()
    assert main(["plan", "phi-2", "--serve", "--gpu", "h100"]) == 2
    command = "vrambudget rehearse --gpu h100 -- vllm serve phi-2"
    assert command in capsys.readouterr().err


def test_rules_answer_for_their_own_version_alone(capsys):
    words = ["serve", "llama-3.1-8b", "--gpu", "h100", "--engine-version"]
    assert main([*words, "0.19.1"]) == 0
    assert "by the rules of vLLM 0.19" in capsys.readouterr().out
    assert main([*words, "v0.33.0"]) == 0
    assert "by the rules of vLLM 0.33" in capsys.readouterr().out
    assert main([*words, "0.18"]) == 2
    assert "vrambudget rehearse --gpu h100 -- vllm serve" in capsys.readouterr().err


def test_models_without_rules_are_refused_by_name():
    with pytest.raises(NotModelledError, match="serving gpt2 is not modelled"):
        config_of("gpt2")


def test_the_command_prints_what_the_log_will_say(capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", "h100", "--context", "8192"]) == 0
    text = capsys.readouterr().out
    assert "Model loading took 14.99 GiB memory" in text
    assert text.startswith("STARTS: 54 requests of 8,192 tokens at once")


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        # rehearsed: vLLM 0.19.0 on 11.69 GiB ends with torch.OutOfMemoryError in load_model
        pytest.param("12GB", "CUDA out of memory while weights are loaded", id="weights"),
        pytest.param("16GB", "CUDA out of memory in the profiled step", id="profiled step"),
        pytest.param("17GiB", "No available memory for the cache blocks", id="nothing left"),
        pytest.param("24GB", "To serve at least one request", id="too long"),
    ],
)
def test_a_server_that_does_not_start_says_so(gpu, words, capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", gpu]) == 1
    assert words in capsys.readouterr().out


def test_more_than_is_free_is_refused_as_vllm_refuses_it(capsys):
    words = ["serve", "qwen3-0.6b", "--gpu", "rtx-4090", "--gpu-memory-utilization"]
    assert main([*words, "0.99"]) == 1
    text = capsys.readouterr().out
    assert "on startup is less than desired GPU memory utilization (0.99, 23.41 GiB)" in text
    assert "vrambudget serve qwen3-0.6b --gpu rtx-4090 --gpu-memory-utilization 0.9" in text


def test_a_model_whose_longest_request_does_not_fit_is_told_the_length_that_was_asked_for(capsys):
    words = ["serve", "llama-3.1-8b", "--gpu", "24GB"]
    assert main([*words, "--context", "8192"]) == 1
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.endswith("all 131,072 tokens of the model; add --max-model-len 8192")
    assert second.startswith("vLLM's: To serve at least one request with max seq len 131,072")
    assert main([*words, "--max-model-len", "8192"]) == 0
    assert main([*words, "--max-model-len", "100k"]) == 1
    assert "add --max-model-len" not in capsys.readouterr().out


def test_flags_that_decide_no_memory_are_left_out_and_said(capsys):
    words = ["serve", "llama-3.1-8b", "--gpu", "h100"]
    assert main([*words, "-tp", "2", "--max-model-len", "16k", "--dtype", "half"]) == 0
    expected = capsys.readouterr().out
    pasted = "--tp 2 --max_model_len 16000 --port 8000 --trust-remote-code --dtype float16"
    assert main([*words, *pasted.split()]) == 0
    found = capsys.readouterr()
    assert found.out == expected.replace("--dtype half", "--dtype float16")
    assert "decide no memory: --port, --trust-remote-code" in found.err
    assert main([*words, "--hf-overrides", "{}"]) == 2
    assert main([*words, "--max-model-len", "long"]) == 2


def test_a_language_model_alone_is_one_without_the_tower():
    def found(**options):
        return vrambudget.serve("gemma-3-12b", gpu="h100", max_model_len=8192, **options).values

    whole, alone = found(), found(language_model_only=True)
    tower = whole["weights_bytes"] - alone["weights_bytes"]
    assert 0.7 < tower / GIB < 0.9
    assert alone["activations_bytes"] < whole["activations_bytes"]


@pytest.mark.parametrize("name", ["llama-4-scout", "google/gemma-4-26b-a4b", "gemma-4-26b-a4b-it"])
def test_models_that_have_no_card_for_training_are_named_in_the_command(name, capsys):
    assert main(["serve", name, "--gpu", "rtx-4090"]) == 2
    assert f"vrambudget rehearse --gpu rtx-4090 -- vllm serve {name}" in capsys.readouterr().err


def test_the_result_is_json_too(capsys):
    assert main(["serve", "llama-3.1-8b", "--gpu", "24GB", "--format", "json"]) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["starts"] is False
    assert values["requests"] == [0, 0]


def name_of(log):
    model = log["model"]
    name = model if isinstance(model, str) else model["model_type"]
    if isinstance(model, dict) and (way := model.get("quantization_config")):
        name += f"-{way.get('format', way['quant_method'])}"
    return "-".join([name, *map(str, list(log["options"].values())[2:])])


SHORT = ("codellama-7b", "granite-3.1-8b", "granite-3.3-8b")
"""Their small vocabularies leave the MLP as the peak: 0.11 and 0.06 GiB short."""


@pytest.mark.parametrize("log", LOGS, ids=name_of)
class TestAgainstPublishedLogs:
    def test_tokens_of_the_cache_are_those_that_the_log_prints(self, log):
        found = served(log["model"], log["gpu"], **log["options"])
        middle, printed = sum(found.tokens) / 2, log["printed"]["tokens"]
        cards = log["options"].keys() & {"tensor_parallel_size", "pipeline_parallel_size"}
        assert abs(middle / printed - 1) < (0.01 if cards else 0.005)

    def test_weights_and_the_profiled_step_are_those_that_it_prints(self, log):
        found, printed = served(log["model"], log["gpu"], **log["options"]), log["printed"]
        assert round(found.weights_bytes / GIB, 2) == printed["weights_gib"]
        low, high = (n / GIB for n in found.outside_bytes)
        if "granite" not in log["model"]:  # known: 0.46 outside, which nothing says
            assert low - 0.01 < printed["outside_gib"] < high + 0.01
        if printed["activations_gib"] and log["model"] not in SHORT:
            assert abs(found.activations_bytes / GIB - printed["activations_gib"]) < 0.015


OTHERS = Path(__file__).parent / "records" / "serving" / "vllm-0.19-other-gpus.jsonl"


@pytest.mark.parametrize(
    "log", [json.loads(line) for line in OTHERS.read_text().splitlines()], ids=name_of
)
def test_starts_on_other_gpus_hold_what_their_logs_print(log):
    """L40S, A100, H100; the tokens are in the range, or 0.02 % beside it."""
    found, printed = served(log["model"], log["gpu"], **log["options"]), log["printed"]
    assert round(found.weights_bytes / GIB, 2) == printed["weights_gib"]
    low, high = found.tokens
    assert low * 0.9998 <= printed["tokens"] <= high * 1.0002
    least, most = found.graphs_bytes
    assert least <= printed.get("graphs_gib", 1) * GIB + 2**23
    assert most >= printed.get("graphs_gib", 1) * GIB - 2**23


OFF = {"vllm 0.15.1": 0.013, "vllm 0.24.0": 0.02}  # older than any rules; what graphs take


def starts_of(name):
    return [json.loads(line) for line in OTHERS.with_name(name).read_text().splitlines()]


def served_as(log):
    """Return what that version holds; of a version with a word for a number the oldest's."""
    minor = minor_of(log["engine"]) or OLDEST
    return served(log["model"], log["gpu"], **log["options"], engine_version=f"0.{minor}")


@pytest.mark.parametrize("log", starts_of("vllm-other-versions.jsonl"), ids=name_of)
def test_starts_of_other_versions_hold_what_their_logs_print(log):
    """Weights to the last digit, tokens within 1 %, or as said."""
    found, printed = served_as(log), log["printed"]
    weights = round(found.weights_bytes / GIB, 2)
    assert printed.get("weights_gib", weights) == weights
    tokens = sum(found.first_start_tokens if log.get("first_start") else found.tokens) / 2
    assert abs(tokens / printed.get("tokens", tokens) - 1) < OFF.get(log["engine"], 0.01)


@pytest.mark.parametrize("log", starts_of("vllm-rehearsed-starts.jsonl"), ids=name_of)
def test_rehearsed_starts_of_newer_versions_hold_as_much(log):
    found, printed = served_as(log), log["printed"]
    near = 0.035 if "gemma-4" in str(log["model"]) else 0.025  # known: what its tables leave behind
    assert abs(found.weights_bytes / GIB - printed["weights_gib"]) < near
    if "activations_gib" in printed:
        assert abs(found.activations_bytes / GIB - printed["activations_gib"]) < 0.03
    low, high = found.first_start_tokens if log.get("first_start") else found.tokens
    slack = 0.01 if "gpt-oss" in str(log["model"]) else 0.002  # known: 0.06 GiB that nothing names
    assert low * (1 - slack) <= printed["tokens"] <= high * (1 + slack)


def test_recurrent_layers_keep_states_in_blocks_of_tokens():
    """320 tokens, of rehearsed starts with states in bfloat16; here they are float32."""
    newest = {"engine_version": "0.33", "max_model_len": 8192}
    hopper, ada = (served("qwen3.5-9b", gpu, **newest) for gpu in ("h100", "4090"))
    state = 3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4
    token = 2 * 4 * 256 * 2  # a layer's keys and values
    assert hopper.block_size == 64 * -(-state // (64 * token)) == 576
    assert ada.block_size == 16 * -(-state // (16 * token)) == 528
    assert (hopper.groups.state_blocks, ada.groups.state_blocks) == (3 * 3, 3 * 2)
    assert (
        ada.error
        == "max_num_seqs (256) exceeds available Mamba cache blocks (208): --max-num-seqs 208"
    )
    assert served("qwen3.5-9b", "4090", max_num_seqs=208, **newest).error is None
    with pytest.raises(NotModelledError, match=r"vLLM 0\.33 alone"):
        served("qwen3.5-9b", engine_version="0.32")


def test_layers_of_two_widths_have_pages_of_one_size():
    """Gemma 4 E4B: 20 sliding layers of 2 x 256, 4 that see all of 2 x 512; 18 share others'."""
    groups = served("gemma-4-e4b", max_model_len=8192).groups
    assert groups.windows == (512,) * 5 + (None,)
    assert (groups.layers, groups.width, groups.narrower) == (4, 2 * 2 * 512, (2,) * 5 + (1,))


def test_a_server_that_lacks_states_is_told_what_starts():
    said = str(vrambudget.serve("qwen3.5-9b", gpu="4090"))
    assert said.startswith("DOES NOT START: max_num_seqs (256) exceeds")
    assert "--max-num-seqs 208 --max-model-len 8192" in said


@pytest.mark.parametrize(
    ("model", "gpu", "weights", "tokens"),
    [
        # vLLM 0.19.0 rehearsed with --enforce-eager: Triton, Marlin, Triton
        ("gpt-oss-20b", "4090", 13.72, 139_888),
        ("qwen3-30b-a3b-fp8", "h100", 29.04, 472_640),
        ("deepseek-v3, 6 layers", "h100", 37.6, None),
    ],
)
def test_quantised_experts_are_those_of_rehearsed_starts(model, gpu, weights, tokens):
    values = {**find_model("deepseek-v3").values, "num_hidden_layers": 6}
    if "qwen3" in model:
        values = {**find_model("qwen3-30b-a3b").values, "quantization_config": BLOCKS}
    utilization = 0.9 if gpu == "4090" else 0.95
    found = served(
        model if "gpt" in model else dict(values),
        gpu,
        max_model_len=8192,
        gpu_memory_utilization=utilization,
    )
    assert abs(found.weights_bytes / GIB - weights) < 0.02
    assert tokens is None or found.tokens[0] <= tokens <= found.tokens[1]


def test_experts_keep_two_workspaces():
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mixtral"}
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 1}
    mixture = served({**experts, **sizes}, "h100").activations_bytes
    dense = served({"model_type": "mistral", **sizes, "vocab_size": 32000}, "h100")
    chosen = 8192 * 2 * 2  # tokens, experts of each, bytes
    assert mixture - dense.activations_bytes == chosen * (14336 + 28672) - (
        dense.activations_bytes - served(sampled_alone(sizes), "h100").activations_bytes
    )


def sampled_alone(sizes):
    return {"model_type": "mistral", **sizes, "intermediate_size": 64, "vocab_size": 32000}


def test_a_latent_cache_is_one_for_all_heads_on_every_rank():
    [lite] = [log["model"] for log in LOGS if name_of(log) == "deepseek_v2"]
    alone, shared = served(lite), served(lite, tensor_parallel_size=2)
    page = 16 * (512 + 64) * 2
    for found in (alone, shared):
        assert found.blocks[0] == found.cache_bytes[0] // page // 27
    assert served(lite, kv_cache_dtype="fp8").blocks[0] >= 2 * alone.blocks[0]
    assert shared.weights_bytes < 0.55 * alone.weights_bytes
    with pytest.raises(VramBudgetError, match="num_experts_per_tok"):
        load_decoder({"model_type": "deepseek_v2"}, where="a test")


@pytest.mark.parametrize(("gpu", "workspaces"), [("a100", 128), ("h100", 128), ("b200", 256)])
def test_kernels_of_latent_attention_make_their_workspaces_as_they_are_looked_at(gpu, workspaces):
    [lite] = [log["model"] for log in LOGS if name_of(log) == "deepseek_v2"]
    config = load_decoder(lite, where="a test")
    alone = weight_bytes(config, range(config.num_hidden_layers), itemsize=2, tp=1)
    assert served(lite, gpu).weights_bytes - alone == workspaces * 2**20


def test_the_longest_request_that_starts_is_what_vllm_estimates(capsys):
    assert main(["fit", "llama-3.1-8b", "--gpu", "24GB", "--longest-model-len"]) == 0
    longest = served(gpu="24GB", engine_version=USUAL).longest_request
    assert f"starts with: {longest:,} tokens of the model's 131,072" in capsys.readouterr().out
    words = ["serve", "llama-3.1-8b", "--gpu", "24GB", "--max-model-len"]
    assert main([*words, str(longest)]) == 0
    assert main([*words, str(longest + 17)]) == 1
    capsys.readouterr()
    assert main(["fit", "llama-3.1-8b", "--gpu", "h100", "--longest-model-len"]) == 0
    assert "the model's own limit" in capsys.readouterr().out
    assert main(["fit", "llama-3.1-8b", "--gpu", "12GB", "--longest-model-len"]) == 1
    words = ["fit", "llama-3.1-8b", "--gpu", "12GB", "--longest-model-len"]
    assert main([*words, "--quantization", "awq", "--kv-cache-dtype", "fp8"]) == 0
    assert main([*words, "--engine", "sglang"]) == 1
    assert "SGLang does not start" in capsys.readouterr().out
    assert main([*words[:-1], "--quantization", "awq"]) == 2
    words = ["fit", "gpt2", "--gpu", "12GB", "--longest-model-len", "--batch", "3"]
    assert main(words) == 2
    assert "a server has no such option" in capsys.readouterr().err


def test_validate_holds_starts_against_their_logs(capsys):
    assert main(["validate", str(PUBLISHED), "--format", "json"]) == 0
    rows = {row["kind"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["all"]["starts"] == len(LOGS) == sum(r["starts"] for r in rows.values()) / 2
    assert rows["quantised, 1 GPU"]["weights"] == 1
    assert rows["latent attention, 1 GPU"]["weights"] == 1
    assert abs(rows["all"]["worst"]) < 0.005


@pytest.mark.parametrize(
    ("change", "words"),
    [
        pytest.param({"engine": "vllm 0.6.1"}, "a start of vllm 0.6.1", id="version"),
        pytest.param({"gpu": None}, "has no gpu", id="key"),
        pytest.param({"printed": None, "measured": {}}, "tables of their own", id="job"),
    ],
)
def test_starts_that_cannot_be_compared_are_told(change, words, tmp_path, capsys):
    wrong = {key: value for key, value in {**LOGS[0], **change}.items() if value is not None}
    path = tmp_path / "starts.jsonl"
    path.write_text(f"{json.dumps(wrong)}\n{json.dumps(LOGS[0])}\n")
    assert main(["validate", str(path)]) == 2
    assert words in capsys.readouterr().err
