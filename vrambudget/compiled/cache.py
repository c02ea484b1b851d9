"""What was compiled once, kept in the user's cache: the same question again takes milliseconds.

A file is named by a digest of all that decides: the model's keys, the job, the platform, the
installed versions of torch and transformers, and this package's own code. It holds a tape and what
the compiler reported, as JSON. A file that cannot be read, or is somebody else's, is as none; a
folder that cannot be written to keeps nothing.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import Any

from vrambudget import dtypes
from vrambudget.compiled.findings import findings
from vrambudget.config.job import Job
from vrambudget.config.versions import installed_version
from vrambudget.engine.context import Platform
from vrambudget.errors import VramBudgetError
from vrambudget.files import cache_folder, read_kept, write_kept
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Mark

_PACKAGE = Path(__file__).parents[1]
_MOST_BYTES = 256 * 2**20
_DTYPES = {d.name: d for d in vars(dtypes).values() if isinstance(d, dtypes.DType)}


def place_of(
    keys: Mapping[str, Any], job: Job, platform: Platform, *, pads: bool | None = None
) -> Path:
    """Return the file that this job's recording is kept in. Raises VramBudgetError."""
    decides = {
        "keys": dict(keys),
        "job": job.model_dump(mode="json"),
        "platform": asdict(platform),
        "pads": pads,
        "torch": installed_version("torch"),
        "transformers": installed_version("transformers"),
        "peft": installed_version("peft"),
        "code": _own_code(),
    }
    text = json.dumps(decides, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return cache_folder() / "torch_compile" / f"{digest}.json"


@cache
def _own_code() -> str:
    digest = hashlib.sha256()
    for file in sorted(_PACKAGE.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def kept(place: Path) -> tuple[Tape, dict[str, int]] | None:
    """Return the tape and the numbers that a file holds, and let `findings` report what it says."""
    text = read_kept(place, _MOST_BYTES)
    if text is None:
        return None
    with suppress(VramBudgetError, ValueError, LookupError, TypeError, RecursionError):
        return read(text)
    return None


def keep(place: Path, found: bytes) -> None:
    """Keep what `written` returned."""
    write_kept(place, found)


def written(tape: Tape, numbers: Mapping[str, int]) -> bytes:
    """Return a tape, its numbers and `findings` as JSON."""
    found = {"tape": _plain(tape), "numbers": dict(numbers), "findings": findings.as_dict()}
    return json.dumps(found).encode()


def read(text: bytes) -> tuple[Tape, dict[str, int]]:
    """Return the tape and the numbers that were written, and put back what `findings` had."""
    found = json.loads(text)
    tape = _tape(found["tape"])
    findings.take(found["findings"])
    return tape, {name: int(value) for name, value in found["numbers"].items()}


def _plain(tape: Tape) -> dict[str, Any]:
    own = {f.name: getattr(tape, f.name) for f in fields(tape) if f.name != "last_step"}
    contents = [c and (c[0], c[1].name) for c in tape.contents]
    return {**own, "contents": contents, "marks": [m._replace(steps=None) for m in tape.marks]}


def _tape(found: Mapping[str, Any]) -> Tape:
    values = dict(found)
    values["purposes"] = [Purpose(p) for p in found["purposes"]]
    values["contents"] = [c and (tuple(c[0]), _DTYPES[c[1]]) for c in found["contents"]]
    values["replayed"] = [tuple(stretch) for stretch in found["replayed"]]
    values["marks"] = [Mark(*mark) for mark in found["marks"]]
    return Tape(**values)
