"""What a video's model does for each piece of its frames in turn, written once.

A VAE's decoder runs over latent frames one by one, and longer videos have more of these rounds. The
rounds are found by their instructions: the longest run that recurs. What a round reads of the one
before it is carried; sizes that grow with the rounds are expressions of `round`, from 1 on.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from vrambudget.recording.fitting import Fitter
from vrambudget.recording.folding import Instruction
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import Merger, UnfitError, code_of
from vrambudget.recording.raw import Effects, Name, State, Thing

Heard = tuple[State, tuple[Any, ...]]
Names = dict[Name, Name]
_OUTSIDE = ["", False, True, True]
_FIRST = 4  # rounds that the recordings may have less than a size says


@dataclass(slots=True)
class _Parts:
    """The instructions of a recording: before its rounds, each round's, behind them."""

    head: list[Heard]
    rounds: list[list[Heard]]
    tail: list[Heard]
    names: list[Names]  # of each round's tensors: what the first one's are called


def code_with_rounds(recordings: Sequence[Listener], merger: Merger) -> list[Instruction]:
    """Return merged instructions, where some recordings have more rounds. Raises UnfitError."""
    if len({len(r.rows) for r in recordings}) == 1:
        return code_of([r.rows for r in recordings], merger)
    every, carry = _split(recordings)
    counts = [len(parts.rounds) for parts in every]
    texts = [(merger.fitter.fit([n + less for n in counts]), less) for less in range(_FIRST)]
    text, less = min(texts, key=lambda found: len(str(found[0] or "-" * 99)))
    if text is None:
        raise UnfitError(f"rounds recur {counts} times, which no size says")
    made = _made(every[0].tail)
    for recording, parts in zip(recordings, every, strict=True):
        tail = _behind(parts.tail, parts.names)
        again = dict(zip(_made(tail), made, strict=False))
        parts.tail = [_renamed(row, again) for row in tail]
        again |= parts.names[-1]
        recording.facts["outputs"] = [again.get(x, x) for x in recording.facts["outputs"]]
    each = [*zip(merger.fitter.probes, merger.precisions, counts, strict=True)]
    at = [{**own, "round": n} for own, _, count in each for n in range(1, count + 1)]
    inner = Merger(Fitter(at), [types for _, types, count in each for _ in range(count)])
    return [
        *code_of([parts.head for parts in every], merger),
        (_OUTSIDE, ("repeat", [f"={text}-{less}", [[*pair] for pair in carry.items()]])),
        *code_of([rows for parts in every for rows in parts.rounds], inner),
        (_OUTSIDE, ("next", None)),
        *code_of([parts.tail for parts in every], merger),
    ]


def _split(recordings: Sequence[Listener]) -> tuple[list[_Parts], Names]:
    """Return the recordings' parts, rounds by the names of the first, and what those carry."""
    longest = max((r.rows for r in recordings), key=len)
    first, length = _recurring([_kind(row) for row in longest])
    while True:
        every = [_parts(r.rows, first, length) for r in recordings]
        if (fewest := min(len(parts.rounds) for parts in every)) < 2:  # noqa: PLR2004 - none recurs
            raise UnfitError(f"rounds of {length} instructions recur {fewest} times")
        carry = Names()
        unlike = [_read_by_rounds(parts, every[0].rounds[0], carry) for parts in every]
        if not max(unlike):
            return every, carry
        first += max(unlike)  # what stands before is alike by chance


def _kind(row: Heard) -> tuple[Any, ...]:
    state, (word, what, *_) = row
    return state, word, getattr(what, "name", what if word == "op" else "")


def _recurring(kinds: Sequence[Any]) -> tuple[int, int]:
    """Return where the longest run begins that recurs, and how long one round is."""
    places = dict[Any, list[int]]()
    for at, kind in enumerate(kinds):
        places.setdefault(kind, []).append(at)
    steps = Counter(b - a for found in places.values() for a, b in pairwise(found))
    best = 0, 0, 1
    for step, times in steps.items():
        start = 0
        for at in range(len(kinds) - step + 1):
            if at < len(kinds) - step and kinds[at] == kinds[at + step]:
                continue
            if times >= step and (run := at - start) >= step:
                best = max(best, (run // step * step, -start, step))
            start = at + 1
    covered, start, step = best
    if not covered:
        raise UnfitError("recordings have different instructions, and none recur")
    return -start, step


def _parts(rows: list[Heard], first: int, length: int) -> _Parts:
    kinds, count = [_kind(row) for row in rows], 1
    body = kinds[first : first + length]
    while kinds[(end := first + count * length) : end + length] == body:
        count += 1
    return _Parts(
        rows[:first],
        [rows[first + n * length :][:length] for n in range(count)],
        rows[first + count * length :],
        [],
    )


def _read_by_rounds(parts: _Parts, own: list[Heard], carry: Names) -> int:
    """Give each round's tensors the names of `own`, the first round; return 0.

    `carry`: in the place of what stands there, a further round reads what the one before it made.
    Returns how far one reads anything else.
    """
    made = _made(own)
    parts.names = [dict(zip(_made(rows), made, strict=True)) for rows in parts.rounds]
    for n, rows in enumerate(parts.rounds):
        before = parts.names[n - 1] if n else {}
        known = Names(parts.names[n])
        for at, (row, like) in enumerate(zip(rows, own, strict=True)):
            for name, there in zip(_named(row[1]), _named(like[1]), strict=True):
                if name in parts.names[n] or name == there:
                    continue
                if name not in before or carry.setdefault(there, before[name]) != before[name]:
                    return at + 1
                known[name] = there
        parts.rounds[n] = [_renamed(row, known) for row in rows]
    return 0


def _behind(rows: list[Heard], names: list[Names]) -> list[Heard]:
    """Return what follows the rounds: the last one's tensors by name, those of all as `rounds`."""
    every = {name: own for each in names for name, own in each.items()}
    freed = Counter(every.get(row[1]) for _, row in rows if row[0] == "del")
    found = list[Heard]()
    for state, row in rows:
        if row[0] != "del":
            found.append(_renamed((state, _each(row, every)), names[-1]))
        elif freed[own := every.get(row[1])] < 2 or own is None:  # noqa: PLR2004 - one round's
            found.append((state, ("del", every.get(row[1], row[1]))))
        elif ("del", {"rounds": own}) not in (x for _, x in found):
            found.append((state, ("del", {"rounds": own})))
    return found


def _each(value: Any, every: Names) -> Any:
    """Return a value whose lists have a tensor of all rounds once."""
    if type(value) not in {list, tuple}:
        return value
    names = [every.get(x) if isinstance(x, Name) else None for x in value]
    found = [
        {"rounds": own} if own is not None and names.count(own) > 1 else _each(x, every)
        for x, own in zip(value, names, strict=True)
    ]
    return type(value)(
        x for n, x in enumerate(found) if not isinstance(x, dict) or x not in found[:n]
    )


def _made(rows: Sequence[Heard]) -> list[Name]:
    """Return the tensors that instructions make, in order."""
    places = {"op": 2, "alias": 1, "detach": 1}
    made = (x[1].names if x[0] == "call" else x[places.get(x[0], len(x)) :][:1] for _, x in rows)
    return _named([*made])


def _named(value: Any) -> list[Name]:
    found = list[Name]()
    _changed(value, found.append)
    return found


def _renamed(row: Heard, names: Names) -> Heard:
    return row[0], _changed(row[1], lambda name: names.get(name, name))


def _changed(value: Any, change: Callable[[Name], Any]) -> Any:
    """Return a value with other tensors in it."""
    if isinstance(value, Name):
        return change(value)
    if isinstance(value, Effects):
        groups, names = _changed([value.groups, value.names], change)
        return replace(value, groups=groups, names=names)
    if isinstance(value, dict):
        return {key: _changed(x, change) for key, x in value.items()}
    if type(value) in {list, tuple, Thing}:
        own = [_changed(x, change) for x in value]
        return Thing(*own) if type(value) is Thing else type(value)(own)
    return value
