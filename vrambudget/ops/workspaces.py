"""The workspaces of cuBLAS and cuBLASLt: scratch memory of matrix products.

Backward runs in a thread of its own with a handle of its own, so what is kept is there twice.
Products with an epilogue (a bias) go through cuBLASLt; since 2.15 in 16 bit those too that are
added to a matrix.

    torch           cuBLAS              cuBLASLt
    1.10            its own, from the driver    not used
    2.6, 2.8        kept                comes and goes with each product
    2.11            kept                kept
    2.13            kept                cuBLAS' own
    2.15            comes and goes      comes and goes

    cuBLAS          32 MiB on Hopper, from 2.13 on on Blackwell too, else 8.125 MiB
    cuBLASLt        1 MiB

A batched product over one element (bmm of [B, n, 1] and [B, 1, m]) needs none from 2.13 on: a
Triton kernel does it.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp (parseChosenWorkspaceSize, getCUDABlasLtWorkspace)
and cuda/CUDABlas.cpp of these releases; pull requests 83461 (PyTorch's own from its allocator),
156495 (cuBLASLt's is kept), 175344 (shared, Blackwell), 194311 (per product);
torch/_native/ops/bmm_outer_product.
Not modelled: the variables that set sizes, but for CUBLAS_WORKSPACE_CONFIG of a recorded trainer,
of a step and of a live module; side streams; a Python without Triton.
"""

import os
import re

from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import empty_bytes
from vrambudget.engine.versions import torch_since
from vrambudget.tape.events import Purpose, Storage
from vrambudget.tape.marks import Phase

MIB = 2**20


def cublas_workspace(*, epilogue: bool = False) -> None:
    """Allocate what a matrix product allocates besides its result."""
    if not torch_since(2, 6):
        return
    cublas, lt = cublas_workspace_bytes(), cublaslt_workspace_bytes()
    if torch_since(2, 15):
        _passing(lt if epilogue else cublas)
    elif not epilogue or torch_since(2, 13):
        _kept("cublas", cublas)
    elif torch_since(2, 11):
        _kept("cublas", cublas)
        _kept("cublaslt", lt)
    else:  # cuBLASLt's is there before the handle and what it keeps
        passing = _passing(lt)
        _kept("cublas", cublas)
        del passing


def warm_up() -> None:
    """Allocate what an earlier training leaves: of a biased layer's forward, and of its backward.

    The cache is empty after it.
    """
    cublas_workspace(epilogue=True)
    before, context.thread = context.thread, "autograd"
    cublas_workspace()
    context.thread = before
    context.tape.mark(0, Phase.BUILD, resets_allocator=True)


def addmm_workspace() -> None:
    """Allocate what a 16-bit product allocates that a matrix is added to."""
    cublas_workspace(epilogue=torch_since(2, 15))


def bmm_workspace(inner: int) -> None:
    """Allocate what a batched product allocates that sums over `inner` elements."""
    if inner > 1 or not torch_since(2, 13):
        cublas_workspace()


def _kept(library: str, nbytes: int) -> None:
    key = context.thread, library
    if key not in context.workspaces:
        with made_for(Purpose.WORKSPACES):
            context.workspaces[key] = empty_bytes(nbytes)


def _passing(nbytes: int) -> Storage:
    with made_for(Purpose.WORKSPACES):
        return empty_bytes(nbytes)


def cublas_workspace_bytes() -> int:
    """Return 32 MiB, or 2 x 4096 KiB + 8 x 16 KiB (":4096:2:16:8"), or what was set."""
    if context.platform.cublas_bytes is not None:
        return context.platform.cublas_bytes
    major, minor = context.platform.compute_capability
    hopper = (major, minor) == (9, 0)
    if hopper or (torch_since(2, 13) and major in {9, 10, 11, 12}):
        return 32 * MIB
    return 2 * 4096 * 1024 + 8 * 16 * 1024


def asked_cublas_bytes() -> int | None:
    """Return what this process asks for: pairs of KiB and how many of them, ":4096:2:16:8"."""
    pairs = re.findall(r":(\d+):(\d+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    return sum(int(size) * int(count) for size, count in pairs) * 1024 if pairs else None


def cublaslt_workspace_bytes() -> int:
    """Return the size of cuBLASLt's workspace (1024 KiB, _parseChosenWorkspaceSize)."""
    return MIB
