"""What --help shows of a command: the options that most people use, and examples."""

from vrambudget.files import toml_beside

_TABLE = toml_beside(__file__, "examples.toml")
_SHORT = {"of_a_job": _TABLE.pop("of_a_job")}

EXAMPLES: dict[str, list[str]] = {name: shown["examples"] for name, shown in _TABLE.items()}
COMMON: dict[str, list[str]] = {
    name: [option for word in shown["options"] for option in _SHORT.get(word, [word])]
    for name, shown in _TABLE.items()
    if "options" in shown
}
"""By command, the options that its --help shows; `--help all` shows the others, too."""
