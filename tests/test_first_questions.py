"""Seventy-five first questions, each with the sentence that its answer begins with.

What fits is held against rehearsals by `test_plans_rehearsed.py`; here the first line has to answer
what was asked: one GPU first, and "does not fit" only of what was counted. One GPU of 8, 12, 16 or
24 GB, a notebook's T4, several GPUs, two nodes, names that another door takes.
"""

import re
import shlex
from pathlib import Path

import pages
import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.device_mesh import parse_mesh
from vrambudget.errors import VramBudgetError

FITS, NOT = "FITS: ", "DOES NOT FIT: "
TIGHT = "FITS ONLY IF NOTHING ELSE USES THE GPU"
TRAINS = "{} trains on one {}"
RTX_3060, RTX_4060, RTX_4090 = (f"NVIDIA GeForce RTX {n}" for n in ("3060", "4060", "4090"))

QUESTIONS = {
    # What one job takes.
    "gpt2 --batch 8 --block 1024 --gpu 24GB": FITS,
    "gpt2 --batch 64 --block 1024 --gpu 12GB": NOT,
    "gpt2 --batch 5 --block 1024 --gpu 12GB": FITS,
    "gpt2 --batch 8 --block 256 --gpu 8GB": FITS,
    "gpt2 --batch 4 --block 512 --gpu t4 --precision fp32": FITS,
    "gpt2-medium --batch 8 --block 512 --precision bf16 --gpu 24GB": FITS,
    "gpt2-xl --batch 1 --block 256 --gpu 12GB": NOT,
    "bert-base-uncased --batch 16 --block 128 --gpu 8GB": FITS,
    "bert-base-uncased --batch 32 --block 512 --gpu 8GB": NOT,
    "qwen2.5-0.5b --batch 1 --block 512 --gpu 8GB": NOT,
    "qwen2.5-0.5b --batch 1 --block 512 --lora-rank 16 --precision bf16 --gpu 8GB": FITS,
    "llama-3.2-1b --batch 1 --block 512 --gpu 12GB": NOT,
    "llama-3.2-1b --batch 1 --block 512 --precision bf16 --gpu 24GB": FITS,
    "llama-3.1-8b --block 512 --gpu 24GB": NOT,
    "llama-3.1-8b --block 512 --qlora --checkpointing full --gpu 12GB": FITS,
    "llama-3.1-8b --block 512 --qlora --checkpointing full --gpu 24GB": FITS,
    "gpt2 --batch 8 --block 1024": "PEAK: ",
    "Meta-Llama-3.1-8B-Instruct --block 512 --gpu 24GB": NOT,
    "gpt2 --batch 2 --block 256 --parallel ddp --gpu 2xt4": FITS,
    "gpt2 --batch 2 --block 256 --parallel ddp --nodes 2 --gpu 2xt4": FITS,
    "llama-3.1-8b --block 256 --parallel ddp --gpu 4x24GB": NOT,
    "gpt2 --mode generate --prompt 64 --new 16 --gpu 8GB": FITS,
    "llama-3.1-8b --mode generate --prompt 64 --new 16 --gpu 12GB": NOT,
    "llama-3.1-8b --mode generate --prompt 64 --new 16 --gpu 24GB": FITS,
    # How it can be trained.
    "plan gpt2 --gpu 8GB --block 256 --batch 1": TRAINS.format("gpt2", RTX_4060),
    "plan gpt2 --gpu t4 --block 256 --batch 1": TRAINS.format("gpt2", "Tesla T4"),
    "plan qwen2.5-0.5b --gpu 8GB --block 256 --batch 1": TRAINS.format("qwen2.5-0.5b", RTX_4060),
    "plan llama-3.2-1b --gpu 12GB --block 256 --batch 1": TRAINS.format("llama-3.2-1b", RTX_3060),
    "plan llama-3.1-8b --gpu 12GB --block 512 --batch 1 --goal qlora": TRAINS.format(
        "llama-3.1-8b", RTX_3060
    ),
    "plan llama-3.1-8b --gpu 12GB --block 2048 --goal qlora --loop sft --batch 1": TRAINS.format(
        "llama-3.1-8b", RTX_3060
    ),
    "plan qwen3-8b --gpu 12GB --block 512 --goal qlora --loop sft --batch 1": TRAINS.format(
        "qwen3-8b", RTX_3060
    ),
    "plan llama-3.1-8b --gpu 12GB --block 2048 --goal lora --batch 1 --most 2": TRAINS.format(
        "llama-3.1-8b", RTX_3060
    ),
    "plan llama-3.1-8b --gpu 24GB --block 512 --goal lora --batch 1": TRAINS.format(
        "llama-3.1-8b", RTX_4090
    ),
    "plan llama-3.1-8b --gpu 16GB --block 512 --goal qlora --batch 1": TRAINS.format(
        "llama-3.1-8b", "NVIDIA GeForce RTX 4060 Ti"
    ),
    "plan gpt2-xl --gpu 24GB --block 256 --batch 1 --goal full": TRAINS.format("gpt2-xl", RTX_4090),
    "plan llama-3.1-70b --gpu 12GB --block 512 --most 1": "does not fit on one " + RTX_3060,
    "plan resnet50 --gpu 8GB --batch 8": TRAINS.format("resnet50", RTX_4060),
    "plan gpt2 --gpu 2xt4 --block 128 --batch 1 --goal full": "gpt2 trains on 2 x Tesla T4: ",
    # The largest.
    "fit gpt2 --block 1024 --gpu 12GB": "largest batch that fits: 5 (",
    "fit gpt2-xl --block 1024 --gpu 12GB": "not even batch 1 fits on " + RTX_3060,
    # Another door, or a mistake: the first line of stderr.
    "yolo11 --gpu 12GB": "error: there is no model 'yolo11'",
    "llama-3.1-8b:Q4_K_M --gpu 12GB": "error: 'llama-3.1-8b:Q4_K_M' is a GGUF file's",
    "gtp2 --gpu 12GB": "error: there is no model 'gtp2'",
    "gpt2 --gpu rx-7900": "error: 'rx-7900' is not a known NVIDIA GPU",
    "gpt2 --gpu mps": "error: 'mps' is not a known NVIDIA GPU",
    "gpt2 --gpu h100x8": "error: 'h100x8' is not a known GPU",
    "gpt2 --gpu 8xh100": "error: nothing says how 8 GPUs share the work",
    "gpt2 --gpu 8xh100 --ranks 4 --parallel ddp": "error: gpu names 8 GPUs, and ranks is 4",
    "gpt2 --gpu 2x8xh100 --nodes 2 --parallel ddp": "error: --nodes 2 with --gpu 2x8xh100",
    "gpt2 --nodes 2": "error: --nodes says how many machines",
    "llama-3.1-8b --gpu 8xh100 --parallel pp=4": "error: parallel is 'pp=4', which takes 4 ranks",
    "plan gpt2 --gpu h100 --mode eval": "error: a plan is for training",
    "plan gpt2 --gpu 2xh100 --per-step 3": "error: per_step is 3, no multiple of 2 GPUs",
    "gpt2 --batch 0 --gpu 12GB": "error: batch is 0",
    "fit gpt2": "error: the following arguments are required: --gpu",
    # What newcomers type.
    "llama3:8b --gpu 12GB --block 64 --lora": NOT,
    "meta-llama/Llama-3.1-8B --gpu 4090 --block 64 --qlora": FITS,
    "mistral-7b --gpu 3090 --batch_size 2 --block 64 --qlora": FITS,
    "resnet50 --gpu 'gtx 1080 ti' --batch 8": FITS,
    "llama-3.1-8b --gpu b200": f"{TIGHT}: all of 178.35 GiB",
    "plan gpt-oss-20b --gpu 16GB": "no recipe or layout that has rules fits gpt-oss-20b at 4,096"
    " tokens a sequence on one NVIDIA GeForce RTX 4060 Ti, nor on up to 1024",
    "plan llama-3.1-8b --gpu 8xh100 --ranks 4": "error: unrecognized arguments: --ranks 4",
    "plan llama-3.1-8b": "error: the following arguments are required: --gpu",
    "llama-3.1-8b --gpus 2": "error: unrecognized arguments: --gpus 2",
    "llama-3.1-8b --vram 12GB": "error: unrecognized arguments: --vram 12GB",
    "llama 8b --gpu 12GB": "error: unrecognized arguments: 8b",
    "deepseek-r1:7b --gpu 24GB": "error: 'deepseek-r1:7b' is a GGUF file's name",
    "train.py --gpu 12GB": "error: 'train.py' is a script, not a model",
    "gpt2 --optimizer AdamW": "error: argument --optimizer: invalid choice: 'AdamW'",
    "llama-3.1-8b --quant 4bit": "error: argument --quant: invalid choice: '4bit'",
    "gpt2 --mode inference": "error: argument --mode: invalid choice: 'inference'",
    "gpt2 --epochs 3": "error: unrecognized arguments: --epochs 3",
    "llama-3.1-8b --gpu 12": "error: '12' is not a known GPU",
    "models zzz": "error: no model has 'zzz' in its name",
    "gpus 4090": "--gpu       sold as    capacity",
}


def test_there_are_seventy_five():
    assert len(QUESTIONS) == 75


@pytest.mark.sampled(2)
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_begins_with(question, capsys):
    code = main(shlex.split(question))
    out, err = capsys.readouterr()
    first = (out or err.removeprefix("vrambudget: ")).splitlines()[0]
    assert first.startswith(QUESTIONS[question]), (first, err)
    if first.startswith("error"):
        assert code == 2
    else:
        no = ("DOES NOT FIT", "does not fit", "not even", "no recipe")
        assert code == (1 if first.startswith(no) else 0)


@pytest.mark.parametrize(
    ("name", "door"),
    [
        ("yolo11", "yolo11n"),
        ("llama-3.1-8b:Q4_K_M", "`vrambudget run llama-3.1-8b:Q4_K_M --gpu GPU`"),
        ("gtp2", "did you mean 'gpt2'?"),
        ("stable-diffusion-xl", "there is sdxl;"),
        ("gpt2 --gpu h100x8", "several GPUs are written 8xh100;"),
        ("gpt2 --gpu kaggle", "2xt4"),
        ("gpt2 --gpu laptop", "rtx 4070 laptop"),
        ("gpt2 --gpu 2xt4", "`vrambudget plan MODEL --gpu 2xGPU` lists the ways that fit"),
        ("gpt2 --epochs 3", "it decides no memory"),
        ("plan gpt2 --gpu 8xh100 --ranks 4", "a plan finds how GPUs share the work"),
        ("gpt2 --gpus 2", "their number stands in --gpu: --gpu 4xh100"),
        ("gpt2 --vram 12GB", "--gpu takes a size as sold (12GB)"),
        ("gpt2 --quant 4bit", "did you mean 'nf4'?"),
        ("gpt2 --optimizer AdamW", "did you mean 'adamw'"),
        ("gpt2 --inference", "--mode generate"),
        ("gpt2 --gpu 2xt4 --parallel fsdp", "fsdp2 is fully_shard"),
        ("gpt2 --gpu 2xt4 --parallel deepspeed", "name its stage"),
        ("gpt2 --gpu 3090,4090", "--gpu 2x3090 takes each for the one with the least memory"),
        ("gpt2 --gpu 2x16GB+24GB", "--gpu 3x16GB takes each for the one with the least memory"),
        ("gpt2 --context 512", "tokens of a sequence are --block N"),
        ("llama-3.1-8b --load-in-4bit", "--qlora those of 4-bit weights"),
        ("llama 8b", "a model's name is one word"),
        ("deepseek-r1:7b", "'deepseek-r1-distill-qwen-7b'"),
        ("finetune gpt2", "finetune is no command: `vrambudget plan gpt2 --gpu GPU`"),
        ("llama-q4_k_m.gguf", "`vrambudget run llama-q4_k_m.gguf --gpu GPU` estimates it"),
        ("glm-4.5-air", "`vrambudget run glm-4.5-air --gpu GPU` estimates it"),
        ("train.py", "`vrambudget rehearse --gpu GPU -- python train.py`"),
    ],
)
def test_an_unknown_name_says_which_door_is_open(name, door, capsys):
    assert main([*name.split(), *(() if "--gpu" in name else ("--gpu", "12GB"))]) == 2
    assert door in capsys.readouterr().err


def test_a_reader_of_the_readme_has_the_file_for_an_8b_on_12_gb(tmp_path, capsys, monkeypatch):
    """With which file, and how long a sequence: by the commands of its paragraph alone."""
    monkeypatch.chdir(tmp_path)
    text = pages.text_of(pages.ROOT / "README.md")
    text = text[text.index("Can I fine-tune an 8B on my 12 GB?") :]
    command = re.search(r"vrambudget (plan .* --as trl -o recipe.yaml)", text)[1]
    tokens, others = re.search(
        r"on ([\d,]+) tokens.*?: ([\d,]+) tokens fit", text, re.DOTALL
    ).groups()
    longest, shorter = (int(number.replace(",", "")) for number in (tokens, others))

    assert main(command.split()) == 0
    assert f"max_length: {longest}\n" in Path("recipe.yaml").read_text()
    axolotl = command.replace("--as trl", "--as axolotl")
    assert main(axolotl.split()) == 2
    assert f"tip: --block {shorter} does; --as trl" in capsys.readouterr().err
    assert main(axolotl.replace(f" --block {longest}", "").split()) == 0
    recipe = Path("recipe.yaml").read_text()
    assert f"sequence_len: {shorter}\n" in recipe
    assert f"# {shorter:,} tokens a sequence: {longest:,} do not fit" in recipe
    [estimate] = re.findall(r"^# vrambudget (.*)", recipe, re.MULTILINE)
    capsys.readouterr()
    assert main(shlex.split(estimate)) == 0
    assert capsys.readouterr().out.startswith("FITS")


def test_a_tip_is_in_the_traceback_too():
    with pytest.raises(VramBudgetError) as caught:
        vrambudget.estimate("gtp2")
    assert any(note.startswith("tip: did you mean 'gpt2'?") for note in caught.value.__notes__)


@pytest.mark.parametrize(
    ("layout", "ranks"),
    [(f"{cut}={n}", 8) for cut in ("tp", "pp", "cp", "ep") for n in (2, 4)],
)
def test_a_tip_of_a_layout_leads_to_no_refusal(layout, ranks):
    with pytest.raises(VramBudgetError) as caught:
        parse_mesh(layout, ranks)
    tip = caught.value.hint
    words = re.findall(r"(?:fsdp2\+)?[tpce]p=\d", tip)
    assert words
    for word in words:
        assert parse_mesh(word, ranks).ranks == ranks


def test_several_gpus_lead_to_a_launcher_of_ranks(capsys):
    assert main(["rehearse", "--gpu", "2xt4", "--", "python", "train.py"]) == 2
    error = capsys.readouterr().err
    assert "one rank is rehearsed" in error
    assert "rehearse --gpu t4 -- torchrun --nproc-per-node 2 train.py" in error
