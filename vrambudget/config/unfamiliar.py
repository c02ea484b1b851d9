"""What a configuration of a model without rules says of itself: its tasks, its usual length.

Its tasks are those that its `architectures` name, then all others. A configuration with a
`text_config` is that of a model that reads images or sound, too: its ForConditionalGeneration is a
causal language model, and here it reads text.
"""

from collections.abc import Mapping
from typing import Any

from vrambudget.config.fields.batches import TASK_OF_CLASS, Task

_LENGTHS = ("max_position_embeddings", "n_positions", "max_sequence_length", "n_ctx")
_GENERATES = "ForConditionalGeneration"
_LONGEST = 1024  # tokens, where a model would take many more
_READ_TEXT = {"vocab_size", "text_config"}
_SAMPLES = 160_000  # of a waveform: ten seconds at 16 kHz

TEXT_ALONE = (
    "a batch of text: what sees or hears lies on the GPU and does nothing;"
    " vrambudget.trace(step, batch) counts a step with pictures"
)
"""What a report says of a model that reads more than text."""


def tasks_of(values: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the tasks of a model, its own first."""
    own = named_tasks(values)
    sees = "image_size" in values and not _READ_TEXT & values.keys()
    if not values.get("architectures") and sees:
        own = ("image-cls",)
    return tuple(dict.fromkeys([*own, *TASK_OF_CLASS.values()]))


def named_tasks(values: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the tasks of the classes that its `architectures` name; of some there is none."""
    names = [str(name) for name in values.get("architectures") or ()]
    of_class: dict[str, Task] = {
        **TASK_OF_CLASS,
        **({_GENERATES: "causal-lm"} if _inner(values) else {}),
    }
    if values.get("is_encoder_decoder"):
        of_class["LMHeadModel"] = "seq2seq-lm"
    if hears_waves(values):
        of_class["ForSequenceClassification"] = "audio-cls"
    if not _READ_TEXT & values.keys():
        of_class["Model"] = "embed"
    return tuple(task for name in names for end, task in of_class.items() if name.endswith(end))


def _inner(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the configuration of the language model in a model that reads more than text."""
    inner = values.get("text_config")
    return inner if isinstance(inner, Mapping) and not values.get("is_encoder_decoder") else None


def hears_waves(values: Mapping[str, Any]) -> bool:
    """Return whether a model convolves samples of a waveform, as wav2vec 2.0 and its kin do."""
    return isinstance(values.get("conv_kernel"), list | tuple)


def reads_more(values: Mapping[str, Any]) -> bool:
    """Return whether a model with a language model inside reads images or sound, too."""
    return _inner(values) is not None


def length_of(values: Mapping[str, Any]) -> int:
    """Return the tokens per sequence of a job that names none, or the samples of a waveform."""
    if hears_waves(values):
        return _SAMPLES
    values = _inner(values) or values
    given = [values[key] for key in _LENGTHS if isinstance(values.get(key), int)]
    return int(min([*given, _LONGEST]))


def decodes(values: Mapping[str, Any]) -> bool:
    """Return whether it generates, and so caches keys and values unless it is configured not to."""
    return tasks_of(values)[0] in {"causal-lm", "seq2seq-lm"}
