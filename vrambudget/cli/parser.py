"""Parse the command line, importing only the module of the command that is named."""

import argparse
from collections.abc import Collection, Sequence
from importlib import import_module
from typing import NoReturn

from vrambudget import __version__
from vrambudget.cli.streams import say
from vrambudget.errors import VramBudgetError, did_you_mean

DEFAULT = "estimate"
_SHOWN = 400  # characters of a mistake: an argument may have thousands
COMMANDS = {
    "estimate": ("vrambudget.cli.estimate", "show what a job takes, and whether it fits on a GPU"),
    "validate": ("vrambudget.cli.validate", "compare predictions with measured records"),
    "fit": ("vrambudget.cli.fit", "find the largest batch or the longest block that fits"),
    "plan": ("vrambudget.cli.plan", "find the fewest GPUs for a job, and how to use them"),
    "check": ("vrambudget.cli.check", "say whether the jobs of files still fit; for CI"),
    "serve": ("vrambudget.cli.serve", "show how many requests an inference server holds"),
    "sweep": ("vrambudget.cli.sweep", "estimate many settings on many GPUs"),
    "explain": ("vrambudget.cli.explain", "explain an out-of-memory message"),
    "measure": ("vrambudget.cli.measure", "run a job on this machine's GPU and record its memory"),
    "compare": ("vrambudget.cli.compare", "compare an estimate with a rehearsal or a measurement"),
    "rehearse": ("vrambudget.cli.rehearse", "run any PyTorch script on a virtual GPU"),
    "models": ("vrambudget.cli.models", "list the models that are known by name"),
    "gpus": ("vrambudget.cli.gpus", "list the GPUs that are known by name"),
    "page": ("vrambudget.cli.page", "open a live planner in the browser"),
    "doctor": ("vrambudget.cli.doctor", "show which extras are here, and what can be rehearsed"),
    "completion": ("vrambudget.cli.completion", "print a script that completes words on TAB"),
}
"""name: (module, what it does). A new command is its module and its line here."""


class Parser(argparse.ArgumentParser):
    """A parser that raises VramBudgetError, with the nearest option as a hint."""

    @property
    def option_strings(self) -> Collection[str]:
        """Every spelling of an option."""
        return self._option_string_actions.keys()

    @property
    def positionals(self) -> Sequence[argparse.Action]:
        """The arguments that are no options, in order."""
        return self._get_positional_actions()

    def option(self, word: str) -> argparse.Action | None:
        """Return the option of this spelling, None where there is none."""
        return self._option_string_actions.get(word)

    def format_help(self) -> str:
        """Return the help, which ends with examples of the command."""
        from vrambudget.cli.examples import EXAMPLES  # noqa: PLC0415 - help alone has them

        examples = EXAMPLES.get(self.prog.removeprefix("vrambudget "), ())
        lines = "".join(f"  {example}\n" for example in examples)
        return super().format_help() + (f"\nexamples:\n{lines}" if lines else "")

    def error(self, message: str) -> NoReturn:
        """Raise VramBudgetError."""
        near = None
        if message.startswith("unrecognized arguments: "):
            word = [*message.split(), ""][2].partition("=")[0]  # which may be empty
            near = did_you_mean(word, self.option_strings)
            if not word.startswith("-") and self.prog.endswith(" sweep"):
                near = "values of one option are joined: --block 512,1024, or --batch 1:64:x2"
        prog = self.prog.removesuffix(f" {DEFAULT}")
        message = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
        raise VramBudgetError(message, hint=near or f"`{prog} --help` lists the options")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command that `argv` names; without a name it is `estimate`."""
    if not argv:
        raise VramBudgetError(
            "name a model, for example: vrambudget gpt2 --gpu 12GB",
            hint="`vrambudget --help` lists the commands, `vrambudget models` the models",
        )
    if argv[0] in ("-h", "--help", "--version"):
        overview().parse_args(argv)
    from vrambudget.cli.job_options import with_files  # noqa: PLC0415 - the overview needs no job

    name, words = (argv[0], argv[1:]) if argv[0] in COMMANDS else (DEFAULT, argv)
    program = Parser(prog="vrambudget")
    subparsers = program.add_subparsers(parser_class=Parser, metavar="COMMAND")
    import_module(COMMANDS[name][0]).add_parser(subparsers)
    command = subparsers.choices[name]
    args = command.parse_args(_in_own_words(words, command.option_strings))
    return with_files(args) if "config" in args else args


def _in_own_words(words: Sequence[str], own: Collection[str]) -> Sequence[str]:
    """Return the words with other tools' options as ours; their tables are loaded for one alone."""
    if all(word.partition("=")[0] in own for word in words if word.startswith("--")):
        return words
    from vrambudget.cli.spellings import translated  # noqa: PLC0415

    return translated(words, own, say)


def overview() -> argparse.ArgumentParser:
    """Return the parser of the program itself: its help lists the commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {does}" for name, (_, does) in COMMANDS.items()]
    parser = Parser(
        prog="vrambudget",
        usage="vrambudget MODEL [--batch N] [--block N] [--gpu GPU] ...\n"
        "       vrambudget COMMAND ...",
        description="Does this PyTorch job fit on this GPU? What takes the memory?",
        epilog="commands (each has --help):\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"vrambudget {__version__}")
    return parser
