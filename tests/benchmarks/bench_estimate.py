"""How long an estimate takes, and the whole command: `python tests/benchmarks/bench_estimate.py`.

Machines are noisy: every number is the best of several runs, and what is compared runs in turn.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from vrambudget.estimator import estimate_scenario, resolve

RUNS = 9
IMPORTS = [sys.executable, "-c", "import pydantic, tabulate"]
MODELS = [sys.executable, "-c", "import pydantic, tabulate; class_ = pydantic.BaseModel"]
COMMAND = [sys.executable, "-m", "vrambudget", "gpt2", "--batch", "64", "--gpu", "12GB"]
BARE = [*COMMAND[:-2]]  # without a card there is no search for the largest batch


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
    tasks = {
        "gpt2": {"batch": 8},
        "nanogpt": {"batch": 12},
        "gpt2-xl": {"batch": 1},
        "llama-3.1-8b": {"block": 4096, "precision": "bf16", "lora_rank": 16}
        | {"checkpointing": "full"},
        "llama-3.1-405b": {"block": 2048, "precision": "bf16"},
    }
    for model, fields in tasks.items():
        scenario = resolve(model, **fields)
        seconds = best(lambda scenario=scenario: estimate_scenario(scenario))
        print(f"  {model:16} {1000 * seconds:8.1f} ms")
    print("the whole command, best of", RUNS)
    base = 0.0
    for name, words in {
        "import pydantic, tabulate": IMPORTS,
        "... and pydantic.BaseModel": MODELS,
        "vrambudget gpt2 --batch 64": BARE,
        "vrambudget gpt2 --batch 64 --gpu 12GB": COMMAND,
    }.items():
        seconds = best(command(words))
        base = base or seconds
        print(f"  {name:38} {seconds:6.3f} s  {seconds / base:5.1f}x")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"most memory of a command: {peak / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
