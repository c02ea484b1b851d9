"""Other tools' words for a job: TrainingArguments', PEFT's, TRL's options, as vrambudget's.

    --per_device_train_batch_size 4     --batch 4
    --gradient-checkpointing            --checkpointing full
    --bf16                              --precision amp-bf16    (TrainingArguments: autocast)
    --optim adamw_torch_fused           --optimizer adamw --optimizer-impl fused
    --qlora                             --quant nf4 --lora-rank 16 --precision amp-bf16
    --learning_rate 2e-5                nothing: it decides no memory, which is said

Names may have hyphens or underscores; `key=value` is another tool's word whatever options there
are. What is given in this tool's own words goes before what a
foreign word stands for. What decides memory and has no rules here is an error that names it.
`config.foreign` has the words, and their sources.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from vrambudget.config.foreign.hugging_face import completed
from vrambudget.config.foreign.meanings import (
    Ignored,
    Meaning,
    OneOf,
    OnlyRanks,
    Same,
    Switch,
    Uncounted,
)
from vrambudget.config.foreign.tables import read_table
from vrambudget.config.foreign.words import words_of
from vrambudget.config.options import is_switch, option_of, option_words
from vrambudget.errors import NotModelledError, VramBudgetError

_LLAMA_CPP = read_table("llama_cpp")
_SERVERS = read_table("servers")
_TRUTH = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}
_OF_A_JOB = "--batch"  # a command that has it has all options of a job
_OF_A_SERVER, _OF_LLAMA_CPP = "--gpu-memory-utilization", "--n-gpu-layers"
_OTHERWISE = "leave it out for the number without it"
_RUNS_IT = f"{_OTHERWISE}; `vrambudget rehearse --gpu GPU --"


def translated(
    words: Sequence[str], own: Collection[str], say: Callable[[str], None] = lambda _: None
) -> list[str]:
    """Return the words with foreign options translated; `own` are those that a command has.

    What decides no memory is left out, and said. Raises VramBudgetError for a value of a foreign
    option that means nothing here, NotModelledError for what has no rules.
    """
    if not {_OF_A_JOB, _OF_A_SERVER, _OF_LLAMA_CPP} & {*own}:
        return list(words)
    table: Mapping[str, Meaning] = _SERVERS if _OF_A_SERVER in own else _LLAMA_CPP
    if _OF_A_JOB in own:
        table = words_of(next(iter(words), ""))
    reading = _Reading(table, own)
    end = words.index("--") if "--" in words else len(words)
    given = reading.read(words[:end])
    if reading.ignored:
        say(f"left out, for they decide no memory: {', '.join(reading.ignored)}")
    return [*given, *words[end:]]


class _Reading:
    """One command line, as it is read."""

    def __init__(self, table: Mapping[str, Meaning], own: Collection[str]) -> None:
        self.table, self.own = table, own
        self.ignored: list[str] = []
        self._stated: dict[str, Any] = {}
        self._assumed: dict[str, Any] = {}

    def read(self, words: Sequence[str]) -> list[str]:
        """Return the words as vrambudget's, with what foreign ones stand for at the end."""
        given, left = list[str](), deque(words)
        while left:
            word = left.popleft()
            written, sign, value = word.partition("=")
            name = written.replace("_", "-") if written.startswith("--") else written
            meaning = self.table.get(name.lstrip("-").replace("-", "_"))
            if sign and meaning is not None and not name.startswith("-"):  # `key=value`
                self._take(word, meaning, deque([value]), has_value=True)
                continue
            if name in self.own and sign and is_switch(field := _field(name)):
                given += option_words({field: _truth(word, value)})
                continue
            if name in self.own or meaning is None or not written.startswith("-"):
                given.append(f"{name}{sign}{value}" if name in self.own else word)
                continue
            if sign:
                left.appendleft(value)
            self._take(written, meaning, left, has_value=bool(sign))
            if meaning == Same("lora_targets") and given and not given[0].startswith("-"):
                self._more_targets(left)
        return [*given, *self._implied(given)]

    def _take(self, name: str, meaning: Meaning, left: deque[str], *, has_value: bool) -> None:
        value = _value(name, meaning, left, has_value=has_value)
        if isinstance(meaning, Ignored | OnlyRanks):
            self.ignored.append(name)
            return
        found = meaning.translate(value)
        missing = found.noted if isinstance(meaning, Uncounted) else found.uncounted
        if missing or found.uncounted:
            raise NotModelledError(
                f"{name} has no counterpart here: {missing or found.uncounted}",
                hint=f"known are {', '.join(meaning.of)}"
                if isinstance(meaning, OneOf)
                else _way_out(self.table),
            )
        if found.noted:
            self.ignored.append(f"{name} ({found.noted})")
        self._stated.update(found.fields)
        self._assumed.update(found.assumed)

    def _more_targets(self, left: deque[str]) -> None:
        """Take the further words of a list, as TRL's command line has it."""
        names = [self._stated["lora_targets"]]
        while left and not left[0].startswith("-"):
            names.append(left.popleft())
        self._stated["lora_targets"] = ",".join(names)

    def _implied(self, given: Sequence[str]) -> list[str]:
        """Return what foreign words stand for as options, but for those that are given already."""
        named = {word.partition("=")[0] for word in given}
        words = list[str]()
        for field, value in completed({**self._assumed, **self._stated}).items():
            option = option_of(field)
            if isinstance(value, bool):
                words += option_words({field: value})
            elif option not in named and option in self.own:
                words += [option, _text(value)]
        return words


def _way_out(table: Mapping[str, Meaning]) -> str:
    """Return what to do about an option of this table that has no rules."""
    if table is _LLAMA_CPP:
        return _OTHERWISE
    if table is _SERVERS:
        return f"{_RUNS_IT} vllm serve MODEL ...` runs any start"
    return f"{_RUNS_IT} python train.py` runs any script"


def _value(name: str, meaning: Meaning, left: deque[str], *, has_value: bool) -> Any:
    """Take the value that follows an option: of a switch it may be left out."""
    if not has_value and _is_flag(meaning):
        return _TRUTH[left.popleft().lower()] if left and left[0].lower() in _TRUTH else True
    if not left or (left[0].startswith("--") and not has_value):
        if isinstance(meaning, Ignored):
            return True
        raise VramBudgetError(f"{name} needs a value", hint="`--help` lists this tool's options")
    return _parsed(left.popleft())


def _field(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _truth(word: str, value: str) -> bool:
    """Return what `--compile=True` says, as configurators of scripts have it."""
    if value.lower() not in _TRUTH:
        raise VramBudgetError(f"{word} should be true or false")
    return _TRUTH[value.lower()]


def _is_flag(meaning: Meaning) -> bool:
    return isinstance(meaning, Switch) or (
        isinstance(meaning, Ignored | Uncounted) and meaning.flag
    )


def _parsed(text: str) -> Any:
    """Return a number as a number and true or false as such: `0` is what turns clipping off."""
    if text.lower() in ("true", "false"):
        return _TRUTH[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
