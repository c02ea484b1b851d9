"""The instructions of a video's pieces, as often as it has pieces at the sizes of a job.

repeat [count, carry] ... next      a piece; `round` counts them from 1 on in its sizes
{"rounds": name}                    behind it: a tensor of each piece
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from vrambudget.errors import TooLargeError
from vrambudget.program.form import Row
from vrambudget.program.rows import makes, renamed
from vrambudget.program.unfold import MOST_ROWS
from vrambudget.program.values import Values


def with_rounds(code: Iterable[Row], values: Values) -> Iterator[Row]:
    """Yield instructions, those of a piece for each piece."""
    rows = [*code]
    begin = next((i for i, row in enumerate(rows) if row[0] == "repeat"), None)
    if begin is None:
        yield from rows
        return
    end = next(i for i in range(begin, len(rows)) if rows[i][0] == "next")
    count, carry = rows[begin][1]
    rounds, body = values.of(count), rows[begin + 1 : end]
    if len(body) * rounds > MOST_ROWS:
        raise TooLargeError(f"its frames make more than {MOST_ROWS:,} instructions")
    made = [name for row in body for name in makes(*row)]
    each = {name: [f"{name}.{n}" for n in range(rounds)] for name in made}
    yield from rows[:begin]
    for n in range(rounds):
        now = {name: each[name][n] for name in made}
        if n:
            now |= {before: each[after][n - 1] for before, after in carry}
        yield "round", n + 1
        for word, value in body:
            yield word, value if word == "at" else renamed(value, now, str)
    last = {name: each[name][-1] for name in made}
    for word, value in rows[end + 1 :]:
        own = _all_rounds([value], each)
        if word == "del":
            yield from ((word, last.get(name, name)) for name in own)
        else:
            yield word, value if word == "at" else renamed(own[0], last, str)


def _all_rounds(values: list[Any], each: Mapping[str, list[str]]) -> list[Any]:
    """Return values with the tensors of all rounds in the place of the one that stands for them."""
    found = list[Any]()
    for value in values:
        if isinstance(value, dict) and "rounds" in value:
            found += each[value["rounds"]]
        else:
            found.append(_all_rounds(value, each) if isinstance(value, list) else value)
    return found
