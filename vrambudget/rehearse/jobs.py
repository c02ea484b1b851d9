"""Rehearse a job of the product's own vocabulary: as a script's report, or as a record.

The job runs through `measure.runner`, in the Python that VRAMBUDGET_PYTHON names, or in this one:
the model is built from its configuration with random weights, and no weights are downloaded. What
is said of scripts (`run.rehearse`) holds for jobs too.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.errors import VramBudgetError
from vrambudget.files import RESULT_BYTES, read_file
from vrambudget.measure.record import runnable
from vrambudget.rehearse.options import RehearsalOptions
from vrambudget.rehearse.record import Rehearsal
from vrambudget.rehearse.run import rehearse_command
from vrambudget.rehearse.torch_build import own_python
from vrambudget.rehearse.workplace import workplace

_PACKAGE = Path(__file__).parents[1]


def rehearse_report(
    job: Mapping[str, Any], *, gpu: str | Gpu, options: RehearsalOptions | None = None
) -> Rehearsal:
    """Run a record's job on a virtual `gpu` and return what was seen, as for a script.

    Out of memory is an ending. Raises VramBudgetError if nothing can be run.
    """
    device = gpu if isinstance(gpu, Gpu) else find_gpu(gpu)
    with workplace() as (folder, _):
        run = JobFolder(folder, job)
        seen = rehearse_command(
            run.command(own_python()), device, options or RehearsalOptions(), run.package
        )
        measured = run.measured() if seen.exit_code == 0 else {}
    seen = replace(seen, command=("vrambudget", "rehearse", str(job.get("id", "job"))))
    return _ran_out(seen, str(measured["oom"])) if "oom" in measured else seen


def _ran_out(seen: Rehearsal, message: str) -> Rehearsal:
    """Return the rehearsal of a job whose runner caught the error."""
    *before, last = seen.out_of_memory
    events = (*before, replace(last, handled=False))
    error = f"OutOfMemoryError: {message}"
    return replace(seen, ended="out of memory", exit_code=1, error=error, out_of_memory=events)


class JobFolder:
    """A folder in which one job runs: its file, its result's, and our package to import.

    The package lies there by itself, as a link: beside it, where it is installed, are packages
    for this Python, which another Python must not import.
    """

    def __init__(self, folder: Path, job: Mapping[str, Any]) -> None:
        self.package = folder / "package"
        self.package.mkdir()
        (self.package / "vrambudget").symlink_to(_PACKAGE, target_is_directory=True)
        self.job, self.result = folder / "job.json", folder / "result.json"
        self.job.write_text(json.dumps(runnable(job)))

    def command(self, program: str) -> tuple[str, ...]:
        """Return the command that runs the job."""
        return (program, "-m", "vrambudget.measure.runner", str(self.job), str(self.result))

    def measured(self) -> dict[str, Any]:
        """Return the result. Raises VramBudgetError if the runner wrote none."""
        if not self.result.exists():
            raise VramBudgetError("the job wrote no result: it was stopped before its end")
        found: dict[str, Any] = json.loads(read_file(self.result, "result", RESULT_BYTES))
        return found
