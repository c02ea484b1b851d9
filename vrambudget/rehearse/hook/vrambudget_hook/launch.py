"""Stand in for a launcher: the script starts in this process, as the rank that is rehearsed.

    python -m vrambudget_hook.launch torchrun --nproc-per-node 8 train.py --batch_size=4
    python -m vrambudget_hook.launch accelerate --num_processes 8 train.py

The options are read by the launcher's own parser, so that all that it takes is taken; only how many
ranks there are, and what it tells them, is used. `accelerate` sets the environment that it would.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, NoReturn

_PLAN = "VRAMBUDGET_REHEARSAL"


def ranks_environment(ranks: int, rank: int) -> dict[str, str]:
    """Return what a launcher tells one of so many ranks on one machine."""
    own = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    size = dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks))
    where = {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {
        **own,
        **size,
        **where,
        "VRAMBUDGET_DEVICES": str(ranks),
        "CUDA_VISIBLE_DEVICES": ",".join(map(str, range(ranks))),
    }


def torchrun(words: list[str], _cards: int | None) -> tuple[int, Any]:
    """Return the number of ranks and the arguments that name the script."""
    args = importlib.import_module("torch.distributed.run").get_args_parser().parse_args(words)
    nodes = int(str(args.nnodes).partition(":")[0])
    each = str(args.nproc_per_node)
    if not each.isdigit() and _cards is None:
        sys.exit(f"error: --nproc-per-node {each}: how many? write a number, or --ranks before --")
    return nodes * (int(each) if each.isdigit() else _cards or 1), args


def accelerate(words: list[str], cards: int | None) -> tuple[int, Any]:
    """Return the same of `accelerate launch`, whose settings go to the script's environment."""
    launch: Any = importlib.import_module("accelerate.commands.launch")
    if cards is not None and "--num_processes" not in words:
        words = ["--num_processes", str(cards), *words]
    found: list[Any] = []
    for name in ("multi_gpu_launcher", "simple_launcher"):
        setattr(launch, name, found.append)
    for name in ("deepspeed_launcher", "tpu_launcher", "sagemaker_launcher"):
        setattr(launch, name, lambda *_: sys.exit("error: only GPU ranks of torch are rehearsed"))
    launch.launch_command(launch.launch_command_parser().parse_args(words))
    (args,) = found
    ranks = int(args.num_processes or 1)
    utils: Any = importlib.import_module("accelerate.utils.launch")
    if ranks > 1 or args.use_fsdp:
        os.environ.update(utils.prepare_multi_gpu_env(args))
    else:
        os.environ.update(utils.prepare_simple_launcher_cmd_env(args)[1])
    return ranks, args


def main() -> NoReturn:
    """Become the script."""
    kind, *words = sys.argv[1:]
    plan = json.loads(os.environ[_PLAN])
    ranks, args = {"torchrun": torchrun, "accelerate": accelerate}[kind](words, plan["ranks"])
    rank = plan["rank"]
    if not 0 <= rank < ranks:
        sys.exit(f"error: --rank {rank} of {ranks} ranks: they are numbered from 0")
    plan["ranks"] = ranks
    os.environ.update(ranks_environment(ranks, rank), **{_PLAN: json.dumps(plan)})
    script = [args.training_script, *args.training_script_args]
    python = [] if args.no_python else [sys.executable, "-u", *(["-m"] if args.module else [])]
    command = [*python, *script]
    os.execvp(command[0], command)  # noqa: S606 - what the launcher would run


if __name__ == "__main__":
    main()
