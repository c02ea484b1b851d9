"""The longer run: `PYTHONPATH=tests python -m fuzz --cases 100000 --seed 1`."""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from random import Random

from fuzz.laws import LAWS
from fuzz.rehearsals import SLOW
from vrambudget.config.versions import BASELINE

HANG_SECONDS = 20  # of CPU time


class HangError(BaseException):
    """A case that took too long."""


def _hangs(*_: object) -> None:
    raise HangError


def main() -> int:
    """Run the cases and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first case; the next is +1")
    parser.add_argument("--only", choices=sorted(LAWS | SLOW), help="one kind of input")
    args = parser.parse_args()
    laws = LAWS | SLOW
    os.environ.update({f"VRAMBUDGET_{name.upper()}": v for name, v in BASELINE.items()})
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(tempfile.mkdtemp(prefix="fuzz-"))  # what is written lies there
    signal.signal(signal.SIGPROF, _hangs)
    found: Counter[str] = Counter()
    broken: Counter[str] = Counter()
    slowest, started = 0.0, time.process_time()
    for seed in range(args.seed, args.seed + args.cases):
        rng = Random(seed)  # noqa: S311 - the same case every time
        kind = rng.choice(sorted(LAWS))
        kind = args.only or kind
        begun = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, HANG_SECONDS)
        try:
            found[f"{kind}: {laws[kind](rng)}"] += 1
        except Exception as error:  # noqa: BLE001 - each is a law that is broken
            broken[f"{kind}: {type(error).__name__}"] += 1
            sys.stderr.write(f"seed {seed} ({kind}):\n{traceback.format_exc(limit=-4)}\n")
        except HangError:
            broken[f"{kind}: hangs"] += 1
            sys.stderr.write(f"seed {seed} ({kind}) hangs\n")
        signal.setitimer(signal.ITIMER_PROF, 0)
        slowest = max(slowest, time.process_time() - begun)
    seconds = time.process_time() - started
    result = {
        "cases": args.cases,
        "first seed": args.seed,
        "broken": dict(broken),
        "found": dict(sorted(found.items())),
        "slowest, s": round(slowest, 2),
        "CPU seconds": round(seconds),
    }
    sys.stdout.write(json.dumps(result, indent=2) + "\n")
    return 1 if broken else 0


sys.exit(main())
