"""The command that rehearses the running script: what to type where nothing can be predicted."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from vrambudget.config.gpus import Gpu

_GPU = "12GB"  # an example, where no GPU is known
_NOTEBOOKS = ("ipykernel_launcher", "colab_kernel_launcher")


def rehearsal_command(gpu: str | Gpu | None, words: Sequence[str] | None = None) -> str:
    """Return the command for the running script, or for `train.py` where there is none.

    `words` are those that the interpreter was started with.
    """
    script = _script(list(sys.orig_argv if words is None else words))
    return shlex.join(["vrambudget", "rehearse", "--gpu", _gpu(gpu), "--steps", "3", "--", *script])


def _gpu(gpu: str | Gpu | None) -> str:
    """Return a name that `rehearse` understands: that of the GPU here, where none is given."""
    if isinstance(gpu, Gpu):
        return gpu.key or f"{gpu.capacity_bytes}B"
    if gpu is not None and gpu != "auto":
        return gpu
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return _GPU
    return str(torch.cuda.get_device_name())


def _script(words: list[str]) -> list[str]:
    program = words[1:]
    interactive = (
        not program or program[0] == "-c" or any(n in " ".join(program) for n in _NOTEBOOKS)
    )
    if interactive:
        return ["python", "train.py"]
    return [Path(words[0]).name, *program]
