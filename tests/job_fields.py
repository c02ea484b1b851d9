"""The fields of a job as types for editors: `python tests/job_fields.py` writes the modules anew.

job_fields.py and sweep_fields.py in vrambudget/config/ are made from the fields of `Job`;
tests/test_typing.py holds them to it.
"""

import subprocess
import sys
import textwrap
from pathlib import Path

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
''',
    "sweep_fields": '''\
"""The fields of a job as types, each with one value or with many: what `sweep` takes.

Made by tests/job_fields.py from the fields of `Job`; `JobFields` says what each is.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypedDict
''',
}


def type_of(annotation):
    """Return what may be handed in for a field, as Python has it."""
    kinds = list(kinds_of(annotation))
    words = [
        f"Literal[{', '.join(repr(choice).replace(chr(39), chr(34)) for choice in kind)}]"
        if isinstance(kind, tuple)
        else {type(None): "None"}.get(kind, getattr(kind, "__name__", str(kind)))
        for kind in kinds
    ]
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
        one = kind.removesuffix(" | None")
        sweep += [f"    {name}: {one} | Iterable[{kind}]" + (" | None" if one != kind else "")]
    return {"job_fields": "\n".join(job) + "\n", "sweep_fields": "\n".join(sweep) + "\n"}


if __name__ == "__main__":
    for each, text in modules().items():
        (FOLDER / f"{each}.py").write_text(text, encoding="utf-8")
    files = [str(FOLDER / f"{each}.py") for each in HEADS]
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", *files], check=True)
