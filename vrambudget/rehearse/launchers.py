"""Commands that start several ranks: which launcher, and what runs in its place.

The launcher's own parser reads its options, in the command's Python (vrambudget_hook/launch.py);
here it is only found. One rank is rehearsed, in one process.
"""

from collections.abc import Mapping, Sequence
from itertools import dropwhile
from pathlib import Path

from vrambudget.errors import VramBudgetError

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "launch",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
}
_PROGRAMS = {"torchrun": "torchrun", "accelerate-launch": "accelerate", "deepspeed": "deepspeed"}
_PYTHON_S = ("-u", "-O", "-B", "-s", "-I")
_OTHERS = ("horovodrun", "ray", "pdsh", "jsrun", "ibrun", "flux")


def launched(
    command: Sequence[str], python: str, ranks: int | None, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], int | None]:
    """Return the command that starts one rank, and of how many, as far as the launcher says it.

    A launcher that counts GPUs finds `ranks`, or those of CUDA_VISIBLE_DEVICES.
    """
    kind, rest = launcher_of(command)
    if kind is None:
        return tuple(command), ranks
    visible = visible_gpus(environment)
    if ranks is None and visible > 1:
        ranks = visible
    return (python, "-m", "vrambudget_hook.launch", kind, *rest), ranks


def visible_gpus(environment: Mapping[str, str]) -> int:
    """Return how many GPUs CUDA_VISIBLE_DEVICES names, at least one: the virtual one."""
    named = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return max(1, sum(bool(gpu.strip()) for gpu in named))


def launcher_of(command: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Return the launcher's kind, and its arguments. Raises VramBudgetError for one not known."""
    program = Path(command[0]).name
    if program in _PROGRAMS:
        return _PROGRAMS[program], command[1:]
    if program == "accelerate" and tuple(command[1:2]) == ("launch",):
        return "accelerate", command[2:]
    if program in _OTHERS:
        raise VramBudgetError(
            f"{program} is not understood: it starts ranks that speak through NCCL",
            hint="rehearse one of them: --ranks 8 -- python train.py",
        )
    words = list(dropwhile(lambda word: word in _PYTHON_S, command[1:]))
    if words[:1] == ["-m"] and words[1:2] and words[1] in _MODULES:
        return _MODULES[words[1]], words[2:]
    return None, command
