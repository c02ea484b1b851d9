"""`vrambudget completion bash`: a script with which TAB completes; also for zsh and fish.

    eval "$(vrambudget completion bash)"              in ~/.bashrc
    eval "$(vrambudget completion zsh)"               in ~/.zshrc
    vrambudget completion fish | source               in ~/.config/fish/config.fish

The script asks `vrambudget completion --words ...` for what may follow: commands, models, options
of the command, their choices, GPUs. Where nothing of it fits, the shell completes files.
"""

import argparse
from collections.abc import Iterator, Sequence

from vrambudget.cli import DONE
from vrambudget.cli.parser import COMMANDS, DEFAULT, Parser, parser_of
from vrambudget.cli.streams import put
from vrambudget.errors import VramBudgetError
from vrambudget.files import text_beside

SHELLS = {shell: text_beside(__file__, f"completion.{shell}") for shell in ("bash", "zsh", "fish")}
_GPU = "--gpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("shell", nargs="?", choices=SHELLS)
    parser.add_argument("--words", nargs=argparse.REMAINDER, help="print what may stand last here")


def run(args: argparse.Namespace) -> int:
    """Print a shell's script, or what may stand in the place of the last word."""
    if args.words is not None:
        put("".join(f"{word}\n" for word in candidates(args.words)))
        return DONE
    if args.shell is None:
        raise VramBudgetError("name a shell", hint=f"one of {', '.join(SHELLS)}")
    put(SHELLS[args.shell])
    return DONE


def candidates(words: Sequence[str]) -> list[str]:
    """Return what may stand in the place of the last word, after the others.

    The value of `--precision=bf16` stands there alone in bash, for which `=` is a word, too.
    """
    *before, last = words or [""]
    before = [word for word in before if word != "="]
    last = "" if last == "=" else last
    option, equals, value = last.partition("=")
    if not (equals and option.startswith("--")):
        return [word for word in _possible(before, last) if _begins(word, last)]
    found = _possible([*before, option], value)
    return [f"{option}={word}" for word in found if _begins(word, value)]


def _begins(word: str, typed: str) -> bool:
    return word.lower().startswith(typed.lower())


def _possible(before: Sequence[str], last: str) -> Iterator[str]:
    name = before[0] if before and before[0] in COMMANDS else DEFAULT
    if not before and not last.startswith("-"):
        yield from COMMANDS
    parser = parser_of(COMMANDS[name][0], name)
    action = parser.option(before[-1]) if before else None
    if before and before[-1] == _GPU:
        yield from _gpus()
    elif action is not None and action.nargs != 0:
        yield from map(str, action.choices or ())
    elif last.startswith("-"):
        yield from (option for option in parser.option_strings if option.startswith("--"))
    else:
        yield from _positional(parser, before[1 if name in before[:1] else 0 :])


def _positional(parser: Parser, given: Sequence[str]) -> Iterator[str]:
    """Yield a model's names where the command takes one and has none yet, or its choices."""
    places = parser.positionals
    if places and not any(not word.startswith("-") for word in given[:1]):
        if places[0].dest == "model":
            from vrambudget.config.cards import card_names  # noqa: PLC0415 - rarely needed

            yield from card_names()
        yield from map(str, places[0].choices or ())


def _gpus() -> Iterator[str]:
    from vrambudget.config.gpus import all_gpus  # noqa: PLC0415 - rarely needed

    yield "auto"
    yield from (gpu.key for gpu in all_gpus())
