"""The same job elsewhere: as a command, and as a call in Python."""

import json
import shlex
from collections.abc import Mapping
from typing import Any

from vrambudget.config.options import option_words

Model = str | Mapping[str, Any]
_CONFIG = "config.json"  # where a pasted configuration should be saved


def command_line(model: Model, gpu: str, fields: Mapping[str, Any]) -> str:
    """Return the command that gives the same answer."""
    words = ["vrambudget", model if isinstance(model, str) else _CONFIG, *option_words(fields)]
    return shlex.join([*words, *(["--gpu", gpu] if gpu else [])])


def python_call(model: Model, gpu: str, fields: Mapping[str, Any]) -> str:
    """Return the call that gives the same answer."""
    given = {**fields, **({"gpu": gpu} if gpu else {})}
    name = json.dumps(model) if isinstance(model, str) else f'Path("{_CONFIG}")'
    arguments = "".join(f", {key}={value!r}" for key, value in given.items())
    return f"import vrambudget\n\nvrambudget.estimate({name}{arguments})"
