"""One rehearsed start of a server: what is run, what its log says, and how it ended."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.options import RehearsalOptions
from vrambudget.rehearse.process import ProcessPlan
from vrambudget.rehearse.record import Rehearsal
from vrambudget.rehearse.servers.command import ServerCommand, prepared
from vrambudget.rehearse.servers.log import ServerLog
from vrambudget.rehearse.servers.start import ServerStart, start_of, whole_records

_FAILED, _NOT_READY = 1, 2


def check_options(options: RehearsalOptions) -> None:
    """Raise VramBudgetError for what is of a script alone."""
    if options.ranks is not None or options.steps is not None:
        raise VramBudgetError(
            "a server starts its own ranks and has no steps",
            where="--ranks" if options.ranks is not None else "--steps",
            hint="--tensor-parallel-size is the server's own option",
        )


class ServerRun:
    """A server in `folder`, which is the rehearsal's. Raises VramBudgetError."""

    def __init__(self, server: ServerCommand, folder: Path, gpu: Gpu, torch: str) -> None:
        self.server, self.folder = server, folder
        self.prepared = prepared(server, folder, gpu, torch)
        self.log = ServerLog(server.engines())

    def planned(self, plan: ProcessPlan) -> ProcessPlan:
        """Return the plan of a server's processes."""
        return replace(
            plan,
            server=self.server.engine,
            devices=self.prepared.devices,
            variables=self.prepared.variables,
        )

    def records(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the processes' records, whole ones first."""
        return whole_records(records, self.folder)

    def start(self) -> ServerStart:
        """Return what is known once it has ended."""
        return start_of(self.server, self.prepared, self.log, self.folder)


def of_server(result: Rehearsal, start: ServerStart, cut: str | None) -> Rehearsal:
    """Return the rehearsal of a server: ready is a good end, and all else is the engine's own."""
    result = replace(result, server=start)
    if start.ready:
        return replace(result, ended="ready", exit_code=0, error=None)
    if cut == "timeout":
        return replace(result, ended="timeout", exit_code=_NOT_READY)
    if cut == "interrupt":
        return replace(result, ended="interrupt")
    memory = any("out of memory" in word.lower() for word in (start.error or "",))
    return replace(
        result,
        ended="out of memory" if memory else "failed",
        exit_code=result.exit_code or _FAILED,
        error=start.error,
    )
