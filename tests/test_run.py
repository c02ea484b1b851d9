"""What runs here: GGUF files and names, llama.cpp's placement, the command that starts it."""

import json
import os
import struct
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.cards import cards_folder
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.integrations.run_here import gpus_of, models_of
from vrambudget.scenario import resolve
from vrambudget.serving import llama_cpp
from vrambudget.serving.gguf import read_gguf
from vrambudget.serving.gguf_architectures import ARCHITECTURES, SEEN
from vrambudget.serving.gguf_cards import header_of, parsed, table_of
from vrambudget.serving.gguf_known import known
from vrambudget.serving.gguf_model import of_file, of_header
from vrambudget.serving.gguf_quants import Shape, type_of
from vrambudget.serving.gguf_types import row_bytes
from vrambudget.serving.llama_cpp_compute import _Graph
from vrambudget.serving.options import LlamaCppOptions

MIB = 2**20
LLAMA_3B = {"model_type": "llama", "hidden_size": 3072, "num_hidden_layers": 28} | {
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}


def loaded(model="llama-3.1-8b", kind="Q4_K_M", gpu="24GB", **options):
    table = table_of(parsed(resolve(model).config), "")
    named = of_header(header_of(table, str(model), kind), str(model))
    return llama_cpp.serve(named, gpus_of(gpu), LlamaCppOptions.parse(options))


def mib(nbytes):
    return round(nbytes / MIB, 2)


def records(name):
    path = Path(__file__).parent / "records" / "serving" / name
    return [json.loads(line) for line in path.read_text().splitlines()]


RECORDS = records("llama-cpp.jsonl")
RECIPES = {
    "qwen3-30b-a3b-2507:Q5_K_M": 0.002,
    "qwen3-32b:Q4_0": 0.004,  # some ffn_down in Q4_1: made with an importance matrix
    "gemma-3-27b:Q4_0": 0.08,  # and, of ik_llama.cpp, the table of tokens twice
    "gemma-3-27b:IQ4_XS": 0.08,
    "llama-3.2-3b:Q4_K_M on 2x24GB": 0.008,  # of Ollama's: one ffn_down is on the other GPU
}
"""Files by a recipe of their publisher's: by how much their weights are off at most."""
BUILDS = {
    "glm-4-32b-0414:IQ4_XS": 0.13,  # before one operation gated both halves
    "qwen3-235b-a22b:Q4_K_M": 0.03,
    "qwen2.5-3b:Q8_0": 0.03,
    "smollm2-135m:Q4_K_M on 2x48GB": 0.1,  # main memory's
    "gpt-oss-20b:MXFP4 on m3-max": 0.022,  # before embeddings were an input
    "qwen3-14b:Q5_K_M": 0.04,  # KoboldCpp's, on Vulkan
    "qwen:7b-q8_0": 0.1,
}
"""Compute buffers of builds that differ from those whose rules are here: by how much at most."""


def named_in(table, start):
    return table.get(f"{start['model']} on {start['gpu']}") or table.get(start["model"])


def off(estimated, printed):
    return abs(estimated / printed - 1)


@pytest.mark.parametrize("start", RECORDS, ids=lambda start: start["model"])
def test_published_starts_are_counted_to_the_printed_digit(start):
    """Model and cache of each device; compute buffers within 2 %, but for other builds."""
    version = start["engine"].split()[1]
    options = LlamaCppOptions.parse({**start["options"], "engine_version": version})
    (model,) = models_of(start["model"])
    found = llama_cpp.serve(model, gpus_of(start["gpu"]), options)
    held = {part.name: part for part in (*found.gpus, found.host)}
    for device, printed in start["printed"].items():
        digits = printed.pop("digits", 2)
        compute = printed.pop("compute", None)
        for part, size in printed.items():
            estimated = getattr(held[device], f"{part}_bytes") / MIB
            of_recipe = named_in(RECIPES, start)
            if of_recipe and part == "model":
                assert off(estimated, size) <= of_recipe
            else:
                assert off(estimated, size) < 1e-4 if digits else int(estimated) == size
        if compute is not None:
            at_most = named_in(BUILDS, start) or 0.02
            assert off(held[device].compute_bytes / MIB, compute) <= at_most


@pytest.mark.parametrize("start", records("llama-cpp-cpu.jsonl"), ids=lambda start: start["model"])
def test_starts_on_a_cpu_are_counted_to_the_printed_digit(start):
    """PyPI's xllamacpp started files of these tensors, with the options that `run` prints.

    `repacked`: of the weights' bytes, what it laid out once more for this CPU.
    """
    run = vrambudget.run(start["model"], gpu="none", **start["options"])
    held = run.values["host"]
    printed = start["printed"]["CPU"]
    assert {part: mib(held[f"{part}_bytes"]) for part in printed} == printed
    assert start["repacked"] <= printed["model"]


STARTS = records("llama-cpp-counted.jsonl")


def counts_of(starts, *, exact_weights=True):
    """Return how many buffers starts print, how many are equal, and how many are within 2 %.

    `exact_weights`: model and cache have to be equal, too.
    """
    parts, exact, near = 0, 0, 0
    for start in starts:
        (model,) = models_of(start["model"])
        loaded = (each for each in model.tensors if each.name != start.get("without"))
        model = replace(model, tensors=tuple(loaded))
        options = LlamaCppOptions.parse(start["options"])
        found = llama_cpp.serve(model, gpus_of(start["gpu"]), options)
        for held in (*found.gpus, found.host):
            for part, printed in start["printed"].get(held.name, {}).items():
                estimated = getattr(held, f"{part}_bytes")
                if options.engine_version == "2025-08":  # prints MiB
                    estimated = mib(estimated)
                assert not exact_weights or part == "compute" or estimated == printed, start
                parts += 1
                exact += estimated == printed
                near += estimated == printed or (printed != 0 and off(estimated, printed) < 0.02)
    return parts, exact, near


def test_starts_on_devices_that_only_count_are_equal_to_the_byte(monkeypatch):
    """Builds' own loader, cache and scheduler ran on devices that hold nothing.

    `without`: a tensor that published files have, and that was not in the one that was loaded. On
    several such devices norms were with the layer before theirs, in the builds of 2026; on GPUs
    they are with their own (four published starts).
    """
    build = _Graph.build

    def on_devices_that_only_count(graph):
        graph.keeps_norms = graph.is_old and graph.is_whole
        build(graph)

    monkeypatch.setattr(_Graph, "build", on_devices_that_only_count)
    assert counts_of(STARTS) == (4548, 4420, 4490)


H200, VIRTUAL = records("llama-cpp-h200.jsonl"), records("llama-cpp-virtual.jsonl")
OF_H200 = {
    "all-minilm-l6-v2": 0.31,
    "bge-m3": 0.08,
    "command-r:": 0.19,
    "embeddinggemma": 0.07,
    "exaone-4.0": 0.04,
    "falcon-mamba": 0.04,
    "gemma-3-12b": 0.09,
    "gemma-3n": 0.15,
    "gemma-4": 0.1,
    "gpt-oss": 0.03,
    "granite-4.0-h": 0.25,
    "grok": 0.02,
    "jamba": 0.08,
    "lfm2": 1.0,
    "ling": 0.02,
    "llama-4": 0.03,
    "mamba": 0.04,
    "mxbai": 0.08,
    "nemotron-3": 0.09,
    "nemotron-nano": 0.14,
    "nomic": 0.1,
    "phi-": 0.001,
    "qwen3.5-2b": 0.03,
    "qwen3.5-397b": 0.01,
}
"""Compute buffers that are not equal: by how much at most."""
COPIED = {"gemma-3n": 0.12, "gemma-4": 0.11}
"""Weights in main memory that are there twice where the file is not mapped."""
ENCODERS = ("all-minilm", "bge-m3", "mxbai", "nomic")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("model", sorted({start["model"] for start in H200}))
def test_starts_on_an_h200_are_estimated(model):
    """llama.cpp's own CUDA backend on a real GPU; `beside`: what the driver took in real starts."""
    at_most = next((most for name, most in OF_H200.items() if model.startswith(name)), 0)
    doubled = next((most for name, most in COPIED.items() if model.startswith(name)), 0)
    norm = 0.0015 if model.startswith(ENCODERS) else 0  # the first norm, with half of the layers
    (found,) = models_of(model)
    for start in (start for start in H200 if start["model"] == model):
        (gpu,) = gpus_of(start["gpu"])
        serving = llama_cpp.serve(found, [gpu], LlamaCppOptions.parse(start["options"]))
        for held in (*serving.gpus, serving.host):
            printed = start["printed"][held.name]
            assert held.cache_bytes == printed["cache"]
            model_bytes = printed.get("model", held.model_bytes)  # not there: a mapped file
            assert off(held.model_bytes or 1, model_bytes or 1) <= max(doubled, norm)
            assert off(held.compute_bytes or 1, printed["compute"] or 1) <= at_most, start
        low, high = gpu.context_range
        assert low <= min(start.get("beside", [low])) <= max(start.get("beside", [high])) <= high


def test_a_name_near_two_lists_is_proposed_once():
    with pytest.raises(VramBudgetError) as caught:
        vrambudget.run("hunyuan-7b:Q4_K_M", gpu="12GB")
    assert (caught.value.hint or "").count("'hunyuan-a13b'") == 1


def test_architectures_whose_compute_buffers_were_held_are_known():
    assert set(ARCHITECTURES) >= SEEN


@pytest.mark.parametrize(
    ("starts", "counts"),
    [(H200, (6747, 6517, 6633)), (VIRTUAL, (2088, 1959, 2029))],
    ids=["h200", "two virtual GPUs"],
)
@pytest.mark.nightly
def test_most_buffers_of_llama_cpp_on_cuda_are_equal_to_the_byte(starts, counts):
    """How many buffers there are, how many are equal, and how many within 2 %."""
    assert counts_of(starts, exact_weights=False) == counts


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("llama-server -m qwen3-8b:Q8_0 -c 8192 -fa -t 8", "run qwen3-8b:Q8_0 -c 8192 -fa on"),
        ("run -m qwen3-8b:Q8_0 -c 8192 -ngl 99", "run qwen3-8b:Q8_0 -c 8192 -ngl 99"),
        ("run ./llama-cli --model=qwen3-8b:Q8_0 -c 8192 -p hello", "run qwen3-8b:Q8_0 -c 8192"),
        (
            "ollama run qwen3:8b-q8_0 --num-ctx 8192 --verbose",
            "run qwen3:8b-q8_0 --ollama -c 8192",
        ),
        ("vllm serve qwen3-8b -tp 2 --port 8000", "serve qwen3-8b -tp 2"),
        (
            "python3 -m sglang.launch_server --model-path qwen3-8b --tp 2",
            "serve qwen3-8b --engine sglang -tp 2",
        ),
    ],
)
def test_a_command_that_starts_a_server_is_read_as_it_is_typed(typed, meant, capsys):
    said = []
    for words in (typed, meant):
        assert main([*words.split(), "--gpu", "24GB"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


def test_a_latent_cache_is_not_that_of_a_file_of_2024(capsys):
    """Ollama's deepseek-coder-v2:16b: 1,296.00 MiB of keys and 864.00 of values for 8192 tokens."""
    assert main(["run", "deepseek-coder-v2:16b-q4_0", "--gpu", "12GB", "-c", "8192"]) == 0
    said = capsys.readouterr().out
    assert "KV buffer size =   243.00 MiB" in said
    assert "has no attn_k_b.weight, and a cache of 2.11 GiB" in said
    assert main(["run", "glm-4.7-flash:Q4_K_M", "--gpu", "48GB", "-c", "8192"]) == 0
    assert "attn_k_b" not in capsys.readouterr().out


def test_no_part_of_a_short_option_stands_for_it(capsys):
    # argparse takes -t for -ts, by which `-t 8` would split a model's layers
    assert main(["run", "qwen3-8b:Q8_0", "--gpu", "2x12GB", "-t", "8"]) == 0
    assert "left out, for they decide no memory: -t" in capsys.readouterr().err
    assert main(["run", "qwen3-8b:Q8_0", "--gpu", "2x12GB", "-n", "8", "-nc", "8"]) == 2
    assert "unrecognized arguments: -nc" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("--spec-type draft-mtp", "spec_type is draft-mtp, which has no rules: a layer"),
        ("--moe-cache-mib 512", "--moe-cache-mib has no counterpart here: a cache of experts"),
        ("-ctkd q8_0", "-ctkd has no counterpart here: the type of a draft model's cache"),
        ("-hff model.gguf", "-hff has no counterpart here: one file of a repository"),
        ("--embedding", "--embedding has no counterpart here: a batch whose embeddings"),
    ],
)
def test_what_decides_memory_and_has_no_rules_is_told(typed, told, capsys):
    assert main(["run", "qwen3-8b:Q8_0", "--gpu", "24GB", *typed.split()]) == 2
    assert told in capsys.readouterr().err


def test_mlps_of_the_first_layers_stay_in_main_memory():
    whole, some = (loaded("llama-3.2-1b", n_cpu_ffn=n) for n in (0, 4))
    of_layers = sum(whole.layer_bytes[:4]) - sum(some.layer_bytes[:4])
    assert of_layers == 4 * row_bytes("Q4_K", 2048) * 8192 * 2 + sum(
        row_bytes(kind, 8192) * 2048 for kind in ("Q6_K", "Q6_K", "Q4_K", "Q4_K")
    )
    assert some.host.model_bytes - whole.host.model_bytes == of_layers


def test_what_is_guessed_has_logits_and_uses_the_draft_model_it_has():
    """Without --spec-type llama-server says "no implementations specified for speculative..."."""
    assert [
        LlamaCppOptions.parse(given).outputs
        for given in (
            {},
            {"model_draft": "x.gguf"},
            {"model_draft": "x.gguf", "spec_draft_n_max": 7, "parallel": 1},
            {"spec_type": "ngram-mod,ngram-cache", "parallel": 2},
        )
    ] == [4, 16, 8, 130]


def test_prompts_that_are_kept_may_not_fit_beside_a_model(capsys):
    words = ["run", "qwen3-8b:Q8_0", "--gpu", "24GB", "--ram", "8GB"]
    for more, said in ([], "up to 8.00 GiB"), (["-cram", "-1"], "any size"), (["-cram", "0"], ""):
        assert main([*words, *more]) == 0
        text = capsys.readouterr().out
        assert said in text
        assert bool(said) == ("keeps prompts" in text)


@pytest.mark.parametrize(
    ("name", "architecture", "gib"),
    [
        ("gemma4:12b-it-q4_K_M", "gemma4", 6.86),
        ("granite4:small-h", "granitehybrid", 21.29),  # Q5_K_M is the best that is whole here
        ("nemotron-3-nano:Q4_K_M", "nemotron_h_moe", 22.82),
        ("lfm2-8b-a1b:Q4_K_M", "lfm2moe", 4.70),
        ("pythia_1b:Q8_0", "gptneox", 1.00),
        ("qwen3.5:9b-q4_K_M", "qwen35", 5.23),
        ("ministral-3:8b", "mistral3", 8.40),
        ("hunyuan-a13b:IQ2_XXS", "hunyuan-moe", 19.80),
    ],
)
def test_a_name_may_be_that_of_a_header_with_types_for_each_tensor(name, architecture, gib):
    run = vrambudget.run(name, gpu="24GB", ram="64GB")
    assert run.starts
    assert f"of {architecture} " in str(run) or architecture in SEEN
    assert round(run.values["weights_bytes"] / 2**30, 2) == gib


PYTHIA = {"model_type": "gpt_neox", "hidden_size": 512, "num_hidden_layers": 6} | {
    "num_attention_heads": 8,
    "intermediate_size": 2048,
    "vocab_size": 50304,
    "max_position_embeddings": 2048,
}


@pytest.mark.parametrize("name", ["glm-4.5-air", "qwen3.5-35b-a3b", "gemma-4-e2b", "lfm2-1.2b"])
def test_a_configuration_has_the_header_of_its_name(name, tmp_path):
    """As it is published: what a model that sees adds stands beside the text's."""
    card = tomllib.loads((cards_folder() / "gguf" / f"{name}.toml").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "x", "text_config": card["config"]}))
    (local,), (named,) = models_of(f"{path}:IQ4_XS"), models_of(f"{name}:IQ4_XS")
    assert local.tensors == named.tensors
    assert (local.keys, local.states, local.windows) == (named.keys, named.states, named.windows)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hidden_size": None}, "the configuration has no hidden_size"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'"),
        ({"hidden_size": 10**30}, "hidden_size is 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": 0}, "the configuration has no head_dim"),
        ({"vocab_size": -5}, "vocab_size is -5"),
        ({"vocab_size": [1, 2]}, "the configuration has no vocab_size"),
    ],
)
def test_what_a_configuration_lacks_for_its_tensors_is_named(wrong, words, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(PYTHIA | wrong))
    with pytest.raises(VramBudgetError, match=words):
        next(models_of(str(path)))


def test_positions_convolutions_and_norms_are_not_quantised():
    """conversion/base.py: prepare_tensors."""
    kinds = {
        t.name: t.kind for name in ("bge-m3", "lfm2-1.2b") for t in next(models_of(name)).tensors
    }
    assert kinds["position_embd.weight"] == kinds["token_types.weight"] == "F32"
    assert kinds["blk.0.shortconv.conv.weight"] == "F32"
    (nemotron,) = models_of("nemotron-nano-9b-v2:Q4_K_M")
    assert {t.kind for t in nemotron.tensors if t.name.endswith("_norm.weight")} == {"F32"}


@pytest.mark.parametrize(("text", "tokens"), [("8k", 8000), ("8K", 8192), ("8192", 8192)])
@pytest.mark.parametrize("command", ["run", "serve", "plan --serve"])
def test_a_context_is_read_as_vllm_reads_numbers(command, text, tokens, capsys):
    model = "qwen3-4b" + ":Q4_K_M" * (command == "run")
    asked = [*command.split(), model, "--gpu", "24GB", "--context", text]
    assert main(asked) == 0
    assert f"{tokens:,}" in capsys.readouterr().out
    assert main([*asked[:-1], "infk"]) == 2
    assert "invalid int value: 'infk'" in capsys.readouterr().err


def test_a_name_that_is_not_known_leads_to_its_file(capsys):
    assert main(["run", "nemotron-3-nona", "--gpu", "24GB"]) == 2
    error = capsys.readouterr().err
    assert "did you mean 'nemotron-3-nano-30b-a3b'" in error
    assert "vrambudget run model.gguf" in error


def test_ollamas_names_lead_to_models_whose_file_is_counted():
    also = tomllib.loads((cards_folder() / "gguf" / "names" / "ollama.toml").read_text())["also"]
    assert {model for model in also if not next(models_of(model)).tensors} == set()
    (mistral,) = models_of("mistral:7b-instruct-q4_K_M")
    assert next(models_of("mistral")).keys == mistral.keys
    assert next(models_of("granite4:latest")).architecture == "granite"


def test_a_card_has_as_many_tensors_of_each_type_as_a_published_log():
    """Gemma 4 12B: "type f32: 338 tensors", "q4_K: 284", "q6_K: 45" (ik_llama.cpp 1921)."""
    (model,) = models_of("gemma-4-12b:Q4_K_M")
    kinds = [tensor.kind for tensor in model.tensors]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {"F32": 338, "Q4_K": 284, "Q6_K": 45}


def test_encoders_have_their_table_of_tokens_once_and_no_logits():
    held = loaded_file_of("bge-m3:Q8_0")
    assert held.gpus[0].model_bytes == 322_150_400  # as counted by llama.cpp b11063
    assert held.gpus[0].compute_bytes < 250_002 * 4 * 512


def loaded_file_of(name, gpu="24GB", **options):
    (model,) = models_of(name)
    return llama_cpp.serve(model, gpus_of(gpu), LlamaCppOptions.parse(options))


def test_a_compute_buffer_has_logits_or_scores():
    old = {"engine_version": "2025-05"}
    logits = (128256 + 4096) * 512 * 4
    assert loaded(ctx_size=2048, **old).gpus[0].compute_bytes == logits  # printed: 258.50 MiB
    assert mib(loaded(ctx_size=8192, **old).gpus[0].compute_bytes) == 560  # printed: 560.00 MiB
    assert loaded(ctx_size=8192).gpus[0].compute_bytes < logits  # a row for each slot


def test_the_output_went_with_all_layers_only():
    old = loaded(n_gpu_layers=16, engine_version="2025-08").gpus[0]
    new = loaded(n_gpu_layers=17).gpus[0]
    assert old.cache_bytes == new.cache_bytes
    assert new.model_bytes - old.model_bytes == row_bytes("Q6_K", 4096) * 128256 + 4096 * 4


def test_layers_with_a_window_have_fewer_cells():
    found = loaded("gemma-2-9b", ctx_size=8192, parallel=1)
    assert (found.cells, found.window_cells) == (8192, 4096 + 512)
    # slots that share a cache have a window each
    assert loaded("gemma-3-1b", ctx_size=8192).window_cells == 4 * 512 + 512
    assert loaded("gemma-2-9b", ctx_size=8192, swa_full=True).window_cells is None


def test_a_model_without_an_output_has_its_table_twice():
    found, bare = loaded(LLAMA_3B), loaded({**LLAMA_3B, "tie_word_embeddings": False})
    assert found.host.model_bytes == row_bytes("Q6_K", 3072) * 128256
    assert bare.host.model_bytes == row_bytes("Q4_K", 3072) * 128256
    assert found.gpus[0].model_bytes == bare.gpus[0].model_bytes


def test_layers_in_main_memory_keep_their_cache_there():
    whole, none, half = loaded(), loaded(n_gpu_layers=0), loaded(n_gpu_layers=17)
    assert (none.gpus[0].model_bytes, none.gpus[0].cache_bytes) == (0, 0)
    assert none.host.cache_bytes == whole.gpus[0].cache_bytes
    # the output is one of the 17
    assert half.gpus[0].cache_bytes * 2 == whole.gpus[0].cache_bytes == half.host.cache_bytes * 2
    output = loaded(n_gpu_layers=1).gpus[0]
    assert (output.layers, output.cache_bytes) == (1, 0)
    assert output.model_bytes == row_bytes("Q6_K", 4096) * 128256 + 4096 * 4


def test_layers_are_split_among_unequal_gpus():
    two = loaded("llama-3.3-70b", gpu="24GB,12GB", tensor_split="3,1")
    assert [held.layers for held in two.gpus] == [61, 20]
    assert two.gpus[0].cache_bytes == 61 * 4096 * 2 * 2 * 1024
    by_memory = loaded("llama-3.3-70b", gpu="24GB,12GB")
    assert [held.layers for held in by_memory.gpus] == [55, 26]
    one = loaded("llama-3.3-70b", gpu="24GB,12GB", split_mode="none", main_gpu=1)
    assert [held.layers for held in one.gpus] == [0, 81]
    for wrong in ({"tensor_split": "a"}, {"tensor_split": "1,1,1"}, {"tensor_split": "0,0"}):
        with pytest.raises(VramBudgetError, match="tensor_split is"):
            loaded(gpu="2x24GB", **wrong)


@pytest.mark.parametrize(
    ("model", "gpu", "context", "experts"),
    [
        ("qwen3-235b-a22b:Q4_K_M", "4x24GB", 8192, 34),
        ("gpt-oss-120b", "24GB,12GB", 16384, 18),
        ("glm-4.5-air:Q4_K_M", "3x24GB", 16384, 4),
    ],
)
def test_several_gpus_are_full_before_experts_stay_in_main_memory(model, gpu, context, experts):
    """By memory alone all GPUs but the last were nearly empty: 80, 30 and 17 layers' stayed."""
    found = vrambudget.run(model, gpu=gpu, ram="200GB", context=context)
    command = found.values["command"].split()
    assert found.starts
    assert int(command[command.index("-ncmoe") + 1]) <= experts
    shares = [int(n) for n in command[command.index("-ts") + 1].split(",")]
    held = found.values["gpus"]
    assert [each["layers"] for each in held] == shares
    left = [
        capacity - each["model_bytes"] - each["cache_bytes"] - each["compute_bytes"]
        for each, capacity in zip(held, found.values["capacity_bytes"], strict=True)
    ]
    assert max(left) < 3 * 2**30


def test_a_model_without_experts_is_shared_so_that_fewer_layers_stay_in_main_memory():
    found = vrambudget.run("llama-3.3-70b:Q4_K_M", gpu="12GB,24GB,8GB", ram="64GB", context=8192)
    assert "-ngl 78 -c 8192 -ts 21,45,12" in found.values["command"]  # by memory alone -ngl 72
    assert found.values["gpus"][0]["layers"] == 21


def test_experts_stay_in_main_memory_by_layer_or_by_name():
    def on_gpu(**options):
        return loaded("qwen3-30b-a3b", **options).gpus[0].model_bytes

    whole, none = on_gpu(), on_gpu(cpu_moe=True)
    assert on_gpu(n_cpu_moe=48) == on_gpu(override_tensor="ffn_.*_exps=CPU") == none
    assert none < on_gpu(n_cpu_moe=24) < on_gpu(n_cpu_moe=1) < whole
    assert loaded("qwen3-30b-a3b", cpu_moe=True).host.model_bytes > whole - none
    # a token takes 8 experts of 128
    read = loaded("qwen3-30b-a3b", kind="Q8_0", cpu_moe=True).read_bytes
    assert read[1] == 48 * 3 * row_bytes("Q8_0", 2048) * 768 * 8
    for wrong in ("exps", "exps=GPU", "(=CPU", "exps=CUDA7"):
        with pytest.raises(VramBudgetError, match="override_tensor has"):
            on_gpu(override_tensor=wrong)


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
        ("IQ4_XS", "attn_v", 9, "Q5_K"),
        ("IQ3_XXS", "attn_output", 9, "IQ3_S"),
        ("IQ2_M", "token_embd", 0, "IQ3_S"),
    ],
)
def test_kinds_of_tensors(name, tensor, layer, kind):
    assert type_of(name, tensor, (4096, 4096), Shape(32, 4), layer=layer) == kind


def test_rows_of_odd_lengths_take_a_simpler_kind():
    assert type_of("Q4_K_M", "ffn_up", (896, 8), Shape(24, 7), layer=9) == "Q5_0"
    assert type_of("Q4_K_M", "attn_v", (900, 8), Shape(24, 7), layer=0) == "F16"


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def value(entry):
    """Return a value as a file has it: its type, then the value."""
    if isinstance(entry, str):
        return struct.pack("<I", 8) + text(entry)
    if isinstance(entry, list):
        return struct.pack("<IIQ", 9, 4, len(entry)) + struct.pack(f"<{len(entry)}I", *entry)
    return struct.pack("<IQ", 10, entry)


def a_file(tmp_path, values=(), tensors=(), *, version=3, name="model.gguf", arch="llama"):
    """Write the header of a small Llama."""
    plain = {
        f"{arch}.block_count": 2,
        f"{arch}.embedding_length": 256,
        f"{arch}.attention.head_count": 4,
        f"{arch}.attention.head_count_kv": 2,
        f"{arch}.context_length": 4096,
        **dict(values),
    }
    entries = [text("general.architecture") + value(arch)]
    entries += [text(k) + value(v) for k, v in plain.items()]
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
    found = llama_cpp.serve(model, [find_gpu("8GB")], LlamaCppOptions.parse({}))
    layer, output = 144 * (512 + 1), 210 * (1000 + 1)  # a row of 256 more: a multiple of 512
    assert found.gpus[0].model_bytes == 2 * up(layer) + up(output) + up(256 * 4)
    assert found.gpus[0].cache_bytes == 2 * 2 * 128 * 2 * 4096
    assert found.host.model_bytes == 144 * 1000


def test_a_model_in_several_files_is_read_from_all(tmp_path, capsys):
    parts = {"split.count": 2}
    a_file(tmp_path, parts, [("token_embd.weight", (256, 1000), 12)], name="m-00001-of-00002.gguf")
    second = a_file(
        tmp_path, parts, [("blk.1.ffn_up.weight", (256, 512), 12)], name="m-00002-of-00002.gguf"
    )
    assert len(of_file(second).tensors) == 2
    second.unlink()
    assert main(["run", str(tmp_path / "m-00001-of-00002.gguf"), "--gpu", "8GB"]) == 2
    assert "m-00002-of-00002.gguf" in capsys.readouterr().err
    with pytest.raises(VramBudgetError, match="one of several files"):
        of_file(a_file(tmp_path, parts))


HYBRID = {f"qwen35.ssm.{name}": size for name, size in {"inner_size": 64, "state_size": 8}.items()}
HYBRID |= {"qwen35.ssm.conv_kernel": 4, "qwen35.ssm.group_count": 2, "qwen35.block_count": 4}


def test_recurrent_layers_keep_a_state_and_no_tokens(tmp_path):
    table = [("token_embd.weight", (256, 1000), 12)]
    model = of_file(a_file(tmp_path, HYBRID, table, arch="qwen35"))
    assert model.keys == (0, 0, 0, 128)  # every fourth layer sees all tokens
    assert model.states == (3 * (64 + 2 * 2 * 8) + 8 * 64,) * 3 + (0,)


def test_windows_and_latent_rows_are_read_from_the_file(tmp_path):
    table = [("token_embd.weight", (256, 1000), 12)]
    window = {"gemma3.attention.sliding_window": 1024, "gemma3.block_count": 6}
    model = of_file(a_file(tmp_path, window, table, arch="gemma3"))
    assert model.windows == (1024,) * 5 + (None,)
    latent = {"attention.key_length": 576, "attention.value_length": 512}
    latent |= {"attention.key_length_mla": 192, "attention.head_count_kv": 1}
    values = {f"deepseek2.{name}": size for name, size in latent.items()}
    model = of_file(a_file(tmp_path, values, table, arch="deepseek2"))
    assert (model.keys, model.values) == ((576, 576), (0, 0))


def header(*entries, tensors=0):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(entries)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(b"GGML" + b"\0" * 40, "does not begin with GGUF", id="magic"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version is 1", id="version"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 9, 0), "there are 9 tensors", id="short"),
        pytest.param(b"GGUF" + struct.pack("<IQQ", 3, 2**40, 0), "tensors", id="many"),
        pytest.param(header(text("a") + struct.pack("<IIQ", 9, 8, 2**60)), "'a'", id="list"),
        pytest.param(header(text("a") + struct.pack("<IIQ", 9, 9, 1)), "list of type 9", id="nest"),
        pytest.param(header(text("a") + value(1), text("a") + value(1)), "twice", id="twice"),
    ],
)
def test_what_is_no_gguf_file_is_named(content, words, tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(VramBudgetError, match=words):
        read_gguf(path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"split.count": "two"},
        {"split.count": [2]},
        {"general.architecture": [1]},
        {"llama.block_count": 2**31},
        {"llama.block_count": "32"},
        {"llama.attention.head_count": [4]},
        {"llama.embedding_length": 0},
        {"general.name": [1, 2]},
    ],
)
def test_values_of_the_wrong_type_or_size_are_named_by_their_key(wrong, tmp_path):
    path = a_file(tmp_path, wrong)
    if "general.architecture" in wrong:
        path.write_bytes(path.read_bytes().replace(text("general.architecture"), text("x" * 20), 1))
    with pytest.raises(VramBudgetError, match=next(iter(wrong))):
        of_file(path)


def test_a_sparse_file_a_pipe_and_a_tensor_of_no_layer_are_errors(tmp_path):
    sparse, pipe = tmp_path / "s.gguf", tmp_path / "p.gguf"
    with sparse.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 2**16, 2**16))
        file.truncate(2**32)
    os.mkfifo(pipe)
    table = [("token_embd.weight", (256, 9), 0), ("blk.7.ffn_up.weight", (256, 9), 0)]
    for path in (sparse, pipe, a_file(tmp_path, tensors=table), tmp_path):
        with pytest.raises(VramBudgetError):
            of_file(path)


def test_architectures_without_rules_are_refused(tmp_path):
    with pytest.raises(NotModelledError, match="architecture 'rwkv7'"):
        of_file(a_file(tmp_path, arch="rwkv7"))


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        (["llama-3.3-70b:Q4_K_M", "--gpu", "2x24GB", "-c", "16384"], "-ngl 99 -c 16384"),
        (["qwen3-8b", "--gpu", "12GB"], "Q3_K_M "),
        (["gpt-oss-120b", "--gpu", "24GB", "--ram", "64GB"], "-ncmoe 2"),
        (["qwen3-235b-a22b:Q4_K_M", "--gpu", "24GB", "--ram", "128GB"], "-ncmoe"),
        (["llama-3.3-70b:Q4_K_M", "--gpu", "24GB", "-c", "8192"], "PARAMETER num_gpu 4"),
        (["qwen3-8b:q4_k_m", "--gpu", "none"], "-ngl 0"),
        (["llama3.1:8b", "--gpu", "12GB"], "IQ4_XS"),
        (["ollama/qwen2.5:7b-instruct-q4_K_M", "--gpu", "8GB"], "4168.09 MiB"),
        (["qwen3-8b:Q8_0", "--gpu", "8GB", "-ngl", "20", "-ctk", "q8_0"], "-ngl 20 -c "),
    ],
)
def test_the_command_that_starts_it_is_printed(words, printed, capsys):
    assert main(["run", *words]) == 0
    text = capsys.readouterr().out
    assert text.startswith("FITS: a context of ")
    assert printed in text


def test_ollama_has_its_own_words_for_slots_caches_and_experts():
    """Since 0.30 it starts llama-server: -c is num_ctx * OLLAMA_NUM_PARALLEL (llama_server.go)."""
    run = vrambudget.run(
        "qwen3-8b:Q8_0", gpu="24GB", context=16384, parallel=2, cache_type_k="q8_0"
    )
    assert "with OLLAMA_NUM_PARALLEL=2:" in str(run)
    assert "PARAMETER num_ctx 8192\n    PARAMETER num_batch 512\n    PARAMETER num_gpu 37" in str(
        run
    )
    both = {"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    run = vrambudget.run("gpt-oss-120b", gpu="24GB", ram="64GB", context=8192, **both)
    assert "with OLLAMA_KV_CACHE_TYPE=q8_0:" in str(run)
    assert "PARAMETER num_gpu" not in str(run)
    assert "--fit shares layers and keeps experts" in str(run)


@pytest.mark.parametrize(
    ("model", "gpu", "set_to"),
    [
        ("qwen3:8b", "12GB", "-ngl 99 -c 4096 -np 1 -b 512"),
        ("llama3.1:8b", "24GB", "-ngl 99 -c 32768 -np 1 -b 1024 -ub 1024"),
        (
            "qwen3:30b",
            "24GB",
            "-ngl 99 -c 32768 -np 1 -b 512",
        ),  # 17.3 of 23.6 GiB: over 75 % with 3
        ("llama3.1:8b", "80GB", "-ngl 99 -c 131072 -np 1 -ub 2048"),
        ("nomic-embed-text", "8GB", "-ngl 99 -c 2048 -np 1 -ub 2048"),
        ("llama3.3", "2x24GB", "-ngl 43 -c 131072 -np 1 -b 512 -ts 21,22"),
    ],
)
def test_ollama_chooses_its_context_and_batch_by_the_memory_of_gpus(model, gpu, set_to):
    """server/routes.go (defaultNumCtx), server/sched.go (automaticGenerationBatch)."""
    run = vrambudget.run(model, gpu=gpu, ollama=True)
    assert run.values["model"].endswith(":Q4_K_M")
    assert run.values["command"].partition(" -ngl ")[2] == set_to.removeprefix("-ngl ")


def test_ollama_takes_one_gpu_where_a_model_fits_it():
    run = vrambudget.run("llama3.1:8b", gpu="24GB,12GB", ollama=True)
    assert [held["name"] for held in run.values["gpus"]] == ["CUDA0"]


def test_other_commands_name_the_one_that_reads_a_quantisation(capsys):
    assert main(["llama-3.1-8b:Q4_K_M", "--gpu", "24GB"]) == 2
    error = capsys.readouterr().err
    assert "vrambudget run llama-3.1-8b:Q4_K_M --gpu GPU" in error
    assert "there is no model" not in error


def test_main_memory_is_a_budget_and_so_is_each_gpu(capsys):
    words = ["run", "qwen3-235b-a22b:Q4_K_M", "--gpu", "24GB"]
    assert main([*words, "--ram", "64GB"]) == 1
    assert capsys.readouterr().out.startswith("DOES NOT FIT: main memory is ")
    assert main(["run", "llama-3.1-8b:F16", "--gpu", "12GB", "-ngl", "99"]) == 1
    assert "short on a GPU" in capsys.readouterr().out


def test_the_longest_context_is_the_longest_that_fits(capsys):
    run = vrambudget.run("qwen3-8b:Q8_0", gpu="12GB")
    longest = run.values["longest_context"]
    assert run.starts
    assert run.values["context"] == longest
    options = ["--gpu", "12GB", "-ngl", "99", "--format", "json"]
    assert main(["run", "qwen3-8b:Q8_0", "-c", str(longest), *options]) == 0
    assert json.loads(capsys.readouterr().out)["longest_context"] == longest
    assert main(["run", "qwen3-8b:Q8_0", "-c", str(longest + 2048), *options]) == 1
    assert "-ngl 3" in vrambudget.run("qwen3-8b:Q8_0", gpu="12GB", context=40960).values["command"]


def test_without_a_quantisation_the_best_on_gpus_alone_is_shown():
    run = vrambudget.run("mixtral-8x7b", gpu="24GB", ram="64GB")
    kinds = [row["model"].rpartition(":")[2] for row in run.values["choices"]]
    assert kinds == ["Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "IQ4_XS", "Q3_K_M"]
    assert run.values["model"] == "mixtral-8x7b:Q3_K_M"
    # where none fits on GPUs alone, it is Q4_K_M
    assert vrambudget.run("mixtral-8x7b", gpu="12GB").values["model"] == "mixtral-8x7b:Q4_K_M"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-3.1-8b:Q4_K_X"], "'Q4_K_X' is no quantisation"),
        (["bert-base-uncased:Q8_0"], "GGUF file of bert"),
        (["gpt-oss-20b:Q4_K_M"], "gpt-oss-20b:MXFP4"),
        (["llama-3.1-8b:Q4_0", "-ctv", "q4_0", "-fa", "off"], "needs flash_attn"),
        (["qwen3-8b:tall"], "there is no model 'qwen3-8b-tall'"),
        (["qwen3-8b:Q4_0", "-c", "-1"], "context is -1"),
        (["qwen3-8b:Q4_0", "--ram", "much"], "is not a size"),
        (["nobody/nothing-GGUF:Q4_0"], "HF_HUB_OFFLINE is set"),
        (["nobody/Qwen3-30B-A3B-GGUF:Q4_0"], "by its name: vrambudget run qwen3-30b-a3b:Q4_0"),
        (["llama-3.1-8b.Q4_K_M.gguf"], "by its name: vrambudget run llama-3.1-8b:Q4_K_M"),
    ],
)
def test_what_cannot_run_is_an_error_with_a_way_out(words, message, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["run", *words, "--gpu", "24GB"]) == 2
    error = capsys.readouterr().err
    assert message in error


@pytest.mark.parametrize(
    ("name", "weights", "cache"),
    [  # MiB on a GPU of 80 GB of Q4_K_M with 8,192 tokens, as llama.cpp 0c1e570 counts them
        ("glm-4.5-air", 66842.74, 1472.0),
        ("glm-4.5", 202768.57, 2944.0),
        ("llama-4-scout", 61764.62, 1536.0),
        ("llama-4-maverick", 230953.37, 1536.0),
        ("command-r7b", 4812.33, 1024.0),
        ("qwen3-next-80b-a3b", 46067.88, 493.5),
        ("olmoe-1b-7b", 3961.35, 1024.0),
        ("granite-3.1-3b-a800m", 1921.79, 512.0),
    ],
)
def test_models_that_have_a_gguf_file_alone_are_known_by_name(name, weights, cache):
    (model,) = models_of(f"{name}:Q4_K_M")
    found = llama_cpp.serve(model, gpus_of("80GB"), LlamaCppOptions.parse({"ctx_size": 8192}))
    assert (mib(found.gpus[0].model_bytes), mib(found.gpus[0].cache_bytes)) == (weights, cache)


@pytest.mark.parametrize(
    ("gpu", "name", "gib"),
    [
        ("rx-7900-xtx", "AMD RX-7900-XTX", 24),
        ("AMD Radeon RX 7900 XTX", "AMD RX-7900-XTX", 24),
        ("mi300x", "AMD MI300X", 192),
        ("m2", "Apple M2 of 8 GB", 16 / 3),  # recommendedMaxWorkingSetSize = 5726 MB
        ("m3-max-64gb", "Apple M3 Max of 64 GB", 48),  # 51540 MB
    ],
)
def test_other_makers_gpus_are_named_for_gguf_files_alone(gpu, name, gib, capsys):
    (found,) = gpus_of(gpu)
    assert (found.name, found.capacity_bytes) == (name, int(gib * 2**30))
    assert main(["gpt2", "--gpu", gpu]) == 2
    assert "vrambudget run MODEL --gpu" in capsys.readouterr().err


def test_sizes_that_no_chip_is_sold_with_are_errors():
    with pytest.raises(VramBudgetError, match="m2 is sold with 8, 16, 24 GB"):
        gpus_of("m2-32gb")


def test_fit_leaves_what_llama_cpp_leaves(capsys):
    words = ["run", "qwen3-8b:Q8_0", "--gpu", "12GB", "--format", "json"]
    longest = []
    for more in ([], ["--fit", "on"], ["--fit", "on", "--fit-target", "2048"]):
        assert main([*words, *more]) == 0
        longest.append(json.loads(capsys.readouterr().out)["longest_context"])
    assert longest[0] > longest[1] > longest[2]


def test_a_log_of_a_start_is_shown_by_device(tmp_path, capsys):
    log = tmp_path / "server.log"
    log.write_text(
        "load_tensors: offloaded 20/33 layers to GPU\n"
        "load_tensors:        CUDA0 model buffer size =  2168.09 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =  2292.36 MiB\n"
        "llama_kv_cache:      CUDA0 KV buffer size =   512.00 MiB\n"
        "sched_reserve:      CUDA0 compute buffer size =   304.00 MiB\n"
    )
    assert main(["explain", str(log)]) == 0
    text = capsys.readouterr().out
    assert "CUDA0              2168.09      512.00      304.00     2984.09" in text
    assert "20 of 33 layers are on GPUs" in text
    log.write_text('msg="model weights" device=CUDA0 size="4.1 GiB"\nmsg="kv cache" device=CPU')
    assert main(["explain", str(log), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["CUDA0"]["model"] == pytest.approx(4198.4)
    log.write_text(  # of July 2025
        'msg="model weights" buffer=CUDA1 size="11.9 GiB"\n'
        'msg="model weights" buffer=CPU size="1 KiB"\n'
        'msg="compute graph" backend=CUDA1 buffer_type=CUDA1 size="0 B"\n'
        'msg="compute graph" backend=CUDA1 buffer_type=CUDA1 size="1.5 GiB"\n'
    )
    assert main(["explain", str(log), "--format", "json"]) == 0
    held = json.loads(capsys.readouterr().out)
    assert held["CUDA1"]["compute"] == 1536
    assert held["CPU"]["model"] == 2**-10


def test_a_table_of_files_needs_few_graphs(monkeypatch):
    """They are what takes time; weights and cache alone rule most splits and contexts out."""
    made = []
    build = _Graph.build
    monkeypatch.setattr(_Graph, "build", lambda graph: (made.append(graph), build(graph)))
    vrambudget.run("glm-4.6", gpu="2x24GB", ram="256GB")
    assert len(made) < 120  # of seven files; it was 225
    made.clear()
    vrambudget.run("llama-3.3-70b:Q4_K_M", gpu="2x24GB", context=32768)
    assert len(made) < 20  # it was 24


def test_a_file_is_counted_without_the_rules_of_training_and_of_other_servers():
    code = "import sys, vrambudget.cli.run; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded_parts = {name.removeprefix("vrambudget.") for name in done.stdout.split()}
    assert not loaded_parts & {"engine", "ops", "program", "models.parts", "serving.vllm"}


def test_plan_says_that_its_gpus_are_for_training(capsys):
    assert main(["plan", "gpt-oss-20b", "--gpu", "12GB", "--most", "2"]) in {0, 1}
    assert "to run the model: vrambudget run gpt-oss-20b --gpu 12GB" in capsys.readouterr().out


def test_a_split_without_a_context_has_a_usual_one():
    """One more layer's experts in main memory is little; 4,096 tokens are few."""
    run = vrambudget.run("qwen3-235b-a22b:Q4_K_M", gpu="24GB")
    assert run.values["context"] >= 8192
    # what fits whole with fewer tokens stays whole
    assert vrambudget.run("llama-3.1-8b:Q6_K", gpu="8GB").values["read_bytes"][1] == 0


def test_decoding_is_as_fast_as_what_a_token_reads():
    found = loaded(gpu="rtx-4090")
    slow, fast = found.tokens_per_second
    assert fast == pytest.approx(1008e9 / found.read_bytes[0])
    whole = found.read_bytes[0] + found.gpus[0].cache_bytes
    assert slow == pytest.approx(1008e9 / whole)
    assert loaded(gpu="rtx-3070-laptop").tokens_per_second is None
    none = loaded(gpu="none")
    assert none.tokens_per_second[1] == pytest.approx(96e9 / none.read_bytes[1])


ADAPTED = {"attn_q": (2048, 2048), "attn_k": (2048, 512), "attn_v": (2048, 512)} | {
    "attn_output": (2048, 2048),
    "ffn_gate": (2048, 8192),
    "ffn_up": (2048, 8192),
    "ffn_down": (8192, 2048),
}


def an_adapter(tmp_path, layers=range(16)):
    table = []
    for layer in layers:
        for name, (rows, columns) in ADAPTED.items():
            for end, shape in (("a", (rows, 16)), ("b", (16, columns))):
                table.append((f"blk.{layer}.{name}.weight.lora_{end}", shape, 1))
    return str(a_file(tmp_path, {"general.type": "adapter"}, table, name="lora.gguf"))


def test_an_adapter_lies_where_its_weights_are(tmp_path):
    """llama.cpp 0c1e570 on devices that count: "LoRA buffer size", and the reserved graph."""
    path = an_adapter(tmp_path)
    words = {"gpu": "24GB", "context": 8192, "engine_version": "2026-09"}
    bare, whole = (
        vrambudget.run("llama-3.2-1b:Q4_K_M", **words, **o) for o in ({}, {"lora": path})
    )
    (held,), (with_it,) = bare.values["gpus"], whole.values["gpus"]
    assert mib(with_it["model_bytes"] - held["model_bytes"]) == 21.5
    assert with_it["compute_bytes"] == 71_313_536
    assert "model and LoRA buffers together" in str(whole)
    half = [
        vrambudget.run("llama-3.2-1b:Q4_K_M", **words, n_gpu_layers=8, **o).values
        for o in ({}, {"lora": path})
    ]
    on_gpu, in_ram = (
        mib(half[1][k]["model_bytes"] - half[0][k]["model_bytes"])
        if k == "host"
        else mib(half[1][k][0]["model_bytes"] - half[0][k][0]["model_bytes"])
        for k in ("gpus", "host")
    )
    assert (on_gpu, in_ram) == (9.41, 12.09)
    with pytest.raises(VramBudgetError, match="another model's adapter"):
        vrambudget.run("qwen3-8b:Q4_K_M", gpu="24GB", lora=path)


def test_a_draft_model_has_a_cache_as_long_and_buffers_of_its_own():
    run = vrambudget.run(
        "llama-3.1-8b:Q4_K_M", gpu="24GB", context=8192, model_draft="llama-3.2-1b:Q8_0"
    )
    (draft,) = run.values["beside"]
    assert (
        draft["gpus"][0]
        == vrambudget.run("llama-3.2-1b:Q8_0", gpu="24GB", context=8192).values["gpus"][0]
    )
    assert "-md llama-3.2-1b-Q8_0.gguf --spec-type draft-simple" in str(run)
    assert run.values["tokens_per_second"] is None
    alone = vrambudget.run("llama-3.1-8b:Q4_K_M", gpu="24GB", context=8192)
    assert run.values["longest_context"] < alone.values["longest_context"]
    with pytest.raises(VramBudgetError, match="add a type"):
        vrambudget.run("llama-3.1-8b:Q4_K_M", gpu="24GB", model_draft="llama-3.2-1b")


def test_a_projector_lies_on_the_first_gpu_and_its_graph_is_said_to_come_on_top(tmp_path):
    table = [("v.patch_embd.weight", (14, 14, 3, 64), 1), ("mm.0.bias", (100,), 0)]
    path = str(a_file(tmp_path, (), table, arch="clip", name="mmproj.gguf"))
    run = vrambudget.run("qwen2.5vl:3b-q4_K_M", gpu="2x24GB", context=8192, mmproj=path)
    first, second = run.values["beside"][0]["gpus"]
    assert (first["model_bytes"], second["model_bytes"]) == (14 * 14 * 3 * 64 * 2 + up(400), 0)
    assert "the projector's compute buffer comes on top" in str(run)
    with pytest.raises(VramBudgetError, match="expected 'clip'"):
        vrambudget.run("qwen2.5vl:3b-q4_K_M", gpu="24GB", mmproj=an_adapter(tmp_path))


@pytest.mark.parametrize("flag", ["-md", "--lora", "-mm"])
def test_what_lies_beside_a_model_is_estimated_by_the_newest_rules_alone(flag, capsys):
    words = ["run", "qwen3-8b:Q4_K_M", "--gpu", "12GB", "--engine-version", "2025-08"]
    assert main([*words, flag, "x.gguf"]) == 2
    assert "by the rules of 2026 alone" in capsys.readouterr().err


def test_a_mapped_file_starts_where_main_memory_is_short(capsys):
    words = ["run", "qwen3-235b-a22b:Q4_K_M", "--gpu", "24GB", "--ram", "64GB"]
    assert main(words) == 1
    assert "reads what is short from the file" in capsys.readouterr().out
    for flags, named in (
        (["--no-mmap"], "-lm none"),
        (["--mlock"], "-lm mmap+mlock"),
        (["--load-mode", "mlock"], "-lm mlock"),
        (["--no-mmap", "--engine-version", "2026-05"], "--no-mmap"),
    ):
        assert main([*words, *flags]) == 1
        said = capsys.readouterr().out
        assert "from the file" not in said
        assert named in said  # as that build's arguments are called
    assert main([*words, "-lm", "none", "--engine-version", "2026-05"]) == 2


def test_a_cache_of_8_bits_is_named_where_it_leaves_nothing_in_main_memory(capsys):
    words = ["run", "llama-3.3-70b:Q4_K_M", "--gpu", "2x24GB", "--context", "32768"]
    assert main(words) == 0
    assert "with -ctk q8_0 -ctv q8_0 all layers are on GPUs" in capsys.readouterr().out
    assert main([*words, "-ctk", "q8_0", "-ctv", "q8_0"]) == 0
    assert "in main memory" not in capsys.readouterr().out.splitlines()[0]


def test_a_longer_context_than_the_models_is_counted_with_what_it_needs(capsys):
    words = ["run", "qwen3-8b:Q4_0", "--gpu", "80GB", "-np", "1", "-c", "131072"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "131,072 cells" in said
    assert "40,960 tokens at most" in said
    assert "--override-kv qwen3.context_length=int:131072" in said


@pytest.mark.parametrize("gpu", ["m9-max", "arc-b580", "rx-1"])
def test_a_gpu_of_another_maker_that_is_not_known_leads_to_a_size(gpu):
    with pytest.raises(VramBudgetError, match="not among the GPUs that are known") as error:
        gpus_of(gpu)
    assert "write its memory" in error.value.hint
    assert gpus_of("20GB")[0].capacity_bytes == 20 * 2**30


@pytest.mark.parametrize(
    ("tag", "name"),
    [
        ("deepseek-r1:14b", "deepseek-r1-distill-qwen-14b:Q8_0"),
        ("glm-4.7", "glm-4.6:Q8_0"),
        ("mixtral:8x7b", "mixtral-8x7b:Q8_0"),
        ("qwen3:30b-a3b-q4_K_M", "qwen3-30b-a3b:Q4_K_M"),
        ("llama4:scout", "llama-4-scout:Q8_0"),
        ("command-r:35b", "command-r:Q8_0"),
        ("qwen3-8b-q4_k_m", "qwen3-8b:Q4_K_M"),
        ("llama-3.1-8b:q4", "llama-3.1-8b:Q4_K_M"),
        ("hf.co/meta-llama/Llama-3.1-8B-Instruct:Q6_K", "llama-3.1-8b:Q6_K"),
    ],
)
def test_other_names_are_those_of_a_known_model(tag, name):
    assert next(models_of(tag)).name == name


@pytest.mark.parametrize(
    ("name", "model", "cache"),
    [("qwen3-vl-4b:Q4_K_M", 2375.91, 1152.0), ("qwen2.5vl:3b-q4_K_M", 1834.82, 288.0)],
)
def test_models_that_see_have_the_buffers_of_a_loaded_file(name, model, cache):
    """llama.cpp b11549 loaded files of these tensors: "CPU_Mapped model buffer size"."""
    run = vrambudget.run(name, gpu="none", context=8192)
    assert (mib(run.values["host"]["model_bytes"]), mib(run.values["host"]["cache_bytes"])) == (
        model,
        cache,
    )


@pytest.mark.parametrize(
    ("name", "options", "is_rough"),
    [
        ("qwen3-vl-4b:Q4_K_M", {"gpu": "24GB"}, False),
        ("qwen3.5-9b:Q4_K_M", {"gpu": "24GB"}, False),
        ("qwen3.5-9b:Q4_K_M", {"gpu": "24GB", "n_gpu_layers": 20}, True),
        ("llama-3.2-1b:Q4_K_M", {"gpu": "none", "engine_version": "2026-09"}, False),
    ],
)
def test_a_compute_buffer_whose_rule_is_not_exact_is_called_a_rough_estimate(
    name, options, is_rough
):
    said = str(vrambudget.run(name, context=8192, **options))
    assert ("the compute buffer is a rough estimate" in said) == is_rough


def test_a_table_goes_down_to_the_first_quantisation_that_runs():
    rows = vrambudget.run("deepseek-r1", gpu="24GB", ram="192GB").values["choices"]
    assert [row["model"].split(":")[1] for row in rows][-3:] == ["Q3_K_M", "Q2_K", "IQ2_M"]
    assert [row["starts"] for row in rows] == [False] * 7 + [True]
    assert len(vrambudget.run("qwen3-8b", gpu="12GB").values["choices"]) == 6


@pytest.mark.parametrize("lost", ["attn_kv_a_norm", "attn_q_a", "indexer.proj"])
def test_a_tensor_that_a_file_lacks_is_named(lost):
    header = header_of(table_of(known("deepseek-v3.2").values, ""), "x", "Q4_K_M")
    kept = tuple(t for t in header.tensors if f".{lost}.weight" not in t.name)
    model = of_header(replace(header, tensors=kept), "x")
    with pytest.raises(VramBudgetError, match="a layer of deepseek32 has no tensor"):
        llama_cpp.serve(model, gpus_of("80GB"), LlamaCppOptions.parse({}))


def test_a_file_whose_layers_have_attention_and_no_keys_is_refused_by_its_key():
    header = header_of(table_of(known("afm-4.5b").values, ""), "x", "Q4_K_M")
    values = {
        **header.values,
        "arcee.attention.head_count_kv": 0,
    }
    model = of_header(replace(header, values=values), "x")
    with pytest.raises(VramBudgetError, match=r"arcee\.attention\.head_count_kv is 0"):
        llama_cpp.serve(model, gpus_of("80GB"), LlamaCppOptions.parse({}))


def test_a_file_with_a_vector_in_a_matrix_s_place_is_refused():
    header = header_of(table_of(known("afm-4.5b").values, ""), "x", "Q4_K_M")
    tensors = (replace(t, shape=t.shape[: 1 + ("ffn_up" not in t.name)]) for t in header.tensors)
    model = of_header(replace(header, tensors=tuple(tensors)), "x")
    with pytest.raises(VramBudgetError, match="arcee's layers has too few dimensions"):
        llama_cpp.serve(model, gpus_of("80GB"), LlamaCppOptions.parse({}))


def test_main_memory_of_a_mac_is_what_its_gpu_leaves():
    """Of 512 GB unified memory 384 GiB are the GPU's: 513.81 GiB of Q6_K do not run."""
    rows = vrambudget.run("deepseek-v3.2", gpu="m3-ultra-512gb").values["choices"]
    assert [row["starts"] for row in rows] == [False, False, True, True, True, True]
    assert vrambudget.run("qwen3-8b:Q4_0", gpu="m2-16gb").values["ram_bytes"] == 16 * 2**30 // 3 + 1


@pytest.mark.parametrize(
    ("name", "layers"), [("deepseek-v3.2", 61), ("glm-5", 78), ("glm-5.2", 21)]
)
def test_an_indexer_keeps_keys_of_its_own_and_a_mask_of_what_it_chose(name, layers):
    """GLM 5.2: "creating indexer KV cache", 21 layers of 128 numbers (a published start)."""
    (model,) = models_of(f"{name}:Q4_K_M")
    assert [n for n in model.indexed if n] == [128] * layers
    found = llama_cpp.serve(model, gpus_of("80GB"), LlamaCppOptions.parse({"ctx_size": 8192}))
    assert found.gpus[0].cache_bytes == (576 * model.layers + 128 * layers) * 2 * 8192


@pytest.mark.parametrize("name", ["falcon-7b:Q4_K_M", "opt-1.3b"])
def test_what_is_counted_of_a_file_alone_leads_to_it(name, capsys):
    assert main(["run", name, "--gpu", "24GB"]) == 2
    error = capsys.readouterr().err
    assert "of a GGUF file of" in error
    assert "vrambudget run model.gguf" in error
    assert "did you mean" not in error
