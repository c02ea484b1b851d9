"""A program of several recordings of one model, at different sizes and precisions."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vrambudget.program.form import Program, Row
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.folding import Folded, folded_rows, outermost
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import Merger, Precision, UnfitError, code_of

PRECISIONS: dict[str, Precision] = {
    "bf16": ("bfloat16", "bfloat16"),
    "fp32": ("float32", "float32"),
    "amp-bf16": ("float32", "bfloat16"),
}


@dataclass(slots=True)
class Probe:
    """One recording: the sizes and the precision that it was made at."""

    sizes: dict[str, int]
    precision: str
    recording: Listener


@dataclass(slots=True)
class Model:
    """What a program says besides what was recorded."""

    source: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)  # sizes that others decide
    depths: dict[str, str] = field(default_factory=dict)  # of stacks: their keys


def program_of(probes: Sequence[Probe], model: Model) -> Program:
    """Return the program. Raises UnfitError where the recordings are not one."""
    recordings = [probe.recording for probe in probes]
    problems = [text for r in recordings for text in r.problems]
    if problems:
        raise UnfitError(problems[0])
    fitter = Fitter([probe.sizes for probe in probes])
    merger = Merger(fitter, [PRECISIONS[probe.precision] for probe in probes])
    code = code_of(recordings, merger)
    facts = [r.facts for r in recordings]
    first = facts[0]
    program = Program(source=_source(first, model), keys=model.keys)
    program.sizes = dict.fromkeys(probes[0].sizes, None) | dict(model.derived)
    program.guards = list(guards_of(recordings, merger))
    for text in model.derived.values():
        a, _, b = text.partition("//")
        program.guards.append([a, "%", b, True, "whole heads"])
    program.inputs = [
        [name, *merger.merge([f["inputs"][name] for f in facts], name)] for name in first["inputs"]
    ]
    built = _built(facts, merger)
    held = [name for name in first["outputs"] if name is not None]
    loss = first["loss"]
    logits = next((n for n in held if n != loss), loss)
    if any((f["outputs"], f["loss"]) != (first["outputs"], loss) for f in facts):
        raise UnfitError("the recordings return different tensors")
    others: list[Any] = [n for n in held if n not in {loss, logits}]
    numbers: dict[str, int] = {}
    code = [(state, _shared(row, numbers, program.effects)) for state, row in code]
    for stack in outermost(first["stacks"]):
        layers = first["stacks"][stack]
        folded = Folded(code, stack, layers) if stack in model.depths else None
        rows = None if folded is None else folded_rows(built, folded)
        if folded is None or rows is None or folded.period is None:
            program.stacks.append([stack, model.depths.get(stack), 0, None, layers])
            continue
        code, others = folded.rows(others)
        built = rows
        key = model.depths[stack]
        program.stacks.append([stack, key, folded.first, folded.period, layers])
    program.built = built
    program.code = list(_with_states(code))
    program.result = {"loss": loss, "logits": logits, "others": others}
    return program


def _source(facts: dict[str, Any], model: Model) -> dict[str, Any]:
    names = ("class", "accepts_loss_kwargs", "is_named_for_causal_lm")
    return {**model.source, **{name: facts[name] for name in names}}


def _shared(row: Row, numbers: dict[str, int], effects: list[Any]) -> Row:
    """Return a call with the number of its effects, which stand once."""
    word, value = row
    if word != "call":
        return row
    key = repr(value[0])
    if key not in numbers:
        numbers[key] = len(effects)
        effects.append(value[0])
    return word, [numbers[key], *value[1:]]


def _with_states(code: Sequence[tuple[list[Any], Row]]) -> Iterator[Row]:
    """Yield rows, and `at` where the state changes."""
    here: list[Any] | None = None
    for state, (word, value) in code:
        if word in {"repeat", "next"}:
            here = None
        elif word != "del" and state != here:
            here = state
            yield "at", state
        yield word, value


def guards_of(recordings: Sequence[Listener], merger: Merger) -> Iterator[list[Any]]:
    """Yield what the model's code compared: both sides, and how it came out, each once."""
    groups: list[dict[Any, list[Any]]] = []
    for recording in recordings:
        own: dict[Any, list[Any]] = {}
        for found in recording.comparisons:
            own.setdefault((found.place, found.operator), []).append(found)
        groups.append(own)
    seen = set[str]()
    for key in dict.fromkeys(k for own in groups for k in own):
        rows = [own.get(key, []) for own in groups]
        if len({len(row) for row in rows}) > 1:
            raise UnfitError(f"{key[0]} compares sizes {sorted({len(r) for r in rows})} times")
        for each in zip(*rows, strict=True):
            sides = [
                _side([getattr(x, s) for x in each], merger, key[0]) for s in ("left", "right")
            ]
            outcomes = {x.outcome for x in each}
            if len(outcomes) > 1:
                raise UnfitError(f"a branch depends on the size: {sides} at {key[0]}")
            constant = all(s.lstrip("-").isdigit() for s in sides) or sides[0] == sides[1]
            row = [sides[0], key[1], sides[1], outcomes.pop(), key[0]]
            if not constant and repr(row[:4]) not in seen:
                seen.add(repr(row[:4]))
                yield row


def _side(values: list[Any], merger: Merger, place: str) -> str:
    if any(isinstance(x, float) for x in values):
        if len(set(values)) > 1 or float(values[0]) != int(values[0]):
            raise UnfitError(f"a size is compared with {values[0]} at {place}")
        values = [int(x) for x in values]
    return str(merger.merge(values, place)).removeprefix("=")


def _built(facts: Sequence[dict[str, Any]], merger: Merger) -> list[Row]:
    """Return how the model is built: storages by the names of what they hold, then modules."""
    labels: dict[int, str] = {}
    for name, place, *_ in (*facts[0]["parameters"], *facts[0]["buffers"]):
        if place is not None:
            labels.setdefault(place, name)
    _label_temporaries(facts[0]["build"], labels)
    merged = merger.merge([f["build"] for f in facts], "build")
    rows: list[Row] = []
    for event in merged:
        if event[0] == "new":
            rows.append(("new", [labels[event[1]], *event[2:]]))
        else:
            rows.append(("free", labels[event[1]]))
    for name, kind in facts[0]["modules"].items():
        if name:
            rows.append(("module", [name, kind]))
    for word in ("parameters", "buffers"):
        for value in merger.merge([f[word] for f in facts], word):
            name, place, *rest = value
            label = name if place is None else labels[place]
            rows.append(("weight" if word == "parameters" else "buffer", [name, label, *rest]))
    return rows


def _label_temporaries(events: list[Any], labels: dict[int, str]) -> None:
    """Name what no parameter lies in by the module that the next parameter belongs to."""
    order = [event[1] for event in events if event[0] == "new"]
    counts: dict[str, int] = {}
    near = ""
    for number in reversed(order):
        if number in labels:
            near = labels[number].rpartition(".")[0]
            continue
        counts[near] = counts.get(near, 0) + 1
        labels[number] = f"{near}.~{counts[near]}" if near else f"~{counts[near]}"


Record = Callable[[dict[str, int], str], Listener]
