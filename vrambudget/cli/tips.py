"""What to type instead: a tip for each mistake of a command line that newcomers make.

unrecognized arguments: --gpus 2        the number stands in --gpu
invalid choice: '4bit'                  did you mean 'nf4'?
the following arguments are required    what to add
"""

import re
from collections.abc import Collection, Sequence
from itertools import pairwise

from vrambudget.config.cards import card_name
from vrambudget.errors import did_you_mean

_GPU = "--gpu takes a size as sold (12GB), an exact size (11.69GiB), a name ('RTX 3060'), or auto"
_NUMBER = "their number stands in --gpu: --gpu 4xh100; of machines, --gpu 2x8xh100"
_NO_MEMORY = "it decides no memory: leave it out"
_OPTIONS = {
    **dict.fromkeys(("gpus", "num-gpus", "n-gpus", "ngpus", "ngpu", "nproc-per-node"), _NUMBER),
    **dict.fromkeys(("vram", "memory", "mem", "gpu-memory", "device", "hardware"), _GPU),
    **dict.fromkeys(
        ("context", "ctx", "context-length", "length", "max-length"),
        "tokens of a sequence are --block N; of a generation, --prompt N and --new N",
    ),
    **dict.fromkeys(("epochs", "dataset", "lr", "seed", "learning-rate"), _NO_MEMORY),
    **dict.fromkeys(
        ("inference", "infer", "generate", "chat"),
        "--mode generate --prompt 512 --new 128 generates, --mode forward runs the model once;"
        " `vrambudget serve` is for vLLM, `vrambudget run` for GGUF files",
    ),
}
_OF_PLANS = dict.fromkeys(
    ("ranks", "parallel"), f"a plan finds how GPUs share the work; {_NUMBER.partition(';')[0]}"
)
_CHOICES = {
    **dict.fromkeys(("4", "4bit", "4-bit", "int4", "q4", "fp4"), "nf4"),
    **dict.fromkeys(("8", "8bit", "8-bit", "q8"), "int8"),
    **dict.fromkeys(("inference", "infer", "test", "chat"), "generate"),
    **dict.fromkeys(("half", "float16", "16"), "fp16"),
    **dict.fromkeys(("float32", "full", "32"), "fp32"),
    "bfloat16": "bf16",
}
_MISSING = {"--gpu": _GPU, "model": "a model's name, llama-3.1-8b for example"}
_NARROW = ("fp8", "float8", "mxfp", "nvfp", "fp4", "float4")
_RANKLESS = ("--lora", "--qlora")


def tip_of(
    message: str,
    *,
    command: str,
    given: Sequence[str],
    options: Collection[str],
    commands: Collection[str],
) -> str | None:
    """Return what to type instead, None where nothing is near; `message` is argparse's."""
    if found := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
        return _of_choice(found[1], re.findall(r"[\w-]+", found[2]))
    kind, _, words = message.partition(": ")
    if kind == "the following arguments are required":
        return "; ".join(_MISSING[name] for name in words.split(", ") if name in _MISSING) or None
    if kind != "unrecognized arguments":
        return None
    word = [*words.split(), ""][0].partition("=")[0]  # which may be empty
    if word.startswith("-"):
        known = {**_OPTIONS, **(_OF_PLANS if command == "plan" else {})}
        tip = known.get(word.strip("-").replace("_", "-").lower(), "")
        named = re.search(r"--[\w-]+", tip)  # a command without that option has no use for the tip
        is_of_use = tip and (named is None or named[0] in options)
        return tip if is_of_use else did_you_mean(word, options)
    if word in commands:
        return f"the command comes first: vrambudget {word} MODEL ..."
    return _of_word(word, command, given) if word else None


def _of_word(word: str, command: str, given: Sequence[str]) -> str | None:
    if {(option, word) for option in _RANKLESS} & {*pairwise(given)}:
        return f"the option before {word} takes no value; a rank is --lora-rank {word}"
    if command == "sweep":
        return "values of one option are joined: --block 512,1024, or --batch 1:64:x2"
    if word in given[1:2] and card_name(word) and not card_name(given[0]):
        return (
            f"{given[0]} is no command: `vrambudget plan {word} --gpu GPU` finds how to train it,"
            f" `vrambudget {word} --gpu GPU` estimates one job"
        )
    if word in given[1:2]:
        return "a model's name is one word, llama-3.1-8b for example; `vrambudget models` lists all"
    return None


def _of_choice(value: str, choices: Sequence[str]) -> str | None:
    meant = _CHOICES.get(value.lower())
    if meant in choices:
        return f"did you mean {meant!r}?"
    if value.startswith(_NARROW):
        return (
            "products in so few bits are not modelled: `vrambudget rehearse --gpu GPU -- python"
            " train.py` runs any script"
        )
    return did_you_mean(value.lower(), choices)
