"""Pictures, chosen by the suffix of the file. They need a job's tape, not only its budget.

.html      a page: verdict, breakdown, timeline, table; opens anywhere
.png .svg .pdf  the timeline, with matplotlib
.pickle    a snapshot for PyTorch's own memory viewer
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from vrambudget.budget import Budget
from vrambudget.config.gpus import Gpu
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError
from vrambudget.estimator import Traced, trace_job
from vrambudget.files import write_file
from vrambudget.scenario import resolve

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields
    from vrambudget.report.timeline import Kind

_KINDS: Mapping[str, "Kind"] = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
SUFFIXES = (".html", *_KINDS, ".pickle")


def draw(
    path: str | Path, model: Any, *, gpu: str | Gpu | None = None, **fields: "Unpack[RunFields]"
) -> Budget:
    """Estimate as `vrambudget.estimate` does, and also write the picture that `path` names.

    Raises VramBudgetError for an unknown suffix, or if the file cannot be written.
    """
    if not isinstance(path, str | Path):
        raise VramBudgetError(f"a picture's path is text, and not {show(path)}")
    path = Path(path)
    _check(path)
    traced = trace_job(resolve(model, gpu=gpu, **fields))
    save(traced, path)
    return traced.budget


def is_picture(path: Path | None) -> bool:
    """Return whether a file of this name holds a picture."""
    return path is not None and path.suffix.lower() in SUFFIXES


def save(traced: Traced, path: Path) -> None:
    """Write the picture that `path` names."""
    _check(path)
    write_file(path, _picture(traced, path.suffix.lower()), "picture")


def _check(path: Path) -> None:
    if not is_picture(path):
        raise VramBudgetError(
            f"no picture has the suffix {path.suffix!r}",
            where=str(path),
            hint=f"use {', '.join(SUFFIXES)}",
        )


def _picture(traced: Traced, suffix: str) -> bytes:
    if suffix == ".html":
        from vrambudget.report.html import page  # noqa: PLC0415 - each kind needs its own

        return page(traced).encode()
    if suffix == ".pickle":
        from vrambudget.report.snapshot import snapshot_bytes  # noqa: PLC0415

        return snapshot_bytes(traced)
    from vrambudget.report.timeline import timeline  # noqa: PLC0415

    return timeline(traced, _KINDS[suffix])
