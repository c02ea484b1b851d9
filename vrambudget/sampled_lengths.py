"""Lengths that change from batch to batch: one seeded draw, for estimates and for what runs.

Nothing is imported but Python's own: jobs are measured in environments that have little else.
"""

from random import Random


def sampled_lengths(shortest: int, longest: int, count: int, draw: int) -> list[int]:
    """Return `count` lengths, drawn evenly; one of the second half is the longest.

    By then an optimizer has its states. The same `draw` gives the same lengths.
    """
    chance = Random(draw)  # noqa: S311 - no secret
    lengths = [shortest + int(chance.random() * (longest + 1 - shortest)) for _ in range(count)]
    lengths[-1 - int(chance.random() * (count // 2))] = longest
    return lengths
