"""What a rehearsal cannot show, said where it can be seen to matter in this one."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu

_READS_SHOWN = 3
_WITHOUT_CUDNN = {
    "convolution": "convolutions take PyTorch's own kernels, with a buffer for columns; a real GPU"
    " takes cuDNN's, with workspaces (asked without a GPU since 9.8): both come and go within the"
    " operation",
    "recurrence": "recurrent layers take PyTorch's own kernels, which keep other tensors for"
    " backward than cuDNN's do: expect another peak on a real GPU",
}

_WITHOUT_A_GPU = {"cufft": "cuFFT", "cusolver": "cuSOLVER", "cusparse": "cuSPARSE"}  # bits 0 to 2

_OTHER_ALLOCATOR = "cudaMallocAsync"
_UNKNOWN_OF_CUDNN = {
    "benchmark": "with torch.backends.cudnn.benchmark only a real GPU knows which engine is the"
    " fastest, and takes its workspace; here it is the first that cuDNN's heuristics name",
    "batch norm": "batch norm of channels-last tensors in half precision takes workspaces that"
    " cuDNN reports to real GPUs only: not included",
}


def warnings_of(
    record: Mapping[str, Any],
    records: Sequence[Mapping[str, Any]],
    gpu: Gpu,
    *,
    complete: bool,
    ranks: int | None = None,
) -> Iterator[str]:
    """Yield sentences; `record` is that of the process with the highest peak."""
    if not record:
        return
    if record.get("ended") == "killed":
        yield _of_killed(int(record["steps"]))
        return
    if not record["cuda"]:
        yield from _of_no_use(str(record.get("message")))
        return
    if sum(r.get("peaks", (0,))[-1] > 0 for r in records) > 1:
        yield "several processes used the GPU, each all of it; the highest peak is shown"
    if ranks is not None:
        yield (
            f"this is one of {ranks} ranks, each on its own GPU: NCCL's buffers are not"
            " included, which lie outside PyTorch's allocator; the others are assumed to send what"
            " this one does"
        )
    yield from _of_failure(str(record.get("message")).lower())
    if gpu.assumed:
        yield gpu.assumed
    if not complete:
        yield "the history was too long: what was alive is that of its end (use --steps)"
    if record.get("unfollowed"):
        yield (
            f"integers are read back as zero with this PyTorch ({record['unfollowed']}): masks, and"
            " shapes made from values, are not those of a real GPU"
        )
    yield from _of_calls(record)
    yield from _of_workspaces(record.get("unknown_workspaces", 0))
    yield from (_UNKNOWN_OF_CUDNN[kind] for kind in record.get("cudnn_unknown", ()))
    yield from _of_reads(record["reads"], *record.get("values", ("zeros", 0)))
    if record.get("router"):
        yield _of_routing(record["router"], record["routing"])
    yield from _of_kernels(record, gpu)


def _of_killed(steps: int) -> str:
    """Say what is known of a process that left no record."""
    known = f"the other peaks are those of step {steps}" if steps else "the rest is not known"
    return (
        "the process left no record, as one does that is killed, or becomes another program (exec):"
        f" what it reserved is its peak, {known}"
    )


def _of_no_use(message: str) -> Iterator[str]:
    """Say that the GPU was not used, where the error does not say why."""
    if _OTHER_ALLOCATOR not in message:
        yield "the script never used the GPU"


def _of_failure(message: str) -> Iterator[str]:
    """Name a library of CUDA that failed because it asks the GPU."""
    for word, library in _WITHOUT_A_GPU.items():
        if f"{word} error" in message or f"`{word}" in message:
            yield (
                f"the script calls a function of {library} that reports a size to real GPUs only:"
                " what follows that call cannot be rehearsed"
            )
    if message.startswith("nccl error"):
        yield (
            "NCCL itself was started for ranks of several processes: one of them is rehearsed, with"
            " PyTorch's fake group (--ranks 2)"
        )


def _of_workspaces(unknown_workspaces: int) -> Iterator[str]:
    """Name the libraries whose workspaces were asked for, a bit each."""
    for bit, library in enumerate(_WITHOUT_A_GPU.values()):
        if unknown_workspaces >> bit & 1:
            yield (
                f"{library} reports its workspaces to real GPUs only: not included, they come"
                " and go within the operation"
            )


def _of_calls(record: Mapping[str, Any]) -> Iterator[str]:
    """Say what a real GPU computes with cuDNN, where it was not asked."""
    calls = record.get("history", {}).get("calls", {})
    for kind, places in calls.items():
        at = _at(*places[0][:2]) if places else "the script"
        if kind == "convolution" and "cudnn" in record["versions"]:
            continue
        yield f"{at}: {_WITHOUT_CUDNN[kind]}"


def _of_routing(router: Sequence[Any], routing: str | None) -> str:
    """Say how tokens were taken to spread over experts, which a router's scores decide."""
    spread = (
        "chooses the same few for every row" if routing == "collapsed" else "spreads rows evenly"
    )
    other = "" if routing else "; with `--routing collapsed` it chooses the same few for every row"
    return f"{_at(*router[:2])} chooses by scores, which are not known: it {spread}{other}"


def _of_reads(reads: Sequence[Sequence[Any]], kind: str, seed: int) -> Iterator[str]:
    """Name the lines that read unknown values: those that made a shape, masks, then the rest."""
    are = {"zeros": "zero", "ones": "one"}.get(kind, f"random (seed {seed})")
    for file, line, _, text, *_, shape in reads:
        if shape:
            yield f"{_at(file, line)} makes a shape from values, which are {are} here: {text}"
        elif Path(file).name == "masking_utils.py":
            yield (
                f"{_at(file, line)} decides from values whether an attention mask is needed, and"
                " builds one that a real GPU may leave out: expect a little less memory there"
            )
    rest = [r for r in reads if not r[-1] and Path(r[0]).name != "masking_utils.py"]
    if rest:
        places = ", ".join(_at(r[0], r[1]) for r in rest[:_READS_SHOWN])
        more = f" and {len(rest) - _READS_SHOWN} more" if len(rest) > _READS_SHOWN else ""
        yield f"values read from the GPU are {are}: {places}{more}; what depends on them may differ"


def _of_kernels(record: Mapping[str, Any], gpu: Gpu) -> Iterator[str]:
    major, minor = gpu.compute_capability
    kernels = [int(name.removeprefix("sm_")) for name in record["architectures"]]
    if kernels and min(kernels) > 10 * major + minor:
        yield (
            f"this PyTorch has no kernels for {gpu.name} (compute capability {major}.{minor}):"
            " on the real GPU it would not run"
        )


def _at(file: str, line: int) -> str:
    return f"{Path(file).name}:{line}" if line else file
