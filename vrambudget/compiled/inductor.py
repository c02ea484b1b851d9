"""Inductor compiles, and its wrappers run on fake tensors, with kernels that do nothing.

A wrapper is the Python function that Inductor generates for a graph: it allocates buffers, launches
kernels and drops buffers. So the wrapper alone decides what a graph allocates, and when it frees
it; no kernel has to be built. Only its imports are replaced: what allocates makes fake tensors, and
what compiles or launches kernels is `_NOTHING`. Matrix products, and operations that Inductor
leaves to PyTorch, run on fake tensors, because they allocate (workspaces, results).

Source: torch/_inductor/codecache.py (PyCodeCache), codegen/wrapper.py (write_header),
async_compile.py, scheduler.py (create_backend), torch/_inductor/constant_folding.py,
fx_passes/pad_mm.py.
"""

import builtins
import functools
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.hidden import product
from vrambudget.compiled.private import (
    ConstantFolder,
    InductorError,
    SkipFrame,
    codecache,
    compile_fx,
    config,
    joint_graph,
    pad_mm,
    scheduler,
    triton_codegen,
    triton_heuristics,
    triton_package,
)
from vrambudget.compiled.tuning import benchmarks, jit

_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
_HALFWAY = 0.5
_LAUNCHING = ("triton", "torch._inductor.runtime")


@contextmanager
def without_kernels(mode: GpuMode, *, pads: bool) -> Iterator[None]:
    """Let Inductor compile without Triton or a GPU. `pads`: see benchmarks."""
    # Caches are off: a cached graph would skip its benchmarks, and benchmarks allocate.
    cache = codecache.PyCodeCache
    with ExitStack() as stack:
        stack.enter_context(config.patch(force_disable_caches=True, compile_threads=1))
        stack.enter_context(benchmarks(mode, pads=pads))
        for target, name, new in (
            (cache, "load_by_key_path", classmethod(_load)),
            (scheduler, "has_triton", lambda: True),
            (pad_mm, "has_triton", lambda: True),
            (compile_fx, "get_input_idxs_to_check", lambda *_: ()),  # all are aligned
            (compile_fx, "_compile_fx_inner", _skipping(compile_fx._compile_fx_inner)),
        ):
            stack.enter_context(patch.object(target, name, new))
        for folder in (ConstantFolder, joint_graph.UniformValueConstantFolder):
            if "_deduce_value" in vars(folder):
                stack.enter_context(patch.object(folder, "_deduce_value", _on_cpu(folder)))
        for module in (triton_package, codecache, triton_codegen):
            for name in ("triton_hash_with_backend", "triton_backend", "triton_key"):
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, lambda: "none"))
        yield


def _skipping(own: Callable[..., Any]) -> Callable[..., Any]:
    """Return Inductor's compiler, which lets PyTorch run what it cannot compile.

    Before Ampere it compiles no graph that takes or returns bf16, and asks Dynamo to skip the
    frame. With its caches off it wraps that request in an error; here it is taken out again.

    Source: torch/_inductor/compile_fx.py (_compile_fx_inner, _check_triton_bf16_support).
    """

    @functools.wraps(own)
    def inner(*args: Any, **kwargs: Any) -> Any:
        try:
            return own(*args, **kwargs)
        except InductorError as error:
            if isinstance(error.inner_exception, SkipFrame):
                raise error.inner_exception from None
            raise

    return inner


def _load(_cache: Any, key: str, path: str, *_: Any, **given: Any) -> ModuleType:
    """Return a wrapper as a module whose allocations are fake and whose kernels do nothing.

    A frame that Dynamo could not trace stays in a reference cycle with its variables, tensors among
    them. While a graph is compiled, Python's collector frees such cycles. It is paused here, so
    that tensors die at the same event each time; one collection for each loaded graph stands for
    it.
    """
    gc.collect()
    module = ModuleType(f"wrapper_{key}")
    module.__file__ = path
    names = vars(module)
    names["__builtins__"] = {**vars(builtins), "__import__": _imported}
    exec(compile(Path(path).read_text(encoding="utf-8"), path, "exec"), names)  # noqa: S102 - Inductor's own code
    names.update(_ALLOCATIONS)
    names["extern_kernels"] = _Extern(names["extern_kernels"])
    names.update(given.get("attrs") or {})
    return module


class _Nothing:
    """A kernel, or a module of kernels: every attribute and every call is this object again."""

    def __call__(self, *_: Any, **__: Any) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


_NOTHING = _Nothing()


class _Triton(_Nothing):
    """Triton: a kernel's function is never called."""

    jit = staticmethod(jit)


class _AsyncCompile(_Nothing):
    """Inductor's compiler of kernels. It runs the text that describes one, and compiles nothing.

    The text names a kernel's configurations and arguments, from which the autotuner allocates.
    """

    def triton(self, name: str, source: str, **_: Any) -> Any:
        """Return the kernel that a text describes."""
        names: dict[str, Any] = {
            "__builtins__": {**vars(builtins), "__import__": _imported_by_kernel},
            "__file__": source,
            "AttrsDescriptor": _NOTHING,  # named, but not imported, where there is no Triton
        }
        exec(compile(source, name, "exec"), names)  # noqa: S102 - Inductor's own code
        return names[name]


_COMPILER = SimpleNamespace(AsyncCompile=_AsyncCompile)
_HELPERS = SimpleNamespace(triton_helpers=_NOTHING, triton_heuristics=triton_heuristics)


def _imported_by_kernel(name: str, *given: Any) -> Any:
    """Import for a kernel's description: Triton, and the helpers that kernels call, do nothing."""
    if name.startswith("triton"):
        return _Triton()
    if name == "torch._inductor.runtime":
        return _HELPERS
    if name == "torch._inductor.runtime.triton_helpers":
        return _NOTHING
    return builtins.__import__(name, *given)


def _imported(name: str, *given: Any) -> Any:
    """Import for a wrapper: what launches kernels does nothing."""
    if name == "torch._inductor.async_compile":
        return _COMPILER
    if name.startswith(_LAUNCHING):
        return _NOTHING
    if name == "torch._C" and len(given) > 2 and given[2]:  # noqa: PLR2004 - names from it
        return _NOTHING
    return builtins.__import__(name, *given)


def _empty(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=GPU)


def _sampled(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a buffer in main memory that holds 0.5, as if random numbers were sampled into it.

    A layer that is skipped at random (LayerDrop) then runs, unless more than half are skipped.
    """
    x = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
    return x.fill_(_HALFWAY if dtype.is_floating_point else 0)


def _reinterpret(x: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    return torch.as_strided(x, size, stride, x.storage_offset() + offset)


def _unchecked(*_: Any) -> None:
    """Check nothing: fake tensors have PyTorch's own strides, and no addresses."""


_ALLOCATIONS = {
    "empty_strided_cuda": _empty,
    "empty_strided_cpu": _sampled,
    "reinterpret_tensor": _reinterpret,
    "assert_size_stride": _unchecked,
    "assert_alignment": _unchecked,
}


class _Extern:
    """Inductor's extern_kernels: a product takes its workspace, others run on fake tensors."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        kernel = getattr(self._kernels, name)
        return _product(name, kernel) if name in _PRODUCTS else kernel


def _product(name: str, kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        product(name, args)
        out = kwargs.get("out")
        return kernel(*args, **kwargs) if out is None else out

    return run


class _OnCpu(TorchDispatchMode):
    """Computes on the CPU the constants that Inductor folds: it reads their values."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation with the CPU in the GPU's place."""
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        args = tuple(torch.device("cpu") if isinstance(a, torch.device) else a for a in args)
        return func(*args, **kwargs)


def _on_cpu(folder: Any) -> Callable[..., Any]:
    own = folder._deduce_value

    def deduce(self: Any, node: Any) -> Any:
        on_cpu: Any = _OnCpu
        with on_cpu():
            return own(self, node)

    return deduce
