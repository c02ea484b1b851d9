"""Other tools' words for a job mean what they mean there, or are refused by name."""

import ast
import json
import re
from pathlib import Path

import pytest

from vrambudget.cli import main
from vrambudget.cli.parser import COMMANDS, OF_PIPELINES, parse, parser_of
from vrambudget.cli.spellings import translated
from vrambudget.config.foreign.meanings import OneOf, Same, Switch
from vrambudget.config.foreign.trainers import trainers
from vrambudget.config.foreign.words import words_of
from vrambudget.config.job import Job
from vrambudget.errors import NotModelledError, VramBudgetError

OWN = {"--batch", "--block", "--precision", "--quant", "--lora-rank", "--checkpointing", "-o"} | {
    "--attention",
    "--compile-mode",
    "--optimizer",
    "--optimizer-impl",
    "--clip",
    "--lora-targets",
    "--weights",
    "--compile",
    "--use-cache",
    "--eval-first",
    "--loop",
    "--rows",
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--per_device_train_batch_size 4", "--batch 4"),
        ("--per-device-train-batch-size=4", "--batch 4"),
        ("--max_seq_length 2048 --lora_r 8", "--block 2048 --lora-rank 8"),
        ("--gradient_checkpointing", "--checkpointing full"),
        ("--gradient-checkpointing true --batch 2", "--batch 2 --checkpointing full"),
        ("--gradient-checkpointing=False --bf16 False", "--checkpointing none"),
        ("--bf16", "--precision amp-bf16"),
        ("--torch_dtype bfloat16", "--precision bf16"),
        ("--torch_dtype bfloat16 --bf16", "--weights bf16 --precision amp-bf16"),
        ("--optim paged_adamw_8bit", "--optimizer paged-adamw-8bit"),
        ("--optim=adamw_torch_fused", "--optimizer adamw --optimizer-impl fused"),
        ("--attn_implementation eager --max_grad_norm 1.0", "--attention eager --clip 1.0"),
        ("--max_grad_norm 0", ""),
        ("--qlora", "--quant nf4 --lora-rank 16 --precision amp-bf16"),
        ("--quantize 4bit --lora", "--quant nf4 --lora-rank 16"),
        ("--load_in_4bit", "--no-double-quant --quant nf4"),
        ("--use_bnb_nested_quant --load_in_4bit", "--quant nf4"),
        ("--load_in_8bit --llm_int8_threshold 6.0", "--quant int8"),
        ("--quantization_bit 8", "--quant int8"),
        ("--use_peft --lora_r 8", "--lora-rank 8"),
        (
            "--lora_target_modules q_proj v_proj --bf16",
            "--lora-targets q_proj,v_proj --precision amp-bf16",
        ),
        ("--micro_batch_size 2 --sequence_len 512", "--batch 2 --block 512"),
        ("--quantization_bit 4 --cutoff_len 64", "--quant nf4 --block 64"),
        ("--learning_rate 2e-5 --do_train --num_train_epochs=3 --report_to none", ""),
        ("--eval_strategy no --label_smoothing_factor 0.0 --packing false", ""),
        ("--packing --eval_packing false", "--loop sft --rows packed"),
        ("--lora_rank=4 -o a_b.json", "--lora-rank=4 -o a_b.json"),
        ("--compile=True --use_cache=False --eval_first=false", "--compile --no-use-cache"),
        ("--torch_compile", "--compile"),
        ("--torch_compile_mode max-autotune", "--compile-mode max-autotune"),
    ],
)
def test_a_foreign_word_means_what_it_means_there(theirs, ours):
    found = translated(["gpt2", *theirs.split()], OWN)
    assert sorted(found) == sorted(["gpt2", *ours.split()])


def test_a_switch_that_is_neither_true_nor_false_is_refused():
    with pytest.raises(VramBudgetError, match=r"--compile=perhaps should be true or false"):
        translated(["gpt2", "--compile=perhaps"], OWN)


def test_nanogpts_dtype_is_that_of_its_autocast():
    words = "--batch_size=12 --block_size=1024 --dtype=bfloat16 --compile=False --grad_clip=1.0"
    ours = "nanogpt --batch-size=12 --block 1024 --precision amp-bf16 --clip 1.0"
    assert " ".join(translated(["nanogpt", *words.split()], OWN | {"--batch-size"})) == ours


def test_what_decides_no_memory_is_left_out_and_said():
    said = []
    words = "gpt2 --learning_rate 2e-5 --do_train --attn_implementation flash_attention_2"
    assert translated(words.split(), OWN, said.append) == ["gpt2", "--attention", "sdpa"]
    (line,) = said
    assert "--learning_rate, --do_train, --attn_implementation (FlashAttention's own" in line


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--torch_compile_backend eager", "torch.compile"),
        ("--load_in_8bit --llm_int8_threshold 4.0", "outliers of another size"),
        ("--use_dora", "DoRA"),
        ("--fsdp full_shard", "FSDP"),
        ("--use_liger_kernel", "Liger"),
        ("--enable-expert-parallel", "ep=8"),
        ("--model.converters float8", "converted layers"),
        ("--enable-fsdp-float8-all-gather", "all-gathers in float8"),
        ("--async-tp", "async tensor parallelism"),
    ],
)
def test_what_decides_memory_and_has_no_rules_is_refused_by_name(words, named):
    with pytest.raises(NotModelledError, match=named) as error:
        translated(["gpt2", *words.split()], OWN)
    assert "vrambudget rehearse" in error.value.hint


def test_what_is_given_in_our_words_goes_before_what_a_foreign_word_implies():
    words = translated(["--qlora", "--lora-rank", "64", "--precision=bf16"], OWN)
    assert words == ["--lora-rank", "64", "--precision=bf16", "--quant", "nf4"]


def test_the_words_of_a_script_are_its_own():
    script = ["--", "python", "train.py", "--batch_size=4", "--bf16"]
    assert translated(["--lora", *script], OWN) == ["--lora-rank", "16", *script]


def test_a_command_without_a_job_is_left_as_it_is():
    assert translated(["--bf16", "--a_b"], {"-o"}) == ["--bf16", "--a_b"]


def test_an_optimizer_that_is_another_here_is_refused_by_name():
    with pytest.raises(VramBudgetError, match="has no counterpart here") as error:
        translated(["--optim", "sgd_nesterov"], OWN)
    assert "adamw_torch_fused" in error.value.hint


def test_an_option_without_its_value_is_said():
    for words in (["--optim"], ["--lora_r", "--bf16"]):
        with pytest.raises(VramBudgetError, match="needs a value"):
            translated(words, OWN)


def test_every_foreign_word_stands_for_options_and_values_that_there_are():
    for model in ("gpt2", "nanogpt"):
        for name, meaning in words_of(model).items():
            for fields in _fields_of(meaning):
                Job.parse({"lora_rank": 8, "clip": 1.0, **fields}, where=name)


def _fields_of(meaning):
    if isinstance(meaning, Same):
        assert meaning.field in Job.model_fields
    if isinstance(meaning, Switch):
        yield from (meaning.on, meaning.off, meaning.assumed)
    if isinstance(meaning, OneOf):
        yield from meaning.of.values()


def test_every_word_stands_for_options_and_values_that_there_are(capsys):
    for words in (
        "--qlora --max_seq_length 64 --gradient_checkpointing --per_device_train_batch_size 2",
        "--lora --bf16 --optim adamw_8bit --max_grad_norm 1.0 --train_batch_size 2",
        "--fp16 --optim lion_32bit --micro_batch_size 1 --cutoff_len 32",
        "--use_peft --dtype float16 --lora_target_modules c_attn --attn_implementation sdpa",
        "--load_in_4bit --lora_r 4 --torch_dtype bfloat16 --max_length 16",
    ):
        args = parse(["gpt2", *words.split()])
        assert args.run
    assert main(["gpt2", "--bf16", "--block_size", "16", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["block"] == 16


ROOT = Path(__file__).parents[1]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*")
OF_OTHERS = {
    *("--gpus", "--vram"),  # what newcomers type, which has a tip
    *("--nproc-per-node", "--use-env", "--use_env"),  # torchrun's
    *("--num_processes", "--use_deepspeed", "--config_file"),  # accelerate's
    *("--deepspeed_config", "--num_gpus"),  # deepspeed's
    "--ntasks-per-node",  # Slurm's
    *("--override-kv", "--rope-scaling"),  # llama-server's
    *("--transformer-impl", "--mock-data", "--no-gradient-accumulation-fusion"),  # Megatron-LM's
    *("--no-persist-layer-norm", "--no-masked-softmax-fusion", "--recompute-activations"),
    *("--recompute-granularity", "--recompute-method", "--recompute-num-layers"),
    *(
        "--pipeline-model-parallel-size",
        "--num-layers-per-virtual-pipeline-stage",
        "--tensor-model-parallel-size",
    ),
    *("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"),
    *("--quantize", "--num-shard", "--max-batch-prefill-tokens"),  # TGI's
    "--bs",  # of a script that is rehearsed
    *("--job", "--launcher"),  # torchtitan's, axolotl's
    "--version-script",  # the linker's
    *("--cases", "--only"),  # the fuzzers' of tests/fuzz
    *("--nightly", "--baseline", "--python", "--write"),  # pytest's here, those of tests/releases
    "--check-hash-based-pycs",  # Python's
    "--query-gpu",  # nvidia-smi's
    *("--abi", "--dest", "--disable-pip-version-check", "--implementation", "--no-deps"),  # pip's
    *("--only-binary", "--platform", "--python-version", "--quiet"),
    *("--quantization", "--load-format", "--skip-tokenizer-init", "--tokenizer"),  # vLLM's
    *("--host", "--uds", "--max_model_len", "--enable-prefix-caching"),
    "--disable-cuda-graph",
    *("--override-tensor", "--fit", "--mmproj", "--tensor-type", "--no-op-offload"),  # llama.cpp's
    *("--jinja", "--hf-repo"),
    *("--model-path", "--pp-size", "--skip-server-warmup", "--tokenizer-path", "--tp-size"),
    *("--mem-fraction-static", "--context-length", "--chunked-prefill-size", "--tp"),  # SGLang's
}


def _own_options():
    options = {"--version"}
    for module, _ in (*COMMANDS.values(), *OF_PIPELINES.values()):
        options |= set(parser_of(module, "any").option_strings)
    return options


def _texts():
    """Yield what is read here, but for the commands of others' scripts and their launchers."""
    for page in {*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")} - {ROOT / "docs" / "corpus.md"}:
        yield page, page.read_text(encoding="utf-8")
    launchers = ROOT / "vrambudget" / "rehearse" / "launcher_prefix.py"
    for module in {*(ROOT / "vrambudget").rglob("*.py")} - {launchers}:
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield module, node.value


def test_no_tip_and_no_page_names_an_option_that_does_not_exist():
    foreign = {f"--{name}" for model in ("", "nanogpt") for name in words_of(model)}
    foreign |= {f"--{name}" for trainer in trainers() for name in trainer.known.table}
    hyphenated = {name.replace("_", "-") for name in foreign}
    known = _own_options() | foreign | hyphenated | OF_OTHERS | {"--batch_size"}
    unknown = {
        (path.relative_to(ROOT).as_posix(), option)
        for path, text in _texts()
        for option in OPTION.findall(text)
        if option not in known
    }
    assert unknown == set()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("yolo train model=yolo11n.pt imgsz=320 batch=8", "yolo11n --image-size 320 --batch 8"),
        ("yolo detect train model=yolov8n.yaml amp=False", "yolov8n --precision fp32"),
        ("model=yolo11n.pt optimizer=SGD device=0 epochs=3", "yolo11n --optimizer sgd-momentum"),
        ("fit model=yolo11n.pt imgsz=320 --gpu 8GB", "fit yolo11n --image-size 320 --gpu 8GB"),
    ],
)
def test_ultralytics_words_are_a_command(theirs, ours):
    found, same = (vars(parse(words.split())) for words in (theirs, ours))
    shown = {key: value for key, value in found.items() if key in same and key != "run"}
    assert shown["model"].removesuffix(".pt") == same["model"]
    named = {"image_size", "batch", "precision", "optimizer"} & same.keys()
    assert {key: shown[key] for key in named} == {key: same[key] for key in named}


def test_a_batch_that_ultralytics_looks_for_is_what_fit_finds(capsys):
    assert main(["model=yolo11n.pt", "batch=-1", "--gpu", "8GB"]) == 2
    assert "`vrambudget fit`" in capsys.readouterr().err


def test_what_ultralytics_does_besides_is_refused(capsys):
    assert main(["model=yolo11n.pt", "task=segment", "--gpu", "8GB"]) == 2
    assert "a task that is no detection" in capsys.readouterr().err


def test_a_script_that_is_rehearsed_may_have_a_word_model():
    words = ["rehearse", "--gpu", "8GB", "--", "python", "train.py", "model=small"]
    assert parse(words).command == ["python", "train.py", "model=small"]
