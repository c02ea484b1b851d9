"""The fields of a job as types for editors: `python tests/job_fields.py` writes the modules anew.

job_fields.py and sweep_fields.py in vrambudget/config/ are made from the fields of `Job`;
tests/test_typing.py holds them to it.
"""

import subprocess
import sys
import textwrap
import typing
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from vrambudget.cli.job_options import kinds_of  # noqa: E402 - beside the package
from vrambudget.config.job import GROUPS, Job  # noqa: E402

FOLDER = ROOT / "vrambudget" / "config"
HEADS = {
    "job_fields": '''\
"""The fields of a job as types, so that editors complete and check them: `**fields: Unpack[...]`.

Made by tests/job_fields.py from the fields of `Job`. All are optional.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypedDict

IMPORTS
''',
    "sweep_fields": '''\
"""The fields of a job as types, each with one value or with many: what `sweep` takes.

Made by tests/job_fields.py from the fields of `Job`; `JobFields` says what each is.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias, TypedDict, TypeVar

IMPORTS

_T = TypeVar("_T")
Many: TypeAlias = _T | Iterable[_T]
''',
}


def named_choices():
    """Return the name of every choice of words that a module of fields names: module.Name."""
    modules = {sys.modules[group.__module__] for group in GROUPS}
    return {
        value: f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in sorted(modules, key=lambda module: module.__name__)
        for name, value in vars(module).items()
        if typing.get_origin(value) is Literal
    }


NAMED = named_choices()


def word_of(kind):
    """Return a type as Python has it, a choice of words by its name where it has one."""
    if isinstance(kind, tuple):
        if named := NAMED.get(Literal[kind]):
            return named
        return f"Literal[{', '.join(repr(choice).replace(chr(39), chr(34)) for choice in kind)}]"
    return {type(None): "None"}.get(kind, getattr(kind, "__name__", str(kind)))


def type_of(annotation):
    """Return what may be handed in for a field, as Python has it."""
    words = [word_of(kind) for kind in kinds_of(annotation)]
    if "tuple" in str(annotation):
        words = ["str", "Sequence[str]"]
    return " | ".join(dict.fromkeys(words))


def fields():
    for group in GROUPS:
        for name, field in group.model_fields.items():
            yield name, type_of(field.annotation), field.description
    types = {name: type_of(Job.model_fields[name].annotation) for name in Job.model_fields}
    for alias, name in Job.aliases.items():
        yield alias, types[name], f"{name}, as other tools call it"


def entry(name, kind, description):
    text = " ".join(description.split())
    lines = textwrap.wrap(f'"""{text[0].upper()}{text[1:]}."""', 96, initial_indent="    ")
    if len(lines) > 1:
        inside = textwrap.wrap(f"{text[0].upper()}{text[1:]}.", 93)
        lines = [f'    """{inside[0]}', *(f"    {line}" for line in inside[1:]), '    """']
    return [f"    {name}: {kind}", *lines]


def modules():
    """Return the modules' texts by name."""
    job = [HEADS["job_fields"], "", "class JobFields(TypedDict, total=False):"]
    job += ['    """What `estimate` and its kin take of a job."""', ""]
    for each in fields():
        job += entry(*each)
    job += ["", "", "class RunFields(JobFields, total=False):"]
    job += ['    """A job\'s fields, and files that say how a model is trained."""', ""]
    job += ["    config: str | Path | Sequence[str | Path]"]
    sweep = [HEADS["sweep_fields"], "", "class SweepFields(TypedDict, total=False):"]
    sweep += ['    """The fields of a job, each with one value or with many."""', ""]
    for name, kind, _ in fields():
        sweep += [f"    {name}: Many[{kind}]"]
    return {"job_fields": with_imports(job), "sweep_fields": with_imports(sweep)}


def with_imports(lines):
    """Return a module's text, with the imports of the choices that it names."""
    body = "\n".join(lines[1:])
    used = sorted({name.partition(".")[0] for name in NAMED.values() if name in body})
    imports = f"from vrambudget.config.fields import {', '.join(used)}"
    return lines[0].replace("IMPORTS", imports) + "\n" + body + "\n"


if __name__ == "__main__":
    for each, text in modules().items():
        (FOLDER / f"{each}.py").write_text(text, encoding="utf-8")
    files = [str(FOLDER / f"{each}.py") for each in HEADS]
    for step in (["check", "-q", "--fix"], ["format", "-q"]):
        subprocess.run([sys.executable, "-m", "ruff", *step, *files], check=True)
