"""What a report says of convolutions: whose workspaces are included, or how much is not."""

from vrambudget.cudnn.answers import asked_without_driver, version
from vrambudget.units import format_bytes

_MOSTLY = 3
"""How many times what a convolution touches (x, weight and y) its workspace mostly is, at most.

Of 7,500 convolutions on seven architectures, asked of 9.19, 9 in 10 took at most 2.6 times as much,
and half of them once or less; a few small ones took up to 38 times.
"""


def remark_on_convolutions(unknown_workspace_bytes: int) -> str:
    """Return a sentence; the bytes are the most that one of unknown workspace touches."""
    if unknown_workspace_bytes:
        return (
            "cuDNN does not answer here: the workspaces of convolutions are not included, mostly 0"
            f" to {format_bytes(_MOSTLY * unknown_workspace_bytes)} while one runs"
            " (`pip install nvidia-cudnn-cu13` on Linux reports them, without a GPU)"
        )
    asked = f"cuDNN {version()} names for this GPU"
    if asked_without_driver.is_set():
        asked += (
            " (asked without a driver: a few, mostly of convolutions over single pixels, are not"
            " the GPU's)"
        )
    return (
        f"convolutions take the workspaces that {asked}; another version, or"
        " torch.backends.cudnn.benchmark, may take others"
    )
