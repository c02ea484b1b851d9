"""What accelerate does around a model's forward pass and a loss's backward.

    forward     under mixed precision in a region of autocast of its own
    outputs     then every 16-bit tensor of them is made float32: logits [B, T, V] once more
    loader      its generator holds a batch until the next one is asked for
    backward    the loss is divided by accelerate's number of micro-batches, be it one, and scaled

Source: accelerate/accelerator.py (prepare_model, backward), utils/operations.py
(ConvertOutputsToFp32, recursively_apply), 1.15.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.ops.elementwise import mul_scalar
from vrambudget.training.loops.run import Run
from vrambudget.training.scaler import GradScaler

Batch = dict[str, Tensor]


def accelerated(run: Run, **inputs: Any) -> Outputs:
    """Return the outputs of a model that accelerate prepared."""
    if run.has_ranks or run.settings.compile:  # what wraps the model wraps the region, too
        outputs: Outputs = run.model(**inputs)
        return outputs
    return _in_region(run, run.model, inputs)


def _in_region(run: Run, model: Module, inputs: dict[str, Any]) -> Outputs:
    with run.autocast():
        outputs: Outputs = model(**inputs)
    return _to_float32(outputs) if run.settings.autocast_dtype else outputs


class PreparedModel(Module):
    """A model whose forward accelerate replaced, before it is wrapped for several GPUs."""

    def __init__(self, run: Run, model: Module, in_region: Callable[..., Any] = _in_region) -> None:
        self._run, self._model, self._in_region = run, model, in_region

    def forward(self, **inputs: Any) -> Any:
        """Run the model in its region."""
        return self._in_region(self._run, self._model, inputs)


def held_by_loader(batches: Iterator[Batch]) -> Iterator[Batch]:
    """Yield batches, each held by the loader's frame until the next is asked for.

    Source: accelerate/data_loader.py (DataLoaderShard.__iter__).
    """
    while True:
        current_batch = next(batches)
        yield current_batch
        del current_batch


def backward(run: Run, loss: Tensor, scaler: GradScaler, *, divides: bool = True) -> None:
    """Run backward as Accelerator.backward does; the caller's loss lives on beside the divided.

    DeepSpeed's engine steps at once after a step's last; Trainer has it not divide.
    """
    if run.engine is not None:
        run.engine.backward(loss, scale_wrt_gas=divides)
        run.engine.step()
        return
    loss = mul_scalar(loss)
    run_backward(scaler.scale(loss))


def _to_float32(outputs: Outputs) -> Outputs:
    return replace(
        outputs,
        loss=_float(outputs.loss),
        logits=_float(outputs.logits),
        others=tuple(_float(other) for other in outputs.others),
    )


def _float(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_float, value))
    floating = isinstance(value, Tensor) and value.dtype.is_floating_point
    return to(value, float32) if floating else value
