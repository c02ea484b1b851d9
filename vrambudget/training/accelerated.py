"""What accelerate does around a model's forward pass under mixed precision.

    forward     in a region of autocast of its own
    outputs     every 16-bit tensor of them is made float32: logits [B, T, V] once more

Without mixed precision the model is called as it is.

Source: accelerate/accelerator.py (prepare_model), utils/operations.py (ConvertOutputsToFp32,
recursively_apply), 1.15.
"""

from dataclasses import replace
from typing import Any

from vrambudget.dtypes import float32
from vrambudget.engine.autocast import to
from vrambudget.engine.tensor import Tensor
from vrambudget.models.parts.outputs import Outputs
from vrambudget.training.loops.run import Run


def accelerated(run: Run, **inputs: Any) -> Outputs:
    """Return the outputs of a model that accelerate prepared."""
    with run.autocast():
        outputs: Outputs = run.model(**inputs)
    return _to_float32(outputs) if run.settings.autocast_dtype else outputs


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
