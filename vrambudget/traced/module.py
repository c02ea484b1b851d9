"""A live module as a model to estimate: whatever it is made of, its own code runs.

Its parameters and buffers are allocated as `module.to("cuda")` does. What follows runs on a copy of
its modules, which shares the tensors: the module itself stays as it is.

    inputs    tensors by name, or one, or several in order: what a language model reads if not given
    loss      loss(outputs, inputs): for a module whose outputs have none

The first dimension of inputs is the batch: another --batch changes it.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import torch

from vrambudget.auto_classes import asked_for_loss
from vrambudget.config.fields.batches import Task
from vrambudget.config.job import Job
from vrambudget.config.model_config import ModelConfig
from vrambudget.config.settings import Field
from vrambudget.config.unfamiliar import length_of, tasks_of
from vrambudget.engine.context import context
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.ops.workspaces import asked_cublas_bytes
from vrambudget.traced import kernels
from vrambudget.traced.build import allocated, inputs_of_rows, values_of
from vrambudget.traced.known import of_tensor
from vrambudget.traced.live import Live, loss_of_outputs
from vrambudget.traced.mode import TracingMode
from vrambudget.traced.tensor import dtype_of
from vrambudget.training.inputs import Input, inputs_for

_PRECISIONS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class ModuleConfig(ModelConfig):
    """The live module, and what it is called with."""

    module: Any = None
    inputs: Any = Field(None, description="tensors by name")
    loss: Any = None
    job: Job | None = None

    tasks = tasks_of({})
    loads_in_4bit = False
    checked_with = ()

    @property
    def default_block(self) -> int:
        """Tokens per sequence if a job names none; inputs of one's own have their own length."""
        if self.inputs is not None:
            return 1
        own = getattr(self.module, "config", None)
        return length_of(own.to_dict() if own is not None and hasattr(own, "to_dict") else {})

    @property
    def job_defaults(self) -> dict[str, Any]:
        """Return what a job is, unless it says otherwise."""
        kinds = {p.dtype for p in self.module.parameters() if p.is_floating_point()}
        precision = _PRECISIONS.get(next(iter(kinds))) if len(kinds) == 1 else None
        own = (
            self.module.get_base_model() if hasattr(self.module, "get_base_model") else self.module
        )
        named = tasks_of({"architectures": [type(own).__name__]})
        task = next(task for task in named if task != "embed")  # whose loss is a script's own
        found: dict[str, Any] = {"precision": precision or "fp32", "task": task}
        if self.inputs is not None:
            found["batch"] = _batch_of(self.inputs)
        return found

    def own_inputs(self, job: Job) -> Mapping[str, Input] | None:
        """Return the tensors that the module is called with, for this job's batch."""
        if self.inputs is None:
            return inputs_of_rows(self.module, getattr(self.module, "config", None), job)
        batch = _batch_of(self.inputs)
        return {
            name: Input(
                (job.batch, *x.shape[1:]) if x.dim() and x.shape[0] == batch else tuple(x.shape),
                dtype_of(x.dtype),
                keeps_dtype=True,
            )
            for name, x in self.inputs.items()
        }

    def for_job(self, job: Job) -> Self:
        """Return the configuration with the job that its model is built for."""
        return self.model_copy(update={"job": job})

    def notes(self) -> Iterator[str]:
        """Yield how the model is estimated."""
        yield f"{self.model_type} has no rules of its own: its code was traced"

    def not_modelled(self) -> Iterator[str]:
        """Yield the operations that were traced by their results alone."""
        yield from kernels.not_modelled()

    def build(self, task: Task) -> Live:
        """Return the module on the tape."""
        del task
        assert self.job is not None  # noqa: S101 - a model is built for a job
        kernels.unchecked.clear()
        context.platform = replace(context.platform, cublas_bytes=asked_cublas_bytes())
        mode = TracingMode()
        allocated(self.module, mode)
        module = asked_for_loss(copied(self.module), self.job.task)
        if self.job.checkpointing == "full":
            if not hasattr(module, "gradient_checkpointing_enable"):
                raise NotModelledError(f"{self.model_type} has no switch for checkpointing")
            module.gradient_checkpointing_enable({"use_reentrant": False})
        known = values_of(self.job, inputs_for(self, self.job))
        if self.inputs is not None:
            same = self.job.batch == _batch_of(self.inputs)
            known = {n: of_tensor(x) for n, x in self.inputs.items() if same and x.is_cpu}
        return Live(module, mode, known, self.loss or loss_of_outputs)


def module_config(
    module: Any, inputs: Any = None, loss: Callable[..., Any] | None = None
) -> ModuleConfig:
    """Return the configuration of a live module. Raises VramBudgetError for inputs of no use."""
    values = {
        "model_type": type(module).__name__,
        "module": module,
        "inputs": None if inputs is None else _named(inputs),
        "loss": loss,
    }
    return ModuleConfig.model_construct(**values)


def _named(inputs: Any) -> dict[str, torch.Tensor]:
    """Return inputs by name; those in order are named by their place."""
    if isinstance(inputs, torch.Tensor):
        inputs = [inputs]
    if isinstance(inputs, Sequence):
        inputs = {str(place): x for place, x in enumerate(inputs)}
    if not isinstance(inputs, Mapping) or not inputs:
        raise VramBudgetError(f"inputs should be tensors by name, not {type(inputs).__name__}")
    for name, x in inputs.items():
        if not isinstance(x, torch.Tensor):
            raise VramBudgetError(f"inputs[{name!r}] is a {type(x).__name__}, not a tensor")
    return dict(inputs)


def _batch_of(inputs: Mapping[str, torch.Tensor]) -> int:
    first = next(iter(inputs.values()))
    return int(first.shape[0]) if first.dim() and first.shape[0] else 1


def copied(module: Any) -> Any:
    """Return a copy of a module's modules, with the module's own tensors."""
    tensors = {id(x): x for x in (*module.parameters(), *module.buffers())}
    try:
        return copy.deepcopy(module, dict(tensors))
    except (TypeError, RuntimeError) as error:
        raise NotModelledError(f"{type(module).__name__} cannot be copied: {error}") from error
