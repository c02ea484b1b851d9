"""Messages of libraries and of other backends than CUDA.

PyTorch     CUBLAS_STATUS_ALLOC_FAILED, CUDNN_STATUS_ALLOC_FAILED, "MPS backend out of memory";
            CUBLAS_STATUS_NOT_INITIALIZED of cublasCreate, which a full GPU gives, too
            before version 1.0 "cuda runtime error (2)" (THC's THCGeneral.cpp), Caffe2's
            "error == cudaSuccess. 2 vs 0" (context_gpu.cu)
JAX         RESOURCE_EXHAUSTED, with XLA's "total allocation" where it prints that
TensorFlow  "OOM when allocating tensor" (core/framework/op_kernel.cc)
"""

import math
import re

from vrambudget.oom.known import SIZE, KnownMessage, joined, pattern
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
            "`vrambudget MODEL --gpu GPU` includes the workspace; leave 0.5 GiB free besides",
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
            "`vrambudget MODEL --gpu GPU` estimates the job",
            "else look for an index out of range: run once with CUDA_LAUNCH_BLOCKING=1",
        ),
    )


def _jax(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    asked = hit["size"] or "a buffer"
    if hit["asked"]:
        asked = format_bytes(int(hit["asked"]))
    total = f" The program would hold {joined(hit['total'])} in all." if hit["total"] else ""
    return (
        (
            f"XLA asked for {asked}.{total} JAX takes 75 % of a GPU when it starts; another process"
            " on the GPU, or a second framework in this one, has less than it sees."
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


def _before_1_0(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "The GPU is full. PyTorch before version 1.0 prints no sizes: error 2 of the CUDA"
            " runtime is out of memory, and the file that it names is where it was asked for."
        ),
        (
            "a smaller batch or shorter inputs; torch.no_grad() around evaluation",
            "see who else uses the GPU: nvidia-smi",
            "a newer PyTorch prints sizes; `vrambudget MODEL --gpu GPU` estimates the job",
        ),
    )


def _caffe2(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    del hit
    return (
        (
            "The GPU is full: Caffe2 asks the driver for each tensor, and error 2 of the CUDA"
            " runtime is out of memory."
        ),
        (
            "a smaller batch, or fewer images per GPU (IMS_PER_BATCH)",
            "see who else uses the GPU: nvidia-smi",
        ),
    )


_ITEM_BYTES = {"half": 2, "bfloat16": 2, "float": 4, "double": 8, "int32": 4, "int64": 8}


def _tensorflow(hit: re.Match[str]) -> tuple[str, tuple[str, ...]]:
    sizes = [int(n) for n in re.findall(r"\d+", hit["shape"])]
    item = _ITEM_BYTES.get(hit["dtype"].lower())
    shape = f"a tensor [{', '.join(map(str, sizes))}] of {hit['dtype']}"
    takes = f", which takes {format_bytes(math.prod(sizes) * item)}" if item else ""
    return (
        (
            f"TensorFlow's allocator asked for {shape}{takes}. It takes nearly all of a GPU when it"
            " starts: another process there, or a second framework in this one, has less."
        ),
        (
            "a smaller batch: it is most often the first number of that shape",
            "if something else runs on the GPU: TF_FORCE_GPU_ALLOW_GROWTH=true",
            "16-bit training: tf.keras.mixed_precision.set_global_policy('mixed_bfloat16')",
        ),
    )


LIBRARIES = (
    KnownMessage("PyTorch", pattern(r"cuda runtime error \(2\) ?: out of memory"), _before_1_0),
    KnownMessage(
        "Caffe2",
        pattern(r"context_gpu\.cu:\d{1,6}\]? error == cudaSuccess\. 2 vs 0"),
        _caffe2,
    ),
    KnownMessage(
        "TensorFlow",
        pattern(
            r"OOM when allocating tensor with shape\s?\[(?P<shape>[\d,\s]{0,200})\] and type"
            r" (?P<dtype>\w{1,20})"
        ),
        _tensorflow,
    ),
    KnownMessage(
        "PyTorch", pattern(r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED"), _cublas
    ),
    KnownMessage(
        "PyTorch",
        pattern(r"CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"),
        _no_handle,
    ),
    KnownMessage(
        "JAX",
        pattern(
            r"RESOURCE(?:_| )EXHAUSTED: (?:Out of memory(?: while trying to allocate| allocating)?"
            r"|Failed to allocate request for)"
            rf"(?: (?:(?P<asked>\d{{1,20}}) bytes|(?P<size>{SIZE})))?"
            rf"(?:[^\n]{{0,200}}\s{{0,40}}total allocation:? (?P<total>{SIZE}))?"
        ),
        _jax,
    ),
    KnownMessage(
        "PyTorch",
        pattern(
            rf"MPS backend out of memory \(MPS allocated: (?P<allocated>{SIZE}),"
            rf" other allocations: {SIZE}, max allowed: (?P<allowed>{SIZE})\)\."
            rf" Tried to allocate (?P<asked>\d{{1,20}} bytes|{SIZE})"
        ),
        _mps,
    ),
)
