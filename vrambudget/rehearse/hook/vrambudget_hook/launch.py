"""Stand in for a launcher: the script starts in this process, as the rank that is rehearsed.

    python -m vrambudget_hook.launch torchrun --nproc-per-node 8 train.py --batch_size=4
    python -m vrambudget_hook.launch deepspeed --num_gpus 8 train.py --deepspeed_config ds.json

The options are read by the launcher's own parser, so that all that it takes is taken; only how many
ranks there are, and what it gives them, is used. `accelerate` sets the environment that it would.

Runs in the user's Python, 3.9 or later.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any, NamedTuple, NoReturn

_PLAN = "VRAMBUDGET_REHEARSAL"


class Started(NamedTuple):
    """What a launcher would start: `each` ranks on each of `nodes`, with the script's arguments.

    `rank_arguments`: what it passes before the script's own arguments, with {} for the local rank.
    """

    nodes: int
    each: int
    script: str
    arguments: list[str]
    module: bool = False
    no_python: bool = False
    rank_arguments: tuple[str, ...] = ()


def ranks_environment(ranks: int, rank: int, each: int) -> dict[str, str]:
    """Return a launcher's variables for one of so many ranks, `each` of them on one machine."""
    own = {"RANK": str(rank), "LOCAL_RANK": str(rank % each), "GROUP_RANK": str(rank // each)}
    size = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(each)}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return {**own, **size, **where, **gpus_environment(each)}


def gpus_environment(gpus: int) -> dict[str, str]:
    """Return the variables that set how many GPUs PyTorch and the stub libraries see."""
    visible = ",".join(map(str, range(gpus)))
    return {"VRAMBUDGET_DEVICES": str(gpus), "CUDA_VISIBLE_DEVICES": visible}


def torchrun(words: list[str], gpus: int | None) -> Started:
    """Return what torchrun starts."""
    return _torchrun(
        importlib.import_module("torch.distributed.run").get_args_parser(), words, gpus
    )


def launch(words: list[str], gpus: int | None) -> Started:
    """Return what torch.distributed.launch starts, which passes the local rank as an argument."""
    parser = importlib.import_module("torch.distributed.run").get_args_parser()
    parser.add_argument("--use-env", "--use_env", action="store_true")
    started = _torchrun(parser, words, gpus)
    if parser.parse_args(words).use_env:
        return started
    return started._replace(rank_arguments=("--local-rank={}",))


def _torchrun(parser: Any, words: list[str], gpus: int | None) -> Started:
    args = parser.parse_args(words)
    each = str(args.nproc_per_node)
    if not each.isdigit() and gpus is None:
        sys.exit(f"error: --nproc-per-node {each}: how many? write a number, or --ranks before --")
    count = int(each) if each.isdigit() else gpus or 1
    return _started(args, int(str(args.nnodes).partition(":")[0]), count)


def _started(args: Any, nodes: int, each: int) -> Started:
    arguments = list(args.training_script_args)
    return Started(nodes, each, args.training_script, arguments, args.module, args.no_python)


def accelerate(words: list[str], gpus: int | None) -> Started:
    """Return what `accelerate launch` starts; its settings go to the script's environment."""
    module: Any = importlib.import_module("accelerate.commands.launch")
    if gpus is not None and "--num_processes" not in words:
        words = ["--num_processes", str(gpus), *words]
    found: list[Any] = []
    for name in ("multi_gpu_launcher", "simple_launcher", "deepspeed_launcher"):
        setattr(module, name, found.append)
    for name in ("tpu_launcher", "tpu_pod_launcher", "sagemaker_launcher"):
        setattr(module, name, lambda *_: sys.exit("error: only ranks on GPUs are rehearsed"))
    module.launch_command(module.launch_command_parser().parse_args(words))
    (args,) = found
    nodes, ranks = int(args.num_machines or 1), int(args.num_processes or 1)
    script = _started(args, nodes, -(-ranks // nodes))
    utils: Any = importlib.import_module("accelerate.utils.launch")
    if args.use_deepspeed:
        variables = utils.prepare_deepspeed_cmd_env(args)[1]
    elif ranks > 1 or args.use_fsdp:
        variables = utils.prepare_multi_gpu_env(args)
    else:
        variables = utils.prepare_simple_launcher_cmd_env(args)[1]
    os.environ.update(variables)
    return script


def deepspeed(words: list[str], gpus: int | None) -> Started:
    """Return what `deepspeed` starts: of a host file's machines, or of one with `gpus`."""
    runner: Any = importlib.import_module("deepspeed.launcher.runner")
    args = runner.parse_args(words)
    machines = runner.fetch_hostfile(args.hostfile)
    if not machines:
        slots = [int(n) for n in args.include.rpartition(":")[2].split(",") if n.isdigit()]
        machines = {"localhost": gpus or max(args.num_gpus, 1, *(n + 1 for n in slots))}
    chosen = runner.parse_inclusion_exclusion(machines, args.include, args.exclude)
    each = len(next(iter(chosen.values())))
    nodes = min(len(chosen), args.num_nodes if args.num_nodes > 0 else len(chosen))
    each = min(each, args.num_gpus) if args.num_gpus > 0 else each
    rank_arguments = () if args.no_local_rank else ("--local_rank={}",)
    return Started(
        nodes,
        each,
        args.user_script,
        list(args.user_args),
        args.module,
        args.no_python,
        rank_arguments,
    )


_LAUNCHERS = {
    "torchrun": torchrun,
    "launch": launch,
    "accelerate": accelerate,
    "deepspeed": deepspeed,
}


def main() -> NoReturn:
    """Become the script."""
    kind, *words = sys.argv[1:]
    plan = json.loads(os.environ[_PLAN])
    started = _LAUNCHERS[kind](words, plan["ranks"])
    ranks, rank = started.nodes * started.each, plan["rank"]
    if not 0 <= rank < ranks:
        sys.exit(f"error: --rank {rank} of {ranks} ranks: they are numbered from 0")
    plan["ranks"] = ranks
    os.environ.update(ranks_environment(ranks, rank, started.each), **{_PLAN: json.dumps(plan)})
    python = [sys.executable, "-u", *(["-m"] if started.module else [])]
    first = [word.format(rank % started.each) for word in started.rank_arguments]
    command = [*([] if started.no_python else python), started.script, *first, *started.arguments]
    os.execvp(command[0], command)  # noqa: S606 - what the launcher would run


if __name__ == "__main__":
    main()
