"""The files that people have: which tool's a file is, and what is assumed where it is silent.

A file belongs to the first format that it has a key of its own of.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from vrambudget.config.foreign import (
    accelerate,
    axolotl,
    deepspeed,
    hugging_face,
    llama_factory,
    torchtitan,
    torchtune,
    trl,
    ultralytics,
)
from vrambudget.config.foreign.meanings import Fields, Model, Table

Finish = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def _as_they_are(keys: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    del keys
    return fields


def _nothing(keys: Mapping[str, Any]) -> Fields:
    del keys
    return {}


@dataclass(frozen=True, slots=True)
class Format:
    """One tool's files; `defaults` are the tool's own, where they differ from a job's."""

    name: str
    marks: frozenset[str]
    table: Table
    defaults: Fields = field(default_factory=dict)
    ignored_groups: tuple[str, ...] = ()
    ranks_groups: tuple[str, ...] = ()
    finish: Finish = _as_they_are
    always: tuple[str, ...] = ()
    """What is to be noted of each of this tool's files."""
    of_ranks: Callable[[Mapping[str, Any]], Fields] = _nothing
    """What several keys say together where there are several GPUs."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Keys that name a JSON file, and what its keys then begin with."""

    @property
    def model_key(self) -> str | None:
        """The key that names the model."""
        return next((key for key, way in self.table.items() if isinstance(way, Model)), None)


_TRAINER: Fields = {
    "loop": "trainer",
    "batch": 8,
    "precision": "fp32",
    "optimizer": "adamw",
    "optimizer_impl": "fused",
    "clip": 1.0,
}
"""TrainingArguments' own, with torch 2.8 or later."""

_RANKS_OF_TRAINER = ("fsdp_config", "deepspeed")
_FILES_OF_TRAINER = {"deepspeed": "deepspeed", "fsdp_config": "fsdp_config"}

FORMATS = (
    Format(
        "torchtune",
        frozenset({"model._component_", "optimizer._component_"}),
        torchtune.TORCHTUNE,
        torchtune.DEFAULTS,
        torchtune.IGNORED_GROUPS,
        finish=torchtune.finished,
        always=("torchtune's own models: modelled as transformers has them",),
    ),
    Format(
        "torchtitan",
        frozenset({"model.flavor", "parallelism.tensor_parallel_degree", "training.seq_len"}),
        torchtitan.TORCHTITAN,
        torchtitan.DEFAULTS,
        torchtitan.IGNORED_GROUPS,
        ("parallelism",),
        finish=torchtitan.finished,
        of_ranks=torchtitan.of_ranks_of,
    ),
    Format("ultralytics", frozenset({"imgsz"}), ultralytics.ULTRALYTICS, {}),
    Format(
        "axolotl",
        frozenset({"base_model"}),
        axolotl.AXOLOTL,
        {**_TRAINER, **axolotl.DEFAULTS},
        ("datasets", "test_datasets", "special_tokens", "lr_scheduler_kwargs"),
        _RANKS_OF_TRAINER,
        files=_FILES_OF_TRAINER,
    ),
    Format(
        "LLaMA-Factory",
        frozenset({"finetuning_type", "cutoff_len", "template", "lora_target"}),
        llama_factory.LLAMA_FACTORY,
        {**_TRAINER, **llama_factory.DEFAULTS},
        ranks_groups=_RANKS_OF_TRAINER,
        finish=llama_factory.finished,
        files=_FILES_OF_TRAINER,
    ),
    Format(
        "DeepSpeed",
        frozenset({"train_micro_batch_size_per_gpu", "zero_optimization.stage"}),
        deepspeed.DEEPSPEED,
        {},
        deepspeed.IGNORED_GROUPS,
        deepspeed.RANKS_GROUPS,
    ),
    Format(
        "accelerate",
        frozenset({"compute_environment", "distributed_type", "mixed_precision"}),
        accelerate.ACCELERATE,
        {},
        accelerate.IGNORED_GROUPS,
        accelerate.RANKS_GROUPS,
        files={"deepspeed_config.deepspeed_config_file": "deepspeed_config"},
    ),
    Format(
        "TRL",
        frozenset({"model_name_or_path", "use_peft", "max_length", "max_seq_length"}),
        trl.TRL,
        {**_TRAINER, **trl.DEFAULTS},
        ("dataset_kwargs", "datasets", "model_init_kwargs"),
        _RANKS_OF_TRAINER,
        finish=trl.finished,
        files=_FILES_OF_TRAINER,
    ),
    Format(
        "TrainingArguments",
        frozenset({"output_dir", "per_device_train_batch_size", "learning_rate", "optim"}),
        hugging_face.TRAINING_ARGUMENTS,
        _TRAINER,
        ("accelerator_config", "lr_scheduler_kwargs", "gradient_checkpointing_kwargs"),
        _RANKS_OF_TRAINER,
        files=_FILES_OF_TRAINER,
    ),
)


def format_of(keys: Mapping[str, Any]) -> Format | None:
    """Return the format whose keys these are, None for a file of another kind.

    What transformers writes of a model is none, though it may have a max_length of its own.
    """
    if {"architectures", "transformers_version"} & keys.keys():
        return None
    return next((each for each in FORMATS if each.marks & keys.keys()), None)
