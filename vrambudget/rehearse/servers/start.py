"""What a server's start came to: its own figures, and what to change where it did not start."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vrambudget.files import RESULT_BYTES, read_file
from vrambudget.rehearse.record import Moment
from vrambudget.rehearse.servers.command import Prepared, ServerCommand
from vrambudget.rehearse.servers.log import ServerLog
from vrambudget.rehearse.timeline import read_timeline

_LONGEST = re.compile(r"maximum model length is ([\d,]+)")
_FEWER = re.compile(r"lower max_num_seqs to at most ([\d,]+)")


@dataclass(frozen=True, slots=True)
class ServerStart:
    """A server's own figures, of the rank that has least left; None: it did not come to that."""

    engine: str
    version: str | None
    ready: bool
    gpus: int
    weights_bytes: int | None = None
    activations_bytes: int | None = None  # the profiled step's peak, beside the weights
    outside_bytes: int | None = None  # beside PyTorch's allocator, in that step
    cache_bytes: int | None = None
    tokens: int | None = None
    max_model_len: int | None = None
    concurrency: float | None = None  # requests of max_model_len tokens at once
    graphs_bytes: int | None = None
    free_bytes: int | None = None  # left on the GPU once the server is warm
    peak: Moment | None = None  # what is alive at the profiled step's peak
    lines: tuple[str, ...] = ()  # the engine's own, that say something of memory
    error: str | None = None
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def start_of(
    server: ServerCommand, prepared: Prepared, log: ServerLog, folder: Path
) -> ServerStart:
    """Return what is known of a start, from the server's log and its processes' notes."""
    workers = [_read(path) for path in sorted(folder.glob("worker-*.json"))]
    said: dict[str, Any] = {**_of(workers), **log.values}
    known = {name: said[name] for name in said if name in ServerStart.__dataclass_fields__}
    error = None if log.ready else log.error
    start = ServerStart(
        engine=server.engine,
        version=log.version,
        ready=log.ready,
        gpus=prepared.devices,
        peak=_peak(folder),
        lines=tuple(log.lines),
        error=error,
        notes=(
            *prepared.notes,
            *_notes(
                prepared, compiles=server.engine == "vllm" and not server.has("--enforce-eager")
            ),
        ),
        **known,
    )
    return start if error is None else replace(start, changes=tuple(_changes(start, server)))


def _of(workers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return each figure of the rank for which it is worst; what is printed goes before it."""
    most = ("weights_bytes", "activations_bytes", "outside_bytes")
    found = {name: max((w[name] for w in workers if name in w), default=None) for name in most}
    least = ("cache_bytes", "free_bytes")
    found |= {name: min((w[name] for w in workers if name in w), default=None) for name in least}
    return {name: value for name, value in found.items() if value is not None}


def _read(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(read_file(path, "record", RESULT_BYTES))
    return values


def whole_records(records: list[dict[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return the records, after those of profiled steps where their process was killed since."""
    if records and records[0].get("versions"):
        return records
    return [_read(path) for path in sorted(folder.glob("profile-*.json"))] + records


def _peak(folder: Path) -> Moment | None:
    """Return the highest of the ranks' peaks in the profiled step."""
    records = [_read(path) for path in folder.glob("profile-*.json")]
    moments = [read_timeline(record).peak for record in records if record.get("history")]
    found = [moment for moment in moments if moment is not None]
    return max(found, key=lambda moment: moment.requested_bytes, default=None)


def _notes(prepared: Prepared, *, compiles: bool) -> Iterator[str]:
    yield (
        "kernels that libraries load, NCCL's buffers and what the driver keeps for CUDA graphs are"
        " measured constants (docs/inference.md)"
    )
    if prepared.devices > 1:
        yield f"all {prepared.devices} ranks ran, each on a GPU of its own; nothing was sent"
    if compiles:
        yield (
            "torch.compile's cache was empty, as at a first start: a second one may hold up to"
            " 0.5 % more tokens"
        )


def _changes(start: ServerStart, server: ServerCommand) -> Iterator[str]:
    """Yield options that would let it start, by what it lacked."""
    error = start.error or ""
    if found := _LONGEST.search(error):
        yield f"--max-model-len {found[1].replace(',', '')}: the longest that this cache holds"
    if found := _FEWER.search(error):
        yield f"--max-num-seqs {found[1].replace(',', '')}: a state for each request"
        return
    if "ninja exited" in error:
        yield "--disable-cuda-graph, or a CUDA toolkit: it compiles kernels of its own for graphs"
        return
    is_cache = "cache" in error.lower() and ("memory" in error.lower() or "block" in error.lower())
    is_memory = "out of memory" in error.lower() or "OutOfMemory" in error
    if not (is_cache or is_memory):
        return
    if is_cache:
        yield "--gpu-memory-utilization 0.95: more of the GPU (default 0.9)"
    if not server.has("--quantization", "-q"):
        yield "--quantization fp8, or a checkpoint in AWQ or GPTQ: smaller weights"
    if is_cache and not server.has("--kv-cache-dtype"):
        yield "--kv-cache-dtype fp8: half the bytes of a token"
    if is_cache and not server.has("--max-num-batched-tokens"):
        yield "--max-num-batched-tokens 2048: a smaller profiled step"
    yield f"--tensor-parallel-size {2 * start.gpus}: layers shared by twice as many GPUs"
