"""All jobs of a model in one file: a program for each task, attention and mask that it has.

Jobs in which the model's code does the same are one program.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from vrambudget.config.versions import installed_version, plain_version
from vrambudget.errors import VramBudgetError
from vrambudget.expressions import names_in
from vrambudget.program.form import Program
from vrambudget.program.guards import holds
from vrambudget.recording.checking import check
from vrambudget.recording.configurations import Recorded, record
from vrambudget.recording.generation import CALLS
from vrambudget.recording.keys import TIED, Values, choices
from vrambudget.recording.merging import joined
from vrambudget.recording.probing import Verdicts
from vrambudget.recording.rows import kinds_of
from vrambudget.recording.runs import LENGTH, recording

MASKS: tuple[Values, ...] = ({"attention_mask": "ones"}, {"rows": "padded"})


def record_variants(values: Values, tasks: Sequence[str], attentions: Sequence[str]) -> Recorded:
    """Return the programs of a configuration's model as one, each checked against its trace."""
    found: list[Recorded] = []
    for task in tasks:
        ties = [TIED.get(values["model_type"], {})]
        others: list[Values] = [{}]
        for tied, other in ((t, o) for t in ties for o in others):
            own, known = {**values, **other}, dict[str, Verdicts | None]()
            for job in _jobs(own, task, attentions):
                for made in _both_sides(own, known, tied, job):
                    if not found or found[-1].program.when["task"] != [task]:
                        ties += tied_in(made.program)
                        others += _others(made.program, values)
                    if len(ties) > 1:
                        equal = [f"{a}, {b}" for a, b in tied.items()]
                        _limit(made, "equal", *(equal or ["none"]))
                    for key in {key for each in others for key in each}:
                        _limit(made, key, made.program.keys[key]["is"])
                    found.append(made)
    checked = sum(made.checked for made in found)
    programs = joined(made.program for made in found)
    return dataclasses.replace(found[0], program=programs, checked=checked)


def _limit(made: Recorded, key: str, *values: Any) -> None:
    """Let programs, one a precision where the code asks for types, be of some jobs only."""
    for each in made.program.every():
        each.when[key] = [*values]


def _both_sides(
    values: Values, known: dict[str, Verdicts | None], tied: Values, job: Values
) -> Iterator[Recorded]:
    """Yield the program of a job; where a window decides, those of shorter and of longer rows."""
    own = {**values, **_equal(values, tied)}
    try:
        made = record(own, known.get(""), tied, **job)
    except VramBudgetError:
        if job.get("cache") == "static":  # its code asks the GPU how many tokens there are
            return
        raise
    known[""] = made.verdicts
    if "call" in job:
        yield made
        return
    made.checked = check(made.program, own, **job)
    for side, others, window in _beyond(made.program, own):
        with suppress(VramBudgetError):
            further = record({**own, **window}, known.get(others), tied, **job)
            further.checked = check(further.program, {**own, **window}, **job)
            known[others] = further.verdicts
            _limit(made, "length", side)
            _limit(further, "length", others)
            yield further
            break
    if any(row[:4] == ["batch", "!=", "1", True] for row in made.program.guards):
        one = {**job, "batch": 1}  # whose positions may be those of packed sequences
        with suppress(VramBudgetError):
            lone = record(own, known.get("batch"), tied, **one)
            lone.checked = check(lone.program, own, **one)
            known["batch"] = lone.verdicts
            _limit(made, "batch", "several")
            _limit(lone, "batch", "one")
            yield lone
    yield made


def _beyond(program: Program, values: Values) -> Iterator[tuple[str, str, Values]]:
    """Yield comparisons with the length, how they come out otherwise, and a key that does that."""
    for guard in program.guards:
        left, sign, right, outcome, _ = guard
        for key in sorted(names_in(right) & program.keys.keys()) if left == "length" else ():
            usual = int(values.get(key, program.keys[key].get("default", LENGTH)))
            for other in (*(usual >> n for n in range(1, 9)), *(usual << n for n in range(1, 9))):
                probes = ({key: 4 * other, left: LENGTH}, {key: other // 2, left: 2 * LENGTH})
                if other and not any(holds(guard, probe) for probe in probes):
                    holding, failing = f"{left} {sign} {right}", f"not {left} {sign} {right}"
                    own, further = (holding, failing) if outcome else (failing, holding)
                    yield own, further, {key: other}
                    break


def _others(program: Program, values: Values) -> Iterator[Values]:
    """Yield what keys may be instead whose class names all values."""
    for key, rule in program.keys.items():
        if isinstance(rule, dict) and isinstance(rule.get("is"), str) and "." not in key:
            for other in choices(values["model_type"], key):
                if other != rule["is"]:
                    yield {key: other}


def _jobs(values: Values, task: str, attentions: Sequence[str]) -> Iterator[Values]:
    """Yield the jobs of a task; where its code asks for a mask that nobody gives, both answers."""
    for how in attentions:
        job: Values = {"task": task, "attention": how}
        if task == "image-cls":
            yield job
            continue
        if "input_features" in recording(values, **job).facts["inputs"]:  # sound has no mask
            yield from ({**job, "use_cache": cached} for cached in (False, True))
            continue
        ways = _ways(values, job, "causal_mask", ("skipped", "built"))
        ways += [{**job, **mask} for mask in MASKS]
        ways = [own for way in ways for own in _ways(values, way, "use_cache", (True, False))]
        if task != "seq2seq-lm":
            yield from ways
            continue
        for way in ways:  # T5's layers cache, unless they are checkpoints
            yield from _ways(values, way, "checkpointing", ("none", "full"))
        yield from _calls(values, job)


def _ways(values: Values, job: Values, key: str, answers: Sequence[Any]) -> list[Values]:
    """Return a job with each answer to a question; as it is where they come to the same."""
    ways = [{**job, key: answer} for answer in answers]
    first, second = (kinds_of(recording(values, **way)) for way in ways)
    return [job] if first == second else ways


def _calls(values: Values, job: Values) -> Iterator[Values]:
    """Yield what `generate` calls; of prompts with and without padding, where they differ."""
    for call in CALLS:
        ways = [{**job, **mask, **call} for mask in MASKS]
        plain, padded = (kinds_of(recording(values, **way)) for way in ways)
        if plain == padded:
            yield ways[0]
        else:
            yield from ({**way, "padding": "rows" in way} for way in ways)


def of_versions(
    program: Program, values: Values, tasks: Sequence[str], attentions: Sequence[str]
) -> Recorded:
    """Return a file's programs with those of the installed version of transformers.

    Where the file's come to the bytes of this version in all jobs, they stand for it, too.
    """
    every = program.every()
    for variant in every:
        own = plain_version(program.source["transformers"])
        variant.when.setdefault("transformers", [own])
    here = plain_version(installed_version("transformers"))
    try:
        checked = sum(
            check(program, {**values, **_equal(values, tied)}, **job)
            for tied in [{}, *tied_in(program)]
            for task in tasks
            for job in _jobs(values, task, attentions)
        )
    except VramBudgetError:
        made = record_variants(values, tasks, attentions)
        further = [variant.program for variant in made.program.every()]
        for each in further:
            each.when["transformers"] = [here]
        program = joined([*(variant.program for variant in every), *further])
        return dataclasses.replace(made, program=program)
    for variant in every:
        variant.when["transformers"].append(here)
    return Recorded(program, list(program.sizes), [], checked)


def tied_in(program: Program) -> list[dict[str, str]]:
    """Return keys that the model's code compares: where they are equal is another program."""
    free = {key for key, rule in program.keys.items() if isinstance(rule, dict) and "free" in rule}
    found = []
    for left, sign, right, outcome, _ in program.guards:
        key, other = left, right
        if (sign, right, outcome) == (">", "1", True):  # query heads // key heads: groups
            other, _, key = left.partition("//")
        elif (sign, outcome) not in {("!=", True), ("==", False)}:
            continue
        if {key, other} <= free:
            found.append({key: other})
    return found


def _equal(values: Values, tied: Values) -> Values:
    if missing := sorted(set(tied.values()) - values.keys()):
        raise VramBudgetError(
            f"the model's code compares {missing[0]} with another key: say it in the configuration"
        )
    return {key: values[other] for key, other in tied.items()}
