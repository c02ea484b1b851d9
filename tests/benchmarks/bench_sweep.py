"""How long sweeps take: `python tests/benchmarks/bench_sweep.py`.

100,000 points (batch, block) of GPT-2 by requested bytes should take less than 3 s, 1,000 full
replays less than 10 s on two cores. Machines are noisy: every number is the best of several runs.
"""

import time
from collections.abc import Callable

import vrambudget
from vrambudget.planning.forked import cpu_count

RUNS = 3
GRIDS = {
    "batch 1:100, block 1:1000": {"batch": range(1, 101), "block": range(1, 1001)},
    "batch 1:800, block 8:1000:8": {"batch": range(1, 801), "block": range(8, 1001, 8)},
}
REPLAYS = {"batch": range(1, 41), "block": range(40, 1001, 40)}


def best(run: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def main() -> None:
    print(f"GPT-2 on a 12 GB card, {cpu_count()} CPUs, best of {RUNS}")
    for name, grid in GRIDS.items():
        seconds = best(
            lambda grid=grid: vrambudget.sweep("gpt2", gpu="12GB", by="requested", **grid)
        )
        print(f"  100,000 points by requested bytes, {name:28} {seconds:6.2f} s")
    seconds = best(lambda: vrambudget.sweep("gpt2", gpu="12GB", **REPLAYS))
    print(f"  1,000 full replays, batch 1:40, block 40:1000:40 {seconds:20.2f} s")


if __name__ == "__main__":
    main()
