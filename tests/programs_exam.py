"""Hold every recorded program of the package against its trace, at two sizes that were no probes.

python tests/programs_exam.py [NAME ...]     each program, or those of some model types

Prints a line per program, and ends with 1 if one is unequal. Takes about a second a program, and
needs torch and transformers.
"""

# ruff: noqa: T201 - a command, that finds its modules first

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from vrambudget.errors import VramBudgetError
from vrambudget.program.catalog import RECORDED, program_at
from vrambudget.recording.checking import check

MODELS = Path(__file__).parent / "records" / "traced" / "model_types.jsonl"
FEWEST_LAYERS = 4  # of a program whose first layers differ; some records have fewer


def examined(path, models):
    """Return at how many sizes a program equals its trace."""
    program = program_at(path)
    values = models.get(path.name.partition(".")[0]) or program.source["sizes"]
    said = {k: v[0] for k, v in program.when.items() if k in {"task", "use_cache"}}
    fewest = max((first for _, _, first, *_ in program.stacks), default=0) + 1
    if values.get("num_hidden_layers", FEWEST_LAYERS) < fewest:
        values = {**values, "num_hidden_layers": FEWEST_LAYERS}
    return check(program, values, **said)


def main(names):
    """Examine the programs of some model types, all without names."""
    lines = MODELS.read_text(encoding="utf-8").splitlines()
    models = {model["model_type"]: model for model in (json.loads(line)["model"] for line in lines)}
    unequal = 0
    for path in sorted(RECORDED.glob("*.program")):
        model_type = path.name.partition(".")[0]
        if names and model_type not in names:
            continue
        try:
            print(f"{path.stem}: equal at {examined(path, models)} sizes", flush=True)
        except VramBudgetError as error:
            unequal += 1
            print(f"{path.stem}: {error}", flush=True)
    return int(unequal > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
