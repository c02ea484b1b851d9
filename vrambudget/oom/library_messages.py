"""Messages of libraries and of other backends than CUDA.

PyTorch     CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, "MPS backend out of memory";
            CUBLAS_STATUS_NOT_INITIALIZED of cublasCreate, which a full GPU gives, too
JAX         RESOURCE_EXHAUSTED
"""

import re

from vrambudget.oom.known import SIZE, Known, joined, pattern
from vrambudget.units import format_bytes


def _cublas(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    library = "cuDNN" if hit[0].upper().startswith("CUDNN") else "cuBLAS"
    return (
        (
            f"The GPU is full: {library} allocates its handle and workspace from the driver,"
            " outside PyTorch's allocator, and got nothing. It happens at the first product or"
            " convolution, where PyTorch's cache has taken the rest."
        ),
        (
            "treat it as out of memory: a smaller batch or shorter sequences",
            "`vrambudget MODEL --gpu GPU` counts the workspace; leave 0.5 GiB free besides",
        ),
    )


def _no_handle(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "cuBLAS could not make its handle. Most often the GPU is full: the handle's memory"
            " comes from the driver, outside PyTorch's allocator, and is asked for at the first"
            " product. An earlier kernel that failed gives the same message."
        ),
        (
            "if the GPU is nearly full: a smaller batch or shorter sequences",
            "`vrambudget MODEL --gpu GPU` counts the job",
            "else look for an index out of range: run once with CUDA_LAUNCH_BLOCKING=1",
        ),
    )


def _jax(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    asked = hit["size"] or "a buffer"
    if hit["asked"]:
        asked = format_bytes(int(hit["asked"]))
    return (
        (
            f"XLA asked for {asked}. JAX takes 75 % of a GPU when it starts, and another process on"
            " the GPU, or a second framework in this one, has less than it sees."
        ),
        (
            "if something else runs on the GPU: XLA_PYTHON_CLIENT_PREALLOCATE=false",
            "or give it more: XLA_PYTHON_CLIENT_MEM_FRACTION=.90",
            "a smaller batch, or jax.checkpoint; donate what is not needed (donate_argnums)",
        ),
    )


def _mps(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    allocated, allowed, asked = (joined(hit[key]) for key in ("allocated", "allowed", "asked"))
    return (
        (
            f"PyTorch on this Mac holds {allocated}, and may take {allowed} of the memory that the"
            f" processor shares; {asked} more were asked for."
        ),
        (
            "a smaller batch or shorter sequences; end programs that hold memory",
            "torch.mps.empty_cache() between phases",
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 lifts the bound, and may stall the system",
        ),
    )


LIBRARIES = (
    Known("PyTorch", pattern(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"), _cublas),
    Known(
        "PyTorch",
        pattern(r"CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"),
        _no_handle,
    ),
    Known(
        "JAX",
        pattern(
            r"RESOURCE(?:_| )EXHAUSTED: (?:Out of memory(?: while trying to allocate| allocating)?"
            r"|Failed to allocate request for)"
            rf"(?: (?:(?P<asked>\d{{1,20}}) bytes|(?P<size>{SIZE})))?"
        ),
        _jax,
    ),
    Known(
        "PyTorch",
        pattern(
            rf"MPS backend out of memory \(MPS allocated: (?P<allocated>{SIZE}),"
            rf" other allocations: {SIZE}, max allowed: (?P<allowed>{SIZE})\)\."
            rf" Tried to allocate (?P<asked>\d{{1,20}} bytes|{SIZE})"
        ),
        _mps,
    ),
)
