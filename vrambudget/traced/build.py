"""A model on the tape: built from its configuration as on the GPU, or taken as it stands.

From a configuration transformers' own code makes it, tensor by tensor, in `torch.device("cuda")`. A
live module's parameters and buffers are allocated in the order in which `module.to("cuda")` moves
them: children first, then a module's own parameters, then its buffers.

Source: torch/nn/modules/module.py (_apply).
"""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from transformers.models.auto import configuration_auto

from vrambudget.auto_classes import (
    AUTO_CLASSES,
    CLASSIFYING,
    DROPOUT_FIELDS,
    built,
    class_for,
    own_rows,
)
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.dtypes import float32, int64
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.tape.events import Purpose
from vrambudget.traced import kernels
from vrambudget.traced.config import TracedConfig
from vrambudget.traced.known import Known, of_tensor
from vrambudget.traced.live import Live, loss_in, loss_of_outputs
from vrambudget.traced.mode import TracingMode
from vrambudget.traced.patches import running
from vrambudget.traced.tensor import GPU, TORCH_DTYPE, dtype_of, traced_tensor
from vrambudget.training.inputs import Input, inputs_for

_MOST_LINES = 2  # of an error of transformers


def knows(model_type: str) -> bool:
    """Return whether transformers has a configuration of this type."""
    return model_type in vars(configuration_auto)["CONFIG_MAPPING_NAMES"]


_USUAL = ("masked-lm", "causal-lm", "contrastive", "image-cls", "video-cls", "ctc", "audio-cls")
"""What a model is for that nobody says anything of, the first of these that its type has."""


def usual_class(keys: Mapping[str, Any]) -> list[str]:
    """Return the class that `architectures` would name, if they named one; none of no task."""
    own = _accepted(keys)
    first = ("seq2seq-lm",) if own.is_encoder_decoder else ()
    for task in (*first, *_USUAL, *AUTO_CLASSES):
        if (maker := _maker(task, own)) is not None:
            return [maker.__name__]
    return []


def own_inputs(keys: Mapping[str, Any], job: Job) -> dict[str, Input] | None:
    """Return the images, the video or the sound that a job's model reads, None for text."""
    own, task = configuration(keys, job), job.task or "causal-lm"
    maker = _maker(task, own)
    return None if maker is None else inputs_of_rows(maker, own, job)  # building it says so


def _maker(task: str, own: Any) -> Any:
    """Return transformers' class for a task of a configuration, None where it has none."""
    makers = class_for(transformers, task, own)._model_mapping  # noqa: SLF001 - what it builds
    found = makers.get(type(own), None)
    return found[0] if isinstance(found, tuple | list) else found


def inputs_of_rows(model: Any, config: Any, job: Job) -> dict[str, Input] | None:
    """Return what a job feeds a class or a module that reads images, video or sound."""
    assert job.block is not None  # noqa: S101 - resolved by the caller
    read, length = getattr(model, "main_input_name", "input_ids"), job.target_len or job.block
    rows = own_rows(job.task or "causal-lm", read, config, block=job.block, target_len=length)
    if rows is None:
        return None
    return {
        name: Input((job.batch, *row.shape), float32 if row.is_float else int64)
        for name, row in rows.items()
        if name != "labels" or job.mode != "generate"
    }


def layers_at_random(config: TracedConfig) -> list[str]:
    """Return the keys by which the model would skip layers at random (LayerDrop)."""
    return _layer_drops(_accepted(config.keys))


def _layer_drops(own: Any) -> list[str]:
    return [name for name, value in vars(own).items() if name.endswith("layerdrop") and value]


def live_model(config: TracedConfig, task: Task) -> Live:
    """Return the model that a configuration makes, on the tape."""
    job = config.job
    assert job is not None  # noqa: S101 - a model is built for a job
    transformers.logging.set_verbosity_error()
    kernels.unchecked.clear()
    own = configuration(config.keys, job)
    make = class_for(transformers, task, own).from_config
    dtype = TORCH_DTYPE[context.options.dtype]
    mode = TracingMode()
    with running(mode), made_for(Purpose.WEIGHTS):
        try:
            with torch.device(GPU):
                module = built(make, own, task=task, attention=job.attention, dtype=dtype)
                if getattr(own, "head_of_its_own", False):  # T5's, where a checkpoint's differs
                    head = module.get_output_embeddings()
                    head.weight = torch.nn.Parameter(head.weight.detach().clone())
        except Exception as error:  # whatever its own code raises
            raise unbuilt(own, task, error) from error
    allocated(module, mode)  # what torch.Tensor(n) made: it knows no device
    module.config.use_cache = job.use_cache
    if job.checkpointing == "full":
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    is_scripts = task == "embed" or job.label_smoothing or job.with_grad
    loss = loss_in if is_scripts else loss_of_outputs
    return Live(module, mode, values_of(job, inputs_for(config, job)), loss)


def unbuilt(own: Any, task: Task, error: Exception) -> NotModelledError:
    """Return the error for a configuration that transformers makes no model of for a task."""
    if isinstance(error, NotModelledError):
        return NotModelledError(
            f"{own.model_type} cannot be built: {error.message}", where=error.where, hint=error.hint
        )
    tasks = [name for name in AUTO_CLASSES if _maker(name, own) is not None]
    why = f": {_said(error)}" if task in tasks else ""  # else a list of all that it could make
    others = " and ".join(f"--task {name}" for name in tasks if name not in {task, "embed"})
    script = "`vrambudget rehearse --gpu GPU -- python train.py` runs a script that trains it"
    return NotModelledError(
        f"transformers has no {own.model_type} for {task}{why}",
        hint=f"it has one for {others}; or {script}" if others else script,
    )


def _said(error: Exception) -> str:
    """Return what an error says, its first lines joined."""
    lines = str(error).split("\n")[:_MOST_LINES]
    words = [word for word in " ".join(lines).split() if not word.endswith("Error:")]
    return " ".join(words) or type(error).__name__


def _accepted(keys: Mapping[str, Any]) -> Any:
    """Return transformers' configuration of these keys. Raises VramBudgetError if there is none."""
    try:
        return transformers.AutoConfig.for_model(**keys)
    except Exception as error:
        raise VramBudgetError(
            f"transformers rejects this configuration of {keys.get('model_type')}: {_said(error)}"
        ) from error


def configuration(keys: Mapping[str, Any], job: Job) -> Any:
    """Return transformers' configuration of a job's model."""
    own = _accepted(keys)
    if own.model_type == "t5":  # its configuration names neither
        own.decoder_start_token_id, own.pad_token_id = 0, 0
    if job.dropout is not None:
        for name in filter(lambda name: hasattr(own, name), DROPOUT_FIELDS):
            setattr(own, name, job.dropout)
    for name in _layer_drops(own):  # a step that skips no layer takes most
        setattr(own, name, 0.0)
    if job.image_size:
        own.image_size = job.image_size
    if job.experts == "eager":
        own._experts_implementation = "eager"  # noqa: SLF001 - transformers' own name for it
    return own


def values_of(job: Job, inputs: Mapping[str, Input]) -> dict[str, Known]:
    """Return what a loop's batch holds, as far as models read it back (measure.loops.run)."""
    values: dict[str, Known] = {}
    for name, given in inputs.items():
        if given.dtype.is_floating_point:
            continue
        value = torch.ones(given.shape, dtype=torch.long)
        if name == "labels" and job.task in CLASSIFYING:
            value.zero_()
        if name == "position_ids":
            assert job.block is not None  # noqa: S101 - resolved by the caller
            value = (torch.arange(job.block) % -(-job.block // 2)).expand(given.shape)
        if name == "attention_mask" and job.rows == "padded":
            value[:, -1] = 0
        values[name] = of_tensor(value)
    return values


def allocated(module: torch.nn.Module, mode: TracingMode) -> None:
    """Lay a live module's parameters and buffers down as `module.to("cuda")` does."""
    with made_for(Purpose.WEIGHTS):
        _lay(module, mode)


def _lay(module: torch.nn.Module, mode: TracingMode) -> None:
    for child in module.children():
        _lay(child, mode)
    own = (*module._parameters.values(), *module._buffers.values())  # noqa: SLF001 - shared ones too
    for x in own:
        if x is None or mode.traced_of(x) is not None:
            continue
        context.operation = "parameter" if isinstance(x, torch.nn.Parameter) else "buffer"
        v: Tensor = empty(tuple(x.shape), dtype_of(x.dtype), strides_of(x))
        v.requires_grad = bool(x.requires_grad)
        mode.weights[id(x)] = traced_tensor(v)
        mode.leaf_hooks.adopt(x, v)


def strides_of(x: torch.Tensor) -> tuple[int, ...] | None:
    """Return how a weight lies, None for the usual order: `to(memory_format=)` changes it."""
    no_storage: Any = None  # never read
    own = Tensor(tuple(x.shape), dtype_of(x.dtype), no_storage, tuple(x.stride()))
    return own.strides if own.is_dense and not own.is_contiguous else None
