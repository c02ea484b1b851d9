"""Other tools' words for a job mean what they mean there, or are refused by name."""

import json

import pytest

from vrambudget.cli import main
from vrambudget.cli.parser import parse
from vrambudget.cli.spellings import translated
from vrambudget.errors import VramBudgetError

OWN = {"--batch", "--block", "--precision", "--quant", "--lora-rank", "--checkpointing", "-o"} | {
    "--attention",
    "--optimizer",
    "--optimizer-impl",
    "--clip",
}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("--per_device_train_batch_size 4", "--batch 4"),
        ("--per-device-train-batch-size=4", "--batch 4"),
        ("--max_seq_length 2048 --lora_r 8", "--block 2048 --lora-rank 8"),
        ("--gradient_checkpointing", "--checkpointing full"),
        ("--gradient-checkpointing true --batch 2", "--batch 2 --checkpointing full"),
        ("--gradient-checkpointing=False --bf16 False", ""),
        ("--bf16", "--precision amp-bf16"),
        ("--torch_dtype bfloat16", "--precision bf16"),
        ("--optim paged_adamw_8bit", "--optimizer paged-adamw-8bit"),
        ("--optim=adamw_torch_fused", "--optimizer adamw --optimizer-impl fused"),
        ("--attn_implementation eager --max_grad_norm 1.0", "--attention eager --clip 1.0"),
        ("--qlora", "--quant nf4 --lora-rank 16 --precision bf16"),
        ("--lora_rank=4 -o a_b.json", "--lora-rank=4 -o a_b.json"),
    ],
)
def test_a_foreign_word_means_what_it_means_there(theirs, ours):
    assert translated(["gpt2", *theirs.split()], OWN) == ["gpt2", *ours.split()]


def test_what_is_given_in_our_words_goes_before_what_a_foreign_word_implies():
    words = translated(["--qlora", "--lora-rank", "64", "--precision=amp-bf16"], OWN)
    assert words == ["--lora-rank", "64", "--precision=amp-bf16", "--quant", "nf4"]


def test_the_words_of_a_script_are_its_own():
    script = ["--", "python", "train.py", "--batch_size=4", "--bf16"]
    assert translated(["--lora", *script], OWN) == ["--lora-rank", "16", *script]


def test_a_command_without_a_job_is_left_as_it_is():
    assert translated(["--bf16", "--a_b"], {"-o"}) == ["--bf16", "--a_b"]


@pytest.mark.parametrize("value", ["adafactor", "sgd_nesterov", ""])
def test_an_optimizer_that_is_another_here_is_refused_by_name(value):
    with pytest.raises(VramBudgetError, match="has no counterpart here") as error:
        translated(["--optim", *value.split()], OWN)
    assert "adamw_torch_fused" in error.value.hint


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
