"""Parse the command line, importing only the module of the command that is named."""

import argparse
import textwrap
from collections.abc import Collection, Sequence
from importlib import import_module
from itertools import takewhile
from typing import Any, NoReturn

from vrambudget import __version__
from vrambudget.cli.server_commands import in_our_words
from vrambudget.cli.streams import put, say
from vrambudget.cli.tips import tip_of
from vrambudget.errors import VramBudgetError

DEFAULT = "estimate"
_WIDTH, _INDENT = 100, 24  # columns of the short help
_SHOWN = 400  # characters of a mistake: an argument may have thousands
COMMANDS = {
    "estimate": ("vrambudget.cli.estimate", "show what a job takes, and whether it fits on a GPU"),
    "validate": ("vrambudget.cli.validate", "compare predictions with measured records"),
    "fit": ("vrambudget.cli.fit", "find the largest batch or the longest block that fits"),
    "plan": ("vrambudget.cli.plan", "find how to train a model on your GPU, or on how many"),
    "check": ("vrambudget.cli.check", "say whether the jobs of files still fit; for CI"),
    "run": ("vrambudget.cli.run", "find the file and the context that run here, with llama.cpp"),
    "serve": ("vrambudget.cli.serve", "show how many requests an inference server holds"),
    "sweep": ("vrambudget.cli.sweep", "estimate many settings on many GPUs"),
    "explain": ("vrambudget.cli.explain", "explain an out-of-memory message"),
    "measure": ("vrambudget.cli.measure", "run a job on this machine's GPU and record its memory"),
    "compare": ("vrambudget.cli.compare", "compare an estimate with a rehearsal or a measurement"),
    "record": ("vrambudget.cli.record", "record a model as a program that needs no torch"),
    "rehearse": ("vrambudget.cli.rehearse", "run any PyTorch script on a virtual GPU"),
    "ghost": ("vrambudget.cli.ghost", "write a model's folder at full size that takes no disk"),
    "models": ("vrambudget.cli.models", "list the models that are known by name"),
    "gpus": ("vrambudget.cli.gpus", "list the GPUs that are known by name"),
    "page": ("vrambudget.cli.page", "open a live planner in the browser"),
    "doctor": ("vrambudget.cli.doctor", "show which extras are here, and what can be rehearsed"),
    "completion": ("vrambudget.cli.completion", "print a script that completes words on TAB"),
}
"""name: (module, what it does). A new command is its module and its line here."""

OF_PIPELINES = {
    DEFAULT: ("vrambudget.cli.picture", "picture"),
    "plan": ("vrambudget.cli.picture_plan", "plan"),
}
"""What the same words do where they name a pipeline of diffusers."""


class _Help(argparse.Action):
    """`--help` prints what most people need, `--help all` every option."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> NoReturn:
        del namespace, option_string
        assert isinstance(parser, Parser)  # noqa: S101 - it is added by one
        put(parser.help_text(everything=values == "all"))
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that raises VramBudgetError, with the nearest option as a hint."""

    given: Sequence[str] = ()  # the words, before those of other programs become our own

    def __init__(self, *args: Any, add_help: bool = True, **how: Any) -> None:
        """Add --help, which has a short and a long form."""
        super().__init__(*args, **{**how, "add_help": False})
        if add_help:
            self.add_argument(
                "-h",
                "--help",
                nargs="?",
                default=argparse.SUPPRESS,
                action=_Help,
                metavar="all",
                help="show this help; `--help all` has every option",
            )

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """Return what a word may mean: no part of a short option ("-t" of "-ts") stands for it."""
        found = super()._get_option_tuples(option_string)
        return [each for each in found if option_string.startswith(str(each[1]))]

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print help or a version: argparse's own drops a disk that is full, since Python 3.14."""
        del file
        put(message)

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

    def help_text(self, *, everything: bool) -> str:
        """Return what the command does, its options, all or those of most people, and examples."""
        from vrambudget.cli.examples import COMMON, EXAMPLES  # noqa: PLC0415 - help alone has them

        name = self.prog.removeprefix("vrambudget ")
        examples, common = EXAMPLES.get(name, ()), COMMON.get(name)
        lines = "".join(f"  {example}\n" for example in examples)
        ends = f"\nexamples:\n{lines}" if lines else ""
        if everything or common is None:
            return super().format_help() + ends
        shown = [a for a in self._actions if a.option_strings and a.dest in common]
        further = sum(bool(a.option_strings) for a in self._actions) - len(shown)
        more = f"`vrambudget {name} --help all` has {further} further options."
        options = "\n".join(line for action in shown for line in _lines_of(action))
        takes = " ".join(str(a.metavar or a.dest.upper()) for a in self.positionals)
        usage = f"usage: {self.usage or f'{self.prog} {takes} [options]'}"
        does = (self.description or "").strip()
        return f"{usage}\n\n{does}\n\noptions:\n{options}\n\n{more}\n{ends}"

    def format_help(self) -> str:
        """Return the help with every option."""
        return self.help_text(everything=True)

    def error(self, message: str) -> NoReturn:
        """Raise VramBudgetError."""
        prog = self.prog.removesuffix(f" {DEFAULT}")
        command = self.prog.removeprefix("vrambudget ")
        near = tip_of(
            message,
            command=command,
            given=self.given,
            options=self.option_strings,
            commands=COMMANDS,
        )
        message = message if len(message) <= _SHOWN else f"{message[:_SHOWN]}..."
        raise VramBudgetError(message, hint=near or f"`{prog} --help` lists the options")


def _lines_of(action: argparse.Action) -> list[str]:
    """Return an option and what it does, without the further spellings and clauses."""
    spelling = next(word for word in action.option_strings if word.startswith("--"))
    takes = action.metavar if isinstance(action.metavar, str) else ""
    if action.choices is not None:
        takes = ",".join(map(str, action.choices))
    head = f"  {spelling} {takes}".rstrip() if action.nargs != 0 else f"  {spelling}"
    does = textwrap.wrap((action.help or "").replace("%%", "%"), _WIDTH - _INDENT)
    lines = [f"{'':{_INDENT}}{line}" for line in does]
    if len(head) + 2 > _INDENT:
        return [*textwrap.wrap(head, _WIDTH, subsequent_indent="      "), *lines]
    return [head.ljust(_INDENT) + (does[0] if does else ""), *lines[1:]]


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return the arguments of the command that `argv` names; without a name it is `estimate`."""
    if not argv:
        raise VramBudgetError(
            "name a model, for example: vrambudget gpt2 --gpu 12GB",
            hint="`vrambudget --help` lists the commands, `vrambudget models` the models",
        )
    if argv[0] in {"help", "version"}:  # the words of other tools
        argv = [*argv[1:2], f"--{argv[0]}"]
    if argv[0] in ("-h", "--help", "--version"):
        overview().parse_args(argv)
    if argv[0] in {"preflight", "trace", "advise", "max_batch"}:
        raise VramBudgetError(
            f"{argv[0]} is a function in Python: vrambudget.{argv[0]}(...)",
            hint="of a model that has a name: vrambudget MODEL --gpu GPU",
        )
    argv = in_our_words(argv)
    if any(word.startswith("model=") for word in takewhile("--".__ne__, argv)):
        from vrambudget.config.foreign.ultralytics import model_first  # noqa: PLC0415 - YOLO alone

        argv = model_first(argv)
    elif _may_be_of_a_trainer(argv):
        from vrambudget.pictures import trainers  # noqa: PLC0415 - pipelines alone

        if argv[0] == "plan":
            argv = ["plan", *trainers.in_options(argv[1:], {"--resolution", "--frames"})]
        else:
            argv = trainers.in_options(argv[argv[0] == DEFAULT :])
    from vrambudget.cli.job_options import with_files  # noqa: PLC0415 - the overview needs no job

    home, name, words = _command_of(argv)
    command = parser_of(home, name)
    command.given = words
    args = command.parse_args(_in_own_words(words, command.option_strings))
    return with_files(args) if "config" in args else args


def parser_of(home: str, name: str) -> Parser:
    """Return the parser of the command of this module; it may have its own class, and its usage."""
    command = import_module(home)
    parser: Parser = getattr(command, "PARSER", Parser)(
        prog=f"vrambudget {name}",
        usage=getattr(command, "USAGE", None),
        description=command.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=command.run)
    return parser


def _may_be_of_a_trainer(argv: Sequence[str]) -> bool:
    """Return whether a script or a file is named, to estimate what it trains, or plan it."""
    suffixes = (".py", ".toml", ".yaml", ".yml", ".json")
    return (argv[0] not in COMMANDS or argv[0] in OF_PIPELINES) and any(
        word.endswith(suffixes) for word in argv
    )


def _command_of(argv: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """Return the module of the command that `argv` means, its name, and its words."""
    name, words = (argv[0], argv[1:]) if argv[0] in COMMANDS else (DEFAULT, argv)
    if name in OF_PIPELINES and words:
        from vrambudget.pictures.cards import picture_name  # noqa: PLC0415 - commands need none

        if any(picture_name(word) for word in words[:1]):
            return *OF_PIPELINES[name], words
    return COMMANDS[name][0], name, words


def _in_own_words(words: Sequence[str], own: Collection[str]) -> Sequence[str]:
    """Return the words with other tools' options translated; their tables are loaded for one."""
    options = (word for word in words if word.startswith("-") or "=" in word)
    if all(word.partition("=")[0] in own for word in options):
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
