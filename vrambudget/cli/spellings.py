"""Other tools' words for a job: TrainingArguments', PEFT's, TRL's options, as ours.

    --per_device_train_batch_size 4     --batch 4
    --gradient-checkpointing            --checkpointing full
    --bf16                              --precision amp-bf16    (TrainingArguments: autocast)
    --optim adamw_torch_fused           --optimizer adamw --optimizer-impl fused
    --qlora                             --quant nf4 --lora-rank 16 --precision bf16

Names may have hyphens or underscores. What is given in this tool's own words goes before what a
foreign word stands for. A word whose meaning here would be another is an error that says so.

Source: transformers 5.17, training_args.py (TrainingArguments, OptimizerNames); PEFT, LoraConfig;
TRL, SFTConfig and ModelConfig.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence

from vrambudget.errors import VramBudgetError

_LORA_RANK = "16"

_NAMES: Mapping[str, str] = {
    "--per-device-train-batch-size": "--batch",
    "--train-batch-size": "--batch",
    "--micro-batch-size": "--batch",
    "--max-seq-length": "--block",
    "--max-seq-len": "--block",
    "--max-length": "--block",
    "--block-size": "--block",
    "--cutoff-len": "--block",
    "--attn-implementation": "--attention",
    "--lora-r": "--lora-rank",
    "--lora-target-modules": "--lora-targets",
    "--max-grad-norm": "--clip",
}
"""An option that has another name here."""

_SWITCHES: Mapping[str, tuple[str, ...]] = {
    "--gradient-checkpointing": ("--checkpointing", "full"),
    "--bf16": ("--precision", "amp-bf16"),
    "--fp16": ("--precision", "amp-fp16"),
    "--load-in-4bit": ("--quant", "nf4"),
    "--lora": ("--lora-rank", _LORA_RANK),
    "--use-peft": ("--lora-rank", _LORA_RANK),
    "--qlora": ("--quant", "nf4", "--lora-rank", _LORA_RANK, "--precision", "bf16"),
}
"""What is on or off there (alone, or followed by true or false), and options here."""

_DTYPES = {
    "float32": ("--precision", "fp32"),
    "bfloat16": ("--precision", "bf16"),
    "float16": ("--precision", "fp16"),
}
_VALUES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "--optim": {
        "adamw_torch": ("--optimizer", "adamw"),
        "adamw_torch_fused": ("--optimizer", "adamw", "--optimizer-impl", "fused"),
        "adamw_8bit": ("--optimizer", "adamw-8bit"),
        "adamw_bnb_8bit": ("--optimizer", "adamw-8bit"),
        "paged_adamw_8bit": ("--optimizer", "paged-adamw-8bit"),
        "lion_32bit": ("--optimizer", "lion"),
        "lion_8bit": ("--optimizer", "lion-8bit"),
    },
    "--torch-dtype": _DTYPES,
    "--dtype": _DTYPES,
}
"""What each value of a foreign option means here."""

_YES, _NO = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})


def translated(words: Sequence[str], own: Collection[str]) -> list[str]:
    """Return the words with foreign options as ours; `own` are the options that a command has.

    Raises VramBudgetError for a value of a foreign option that means nothing here.
    """
    given, implied = list[str](), list[tuple[str, ...]]()
    left = deque(words)
    while left:
        word = left.popleft()
        if word == "--":
            given += (word, *left)
            break
        written, sign, value = word.partition("=")
        name = written.replace("_", "-") if written.startswith("--") else written
        if name in own or not _stands_for(name) & set(own):
            given.append(f"{name}{sign}{value}" if name in own else word)
            continue
        if sign:
            left.appendleft(value)
        if name in _NAMES:
            given.append(_NAMES[name])
        elif name in _VALUES:
            implied.append(_meaning(written, _VALUES[name], left))
        elif _is_on(left):
            implied.append(_SWITCHES[name])
    return _with_implied(given, implied)


def _stands_for(name: str) -> set[str]:
    """Return the options that a foreign one may stand for; none for a word that is not known."""
    if name in _NAMES:
        return {_NAMES[name]}
    meanings = _VALUES[name].values() if name in _VALUES else [_SWITCHES.get(name, ())]
    return {option for options in meanings for option in options[::2]}


def _is_on(left: deque[str]) -> bool:
    """Take a true or false that follows a switch; alone it is on."""
    if left and left[0].lower() in _YES | _NO:
        return left.popleft().lower() in _YES
    return True


def _meaning(
    name: str, meanings: Mapping[str, tuple[str, ...]], left: deque[str]
) -> tuple[str, ...]:
    value = left.popleft() if left else ""
    if value not in meanings:
        raise VramBudgetError(
            f"{name} is {value!r}, which has no counterpart here",
            hint=f"known are {', '.join(meanings)}; `--help` lists this tool's own options",
        )
    return meanings[value]


def _with_implied(given: list[str], implied: Iterable[tuple[str, ...]]) -> list[str]:
    """Put what foreign words stand for before a `--`, but for options that are given already."""
    end = given.index("--") if "--" in given else len(given)
    named, added = {word.partition("=")[0] for word in given[:end]}, list[str]()
    for options in implied:
        for option, value in zip(options[::2], options[1::2], strict=True):
            if option not in named:
                named.add(option)
                added += (option, value)
    return [*given[:end], *added, *given[end:]]
