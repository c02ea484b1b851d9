"""What transformers and PEFT call a task: the classes that build a model for it, LoRA's options.

Nothing is imported here: jobs are measured in environments that have PyTorch and little else.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

AUTO_CLASSES: Mapping[str, str] = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq-cls": "AutoModelForSequenceClassification",
    "token-cls": "AutoModelForTokenClassification",
    "qa": "AutoModelForQuestionAnswering",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "image-cls": "AutoModelForImageClassification",
    "video-cls": "AutoModelForVideoClassification",
    "image-seg": "AutoModelForSemanticSegmentation",
    "audio-cls": "AutoModelForAudioClassification",
    "ctc": "AutoModelForCTC",
    "contrastive": "AutoModelForZeroShotImageClassification",
    "embed": "AutoModel",
}
"""The classes whose `from_config` builds a model."""


def class_for(transformers: Any, task: str, config: Any) -> Any:
    """Return the class of transformers that builds a configuration's model for a task.

    A model that reads images besides text may have no causal language model's class: then it is
    AutoModelForImageTextToText, whose forward takes text alone, too. One that hears sound is an
    AutoModelForSpeechSeq2Seq.
    """
    usual = getattr(transformers, AUTO_CLASSES[task])
    if type(config) in usual._model_mapping:  # noqa: SLF001 - what it builds
        return usual
    if task == "causal-lm" and hasattr(config, "text_config"):
        return transformers.AutoModelForImageTextToText
    if task == "seq2seq-lm" and sound_shape_of(config):
        return transformers.AutoModelForSpeechSeq2Seq
    return usual


DROPOUT_FIELDS = (
    *("resid_pdrop", "embd_pdrop", "attn_pdrop", "hidden_dropout_prob", "hidden_dropout"),
    *("attention_probs_dropout_prob", "attention_dropout", "dropout", "residual_dropout"),
    "embedding_dropout",
)
"""What a job's `dropout` sets, in the families that have it; not a classification head's own."""

IMAGE_SIZE = 224
"""Pixels along each side of an image for a model that reads any."""


def built(
    make: Callable[..., Any], config: Any, *, task: str, attention: str, dtype: object
) -> Any:
    """Return the model that a class's `from_config` makes.

    A class without the attention that PyTorch offers takes its own, as transformers itself chooses.
    """
    try:
        model = make(config, attn_implementation=attention, dtype=dtype)
    except ValueError as error:
        if attention != "sdpa" or "does not support an attention implementation" not in str(error):
            raise
        model = make(config, attn_implementation="eager", dtype=dtype)
    return asked_for_loss(model, task)


def asked_for_loss(model: Any, task: str | None) -> Any:
    """Return a model that makes its loss when it is called, though nobody asks it to."""
    if task == "contrastive":
        model.forward = functools.partial(model.forward, return_loss=True)
    return model


CLASSIFYING = ("seq-cls", "token-cls", "image-cls", "video-cls", "image-seg", "audio-cls")
"""The tasks whose labels are classes: they are class 0 where a batch is made up."""


class Row(NamedTuple):
    """One row of an input: its shape, and whether it holds numbers, else indices."""

    shape: tuple[int, ...]
    is_float: bool = False


def own_rows(
    task: str, main_input: str, config: Any, *, block: int, target_len: int
) -> dict[str, Row] | None:
    """Return one row of each input of a model of images, video or sound; None for one of text.

    `main_input`: the class's `main_input_name`. `block`: samples of a waveform or frames of a
    spectrogram, where the model takes any number of them; `target_len`: tokens of a transcript.
    """
    if task == "contrastive":
        return {"input_ids": Row((block,)), "pixel_values": Row(_pixels(config), is_float=True)}
    if main_input in {"pixel_values", "pixel_values_videos"}:
        shape = _pixels(config)
    elif main_input == "input_values":
        spectrogram = hasattr(config, "num_mel_bins")
        shape = (config.max_length, config.num_mel_bins) if spectrogram else (block,)
    elif main_input == "input_features":
        hears = getattr(config, "encoder_config", config)
        bins = getattr(hears, "feature_projection_input_dim", getattr(hears, "num_mel_bins", 0))
        shape = sound_shape_of(config) or (block, bins)
    else:
        return None
    row = {main_input: Row(shape, is_float=True)}
    if task == "embed":
        return row
    of_task = {"image-seg": shape[-2:], "ctc": (target_len,), "seq2seq-lm": (target_len,)}
    return {**row, "labels": Row(of_task.get(task, ()))}


def _pixels(config: Any) -> tuple[int, ...]:
    """Return channels, height and width of an image; of a video, its frames come first."""
    seen = getattr(config, "vision_config", config)
    size = getattr(seen, "image_size", getattr(seen, "crop_size", None)) or IMAGE_SIZE
    height, width = size if isinstance(size, list | tuple) else (size, size)
    frames = getattr(seen, "num_frames", getattr(seen, "frames_per_clip", None))
    return (*((frames,) if frames else ()), getattr(seen, "num_channels", 3), height, width)


def sound_shape_of(config: Any) -> tuple[int, int] | None:
    """Return bins of mel and frames of what Whisper hears, None for any other model."""
    if getattr(config, "model_type", None) != "whisper":
        return None
    return config.num_mel_bins, 2 * config.max_source_positions


PEFT_TASKS: Mapping[str, str] = {
    "causal-lm": "CAUSAL_LM",
    "seq2seq-lm": "SEQ_2_SEQ_LM",
    "seq-cls": "SEQ_CLS",
    "token-cls": "TOKEN_CLS",
    "qa": "QUESTION_ANS",
}
"""What PEFT calls these tasks; it has no name for others.

Its wrapper for SEQ_2_SEQ_LM hands on input_ids, which a model of sound does not take: those are
adapted without a name.
"""


def lora_options(
    task: str, config: Any, *, rank: int, targets: str | Sequence[str], dropout: float
) -> dict[str, Any]:
    """Return the options of PEFT's LoraConfig for a job on the model of a configuration."""
    return {
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": dropout,
        "target_modules": targets if isinstance(targets, str) else list(targets),
        "task_type": None if sound_shape_of(config) else PEFT_TASKS.get(task),
    }
