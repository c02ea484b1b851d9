"""`vrambudget torchvision.models:resnet50 --inputs 64x3x224x224`: what any factory makes.

A factory that was recorded (timm's and torchvision's known names) is played; any other is called,
which needs torch, and a training step of what it makes is traced on inputs of this shape.
"""

from importlib.util import find_spec
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.program.catalog import recorded_types
from vrambudget.scenario import Scenario, resolve
from vrambudget.units import whole_number

_IMAGE = 4  # dimensions of [N, C, H, W]
_MOST = 2**31


def scenario_of(model: str, inputs: str, *, gpu: str | Gpu | None, **fields: Any) -> Scenario:
    """Return the scenario of a training of what "module:factory" makes. Raises VramBudgetError."""
    home, _, name = model.partition(":")
    shape = _shape(inputs)
    library = home.partition(".")[0]
    known = name if library == "timm" else f"{library}-{name}"
    if known in recorded_types() and len(shape) == _IMAGE and shape[2] == shape[3]:
        sizes = {"batch": shape[0], "image_size": shape[2]}
        played = resolve(known, gpu=gpu, **{**sizes, **fields})
        try:
            played.config_of_job.build(played.job.task or "image-cls")
        except NotModelledError as error:
            if not find_spec("torch") or not find_spec(library):
                hint = f"pip install torch {library}: this command traces it then, at any size"
                raise NotModelledError(error.message, hint=hint) from None
        else:
            return played
    if not (home and name):
        raise VramBudgetError(
            f"--inputs is for a factory, and {model!r} names none",
            hint="vrambudget torchvision.models:resnet50 --inputs 64x3x224x224",
        )
    return _traced(home, name, shape, gpu, fields)


def _traced(
    home: str, name: str, shape: tuple[int, ...], gpu: str | Gpu | None, fields: dict[str, Any]
) -> Scenario:
    try:
        import torch  # noqa: PLC0415 - known factories need none
    except ImportError as error:
        raise NotModelledError(
            f"{home}:{name} was not recorded, and tracing it needs PyTorch ({error})",
            hint="pip install torch (the CPU build will do), and the library that has the factory",
        ) from error
    from vrambudget.recording.modules import factory_named  # noqa: PLC0415 - it imports torch

    with torch.device("meta"):
        module = factory_named(f"{home}:{name}")()
    x = torch.empty(shape, device="meta")
    return resolve(module, gpu=gpu, inputs={"0": x}, loss=_mean, **fields)


def _mean(outputs: Any, _inputs: Any) -> Any:
    """Return a loss of any outputs: the mean of the first tensor."""
    while not hasattr(outputs, "mean"):
        outputs = next(iter(outputs.values() if hasattr(outputs, "values") else outputs))
    return outputs.float().mean()


def _shape(text: str) -> tuple[int, ...]:
    shape = tuple(whole_number(word) or 0 for word in text.lower().split("x"))
    if not all(0 < size < _MOST for size in shape):
        raise VramBudgetError(f"--inputs is {text!r}; it should be a shape", hint="64x3x224x224")
    return shape
