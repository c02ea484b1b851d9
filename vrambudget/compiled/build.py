"""The module of a job on the fake GPU: built from its configuration, or a live one replayed."""

from collections.abc import Mapping
from typing import Any

import torch

from vrambudget.auto_classes import AUTO_CLASSES, built
from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.model import Compiled, on_gpu
from vrambudget.config.job import Job
from vrambudget.engine.context import context, made_for
from vrambudget.tape.events import Purpose
from vrambudget.traced import kernels
from vrambudget.traced.build import configuration, unbuilt
from vrambudget.traced.live import Loss, loss_of_outputs
from vrambudget.traced.module import copied
from vrambudget.traced.tensor import TORCH_DTYPE


def compiled_model(keys: Mapping[str, Any], job: Job, *, pads: bool) -> Compiled:
    """Return the model that a configuration's keys make, on the fake GPU."""
    kernels.unchecked.clear()
    mode = GpuMode()
    with on_gpu(mode), made_for(Purpose.WEIGHTS):
        if keys.get("model_type") == "nanogpt":
            module = _nanogpt(keys, job)
        else:
            with mode.saying(truth=False):  # trunc_normal_ asks whether to draw again
                module = _from_transformers(keys, job)
    return Compiled(module, mode, loss_of_outputs, pads=pads)


def compiled_module(module: Any, loss: Loss | None, *, pads: bool) -> Compiled:
    """Return a live module, replayed on the fake GPU; the module itself stays as it is."""
    kernels.unchecked.clear()
    mode = GpuMode()
    copy = copied(module)
    with on_gpu(mode), made_for(Purpose.WEIGHTS):
        lay_down(copy)
    return Compiled(copy, mode, loss or loss_of_outputs, pads=pads)


def _from_transformers(keys: Mapping[str, Any], job: Job) -> Any:
    import transformers  # noqa: PLC0415 - nanoGPT needs none

    transformers.logging.set_verbosity_error()
    assert job.task is not None  # noqa: S101 - resolved by the caller
    make = getattr(transformers, AUTO_CLASSES[job.task]).from_config
    dtype, own = TORCH_DTYPE[context.options.dtype], configuration(keys, job)
    try:
        with torch.device(GPU):
            module = built(make, own, task=job.task, attention=job.attention, dtype=dtype)
    except Exception as error:  # whatever its own code raises
        raise unbuilt(own, job.task, error) from error
    module.config.use_cache = job.use_cache
    if job.checkpointing == "full":
        module.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return module


def _nanogpt(keys: Mapping[str, Any], job: Job) -> Any:
    from vrambudget.measure.nanogpt import GPT  # noqa: PLC0415 - only this model needs it

    sizes = {**keys, "block_size": job.block, "dropout": job.dropout or 0.0}
    with torch._C._DisableTorchDispatch(), torch.device("meta"):
        module = GPT(sizes).to(TORCH_DTYPE[context.options.dtype])
    lay_down(module)
    return module


def lay_down(module: torch.nn.Module) -> None:
    """Move a module's tensors to the GPU as `module.to("cuda")` does, one after the other.

    Source: torch/nn/modules/module.py (_apply): children first, then a module's own.
    """
    _lay(module, {})


def _lay(module: torch.nn.Module, moved: dict[int, Any]) -> None:
    for child in module.children():
        _lay(child, moved)
    for own in (module._parameters, module._buffers):
        for name, x in own.items():
            if x is not None:
                if id(x) not in moved:
                    moved[id(x)] = _on_gpu(x)
                own[name] = moved[id(x)]


def _on_gpu(x: Any) -> Any:
    y = torch.empty_strided(tuple(x.shape), x.stride(), dtype=x.dtype, device=GPU)
    is_parameter = isinstance(x, torch.nn.Parameter)
    return torch.nn.Parameter(y, requires_grad=x.requires_grad) if is_parameter else y
