"""Messages of others than PyTorch's allocator: servers, other libraries, other backends.

Each is known by its words. What its numbers mean is said in its own options' words.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from vrambudget.oom.known import KnownMessage, joined, known_messages
from vrambudget.oom.log_lines import excerpts
from vrambudget.report.tabular import wrapped

_MOST = 400  # characters of a message that are shown


@dataclass(frozen=True, slots=True)
class ForeignExplanation:
    """What a message means, and what to do; `message` is the text that was found."""

    source: str
    message: str
    what_happened: str
    next_steps: tuple[str, ...]


def explain_foreign(text: str, *, has_sizes: bool = False) -> ForeignExplanation | None:
    """Return what the first known message in a log means, None where there is none.

    Where PyTorch's allocator printed sizes, only the messages that say more count.
    """
    text = "\n".join(part for _, part in excerpts(text))
    all_known = [each for each in known_messages() if each.beside_sizes or not has_sizes]
    # A terminal breaks words, too.
    found = _found(all_known, text) or _found(all_known, text.replace("\n", ""))
    if not found:
        return None
    _, known, hit = min(found, key=lambda each: each[0])
    what, steps = known.explain(hit)
    return ForeignExplanation(known.source, joined(hit[0])[:_MOST], what, steps)


def _found(
    messages: Iterable[KnownMessage], text: str
) -> list[tuple[int, KnownMessage, re.Match[str]]]:
    return [(hit.start(), known, hit) for known in messages if (hit := known.pattern.search(text))]


def render_foreign(explanation: ForeignExplanation) -> str:
    """Return the explanation as text of at most 80 columns."""
    lines = wrapped(f"{explanation.source}: {explanation.message}")
    lines += ["", "What happened", *wrapped(explanation.what_happened), "", "Next steps"]
    for step in explanation.next_steps:
        lines += wrapped(step, "- ")
    return "\n".join(lines)
