"""The one kind of error that users see: what came, what was expected, where, and what to type.

Every mistake in the input is a `VramBudgetError`; the command line prints it as

    error: num_key_value_heads is 6, which does not divide num_attention_heads = 32
      in   my-llama/config.json
      tip: grouped-query attention needs a divisor of 32, for example 8

and exits with 2. Any other exception that escapes is a bug.
"""

import builtins
import re
from collections.abc import Callable, Iterable

from vrambudget.escaping import LINES, escaped

_IN_A_SHELL = re.compile(r"vrambudget rehearse (--gpu GPU(?: --ranks N)?) -- python train\.py")
"""What a notebook has no train.py for: its cells are rehearsed (`vrambudget.cli.magic`)."""


class VramBudgetError(ValueError):
    """A mistake that the user can fix; `where` names a file or option, `hint` what to do next."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        if hint and hasattr(builtins, "__IPYTHON__"):
            hint = _IN_A_SHELL.sub(r"%%rehearse \1", hint)
        self.message = message
        self.where = where
        self.hint = hint
        if where:
            self.add_note(f"in {escaped(where)}")
        if hint:  # a traceback ends with it
            self.add_note(f"tip: {escaped(hint)}")

    def render(self) -> str:
        """Return the lines that the command line prints on stderr."""
        lines = [f"error: {escaped(self.message, keep=LINES)}"]
        if self.where:
            lines.append(f"  in   {escaped(self.where)}")
        if self.hint:
            lines.append(f"  tip: {escaped(self.hint)}")
        return "\n".join(lines)


class TooLargeError(VramBudgetError):
    """A job beyond every GPU, or too long to follow: a slip in its sizes."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        usual = "look for a slip in batch, block and the model's sizes"
        super().__init__(message, hint=hint or usual)


class DoesNotFit(VramBudgetError):  # noqa: N818 - a verdict, in the user's words
    """A job does not fit on its GPU; `budget` says by how much."""

    def __init__(self, message: str, *, budget: object, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.budget = budget


class NotModelledError(VramBudgetError):
    """Something that has no rules here: an estimate would be a guess."""


def check_name(name: str, where: str) -> None:
    """Raise VramBudgetError for a name with a character that nobody sees (NUL, a bidi mark)."""
    if not name.isprintable():
        raise VramBudgetError(
            f"{name!a} has a character that cannot be printed, as no name has", where=where
        )


def did_you_mean(
    word: str, known: Iterable[str], distance: Callable[[str], float] = lambda _: 0
) -> str | None:
    """Return "did you mean 'gpt2'?" with the nearest known words, or None if none is near.

    The closest stands first: by `distance`, then what begins with the word, then by its letters.
    """
    from difflib import SequenceMatcher, get_close_matches  # noqa: PLC0415 - mistakes alone

    def closest(name: str) -> tuple[float, bool, float, str]:
        likeness = SequenceMatcher(None, name, word).ratio()
        return distance(name), not name.startswith(word), -likeness, name

    near = sorted(get_close_matches(word, {*known}, n=100, cutoff=0.6), key=closest)[:3]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else None
