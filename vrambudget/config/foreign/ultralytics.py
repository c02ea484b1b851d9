"""ultralytics' words: `model=yolo11x.pt imgsz=640 batch=16`, and the args.yaml of its runs.

Source: ultralytics/cfg/default.yaml; engine/trainer.py (build_optimizer: auto is AdamW, or from
10,000 iterations on MuSGD, which keeps as much for each weight).
"""

from collections.abc import Sequence

from vrambudget.config.foreign.meanings import OneOf, Uncounted
from vrambudget.config.foreign.tables import read_table
from vrambudget.config.options import option_words
from vrambudget.errors import NotModelledError, VramBudgetError

ULTRALYTICS = read_table("ultralytics")
_RUNS = "`vrambudget rehearse --gpu GPU -- yolo train ...` runs it as it is"
_COMMAND = {"yolo", "detect", "train"}


def in_options(words: Sequence[str]) -> Sequence[str]:
    """Return `yolo train model=NAME.pt key=value` as NAME and its options.

    Raises NotModelledError for a key that decides memory and has no rules, VramBudgetError for a
    batch that is no number.
    """
    model = next(word for word in words if word.startswith("model="))
    name = model.removeprefix("model=").removesuffix(".yaml")
    rest = [word for word in words if word not in {model, *_COMMAND}]
    options = [option for word in rest for option in _options(word)]
    first = 0 if not options or options[0].startswith("-") else 1  # behind a command's name
    return [*options[:first], name, *options[first:]]


def _options(word: str) -> list[str]:
    """Return `key=value` as options: at once where this tool has an option of that name."""
    key, sign, value = word.partition("=")
    if not sign or word.startswith("-"):
        return [word]
    if key == "batch" and not value.isdecimal():
        raise VramBudgetError(
            f"{word} lets ultralytics look for a batch",
            hint="leave it out: `vrambudget fit` with the same words finds the largest that fits",
        )
    meaning = ULTRALYTICS.get(key)
    if not isinstance(meaning, OneOf | Uncounted):
        return [f"--{word}"]
    found = meaning.translate(value)
    if missing := found.uncounted or found.noted:
        raise NotModelledError(
            f"{word} has no counterpart here: {missing}",
            hint=f"leave it out for the number without it; {_RUNS}",
        )
    return option_words(dict(found.fields))
