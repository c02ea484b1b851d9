"""Commands that start several ranks: which launcher, and what runs in its place.

The launcher's own parser reads its options, in the command's Python (vrambudget_hook/launch.py);
here it is only found. One rank is rehearsed, in one process.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from vrambudget.errors import VramBudgetError

_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
}
_PROGRAMS = {"torchrun": "torchrun", "accelerate-launch": "accelerate"}
_OTHERS = ("deepspeed", "mpirun", "mpiexec", "srun", "horovodrun", "ray")


def launched(
    command: Sequence[str], python: str, ranks: int | None, environment: Mapping[str, str]
) -> tuple[tuple[str, ...], int | None]:
    """Return the command that starts one rank, and of how many, as far as it is known here.

    A launcher that counts the cards finds `ranks`, or those of CUDA_VISIBLE_DEVICES.
    """
    kind, rest = launcher_of(command)
    if kind is None:
        return tuple(command), ranks
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    if ranks is None and "," in visible:
        ranks = len([card for card in visible.split(",") if card.strip()])
    return (python, "-m", "vrambudget_hook.launch", kind, *rest), ranks


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
    if tuple(command[1:2]) == ("-m",) and len(command) > 2 and command[2] in _MODULES:  # noqa: PLR2004
        return _MODULES[command[2]], command[3:]
    return None, command
