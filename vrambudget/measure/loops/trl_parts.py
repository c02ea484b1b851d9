"""What TRL's trainers are given: arguments, adapters, a tokenizer of three words, data sets."""

from collections.abc import Callable, Mapping
from itertools import cycle, islice
from typing import Any

from vrambudget.auto_classes import lora_options
from vrambudget.measure.loops import trainer
from vrambudget.measure.loops.run import MeasuredRun, at_lengths

WORD, END = "w", "<end>"

Rows = dict[str, Any]


def trl_arguments(run: MeasuredRun, folder: str) -> dict[str, Any]:
    """Return the arguments that say what the job says; rows are as long as they are."""
    return {
        **trainer.arguments(run, folder),
        "gradient_checkpointing": run.settings.get("checkpointing", "none") == "full",
        "max_length": None,
        **_packing(run.settings),
    }


def _packing(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what lays rows end to end, as they are: packing=True would sort and fill them."""
    if job.get("rows") != "packed":
        return {}
    return {"padding_free": True, "dataset_kwargs": {"skip_prepare_dataset": True}}


def rows_of(run: MeasuredRun, row: Callable[[int, int, int], Rows]) -> dict[str, Any]:
    """Return what a trainer gets besides its model and arguments.

    `row` makes one of the tokens of its prompt, of its completion, and of a second one. Where rows
    have padding, all but the first of a batch, and all second completions, are a token shorter.
    A packed row holds two sequences, as TRL's pack_dataset makes it.
    """
    from datasets import Dataset  # noqa: PLC0415 - TRL's own requirement

    job = run.settings
    trained, evaluated = trainer.counts_of_batches(run)
    padded, packed = (job.get("rows") == rows for rows in ("padded", "packed"))

    def dataset(batches: int, size: int) -> Any:
        rows = []
        for settings in islice(cycle(at_lengths(job, batches)), batches):
            length = settings["block"]
            completion = min(job.get("completion_len") or length, length - 1)
            for shorter in [int(padded and i > 0) for i in range(size)]:
                both = completion - shorter, completion - int(padded)
                rows.append(row(length - completion, *both))
                if packed:
                    rows[-1]["seq_lengths"] = [length - length // 2, length // 2]
        return Dataset.from_list(rows)

    return {
        "train_dataset": dataset(trained, job["batch"]),
        "eval_dataset": dataset(evaluated, trainer.eval_size(run)) if evaluated else None,
        "processing_class": _tokenizer(),
        "peft_config": _lora_config(run),
        **trainer.others(run),
    }


def _tokenizer() -> Any:
    from tokenizers import Tokenizer  # noqa: PLC0415 - transformers' own requirement
    from tokenizers.models import WordLevel  # noqa: PLC0415
    from tokenizers.pre_tokenizers import WhitespaceSplit  # noqa: PLC0415
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    words = Tokenizer(WordLevel({WORD: 0, END: 1, "<pad>": 2}, unk_token=WORD))
    words.pre_tokenizer = WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token=END, pad_token="<pad>")  # noqa: S106 - no password


def _lora_config(run: MeasuredRun) -> Any:
    job = run.settings
    if not job.get("lora_rank"):
        return None
    import peft  # noqa: PLC0415 - only LoRA needs it

    options = lora_options(
        job.get("task", "causal-lm"),
        None,
        rank=job["lora_rank"],
        targets=job.get("lora_targets", "all-linear"),
        dropout=job.get("lora_dropout") or 0.0,
    )
    return peft.LoraConfig(**options)
