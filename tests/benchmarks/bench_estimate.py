"""How long an estimate takes, and the whole command: `python tests/benchmarks/bench_estimate.py`.

Machines are noisy: every number is the best of several runs, and what is compared runs in turn. The
yardstick for the command is the import of what vrambudget stands on: Python's own modules.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from vrambudget.estimator import estimate_scenario
from vrambudget.scenario import resolve

RUNS = 9
ESTIMATES = {
    "gpt2": {"batch": 8},
    "nanogpt": {"batch": 12},
    "gpt2-xl": {"batch": 1},
    "llama-3.1-8b": {"block": 4096, "precision": "bf16", "lora_rank": 16}
    | {"checkpointing": "full"},
    "llama-3.1-405b": {"block": 2048, "precision": "bf16"},
}
YARDSTICK = [sys.executable, "-c", "import argparse, dataclasses, json, pathlib, tomllib"]
COMMANDS = {
    "no card": "gpt2 --batch 64 --block 1024",
    "advice": "gpt2 --batch 64 --block 1024 --gpu 12GB",
    "the largest batch": "gpt2 --batch 4 --block 1024 --gpu 12GB",
    "advice, nothing fits": "llama-3.1-70b --block 8192 --gpu h100",
}


def best(run: Callable[[], object], runs: int = RUNS) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def command(words: Sequence[str]) -> Callable[[], object]:
    return lambda: subprocess.run(words, capture_output=True, check=False)


def main() -> None:
    print("estimate(), simulation and replay of three steps, best of", RUNS)
    for model, fields in ESTIMATES.items():
        scenario = resolve(model, **fields)
        seconds = best(lambda scenario=scenario: estimate_scenario(scenario))
        print(f"  {model:16} {1000 * seconds:8.1f} ms")
    print("the whole command, best of", RUNS)
    base = best(command(YARDSTICK))
    print(f"  {YARDSTICK[-1]:64} {base:6.3f} s")
    for what, words in COMMANDS.items():
        seconds = best(command([sys.executable, "-m", "vrambudget", *words.split()]))
        told = f"vrambudget {words}"
        print(f"  {told:48} {what:20} {seconds:6.3f} s {seconds / base:5.1f}x")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"most memory of a command: {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
