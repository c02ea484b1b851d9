"""What Inductor's benchmarks on the GPU allocate, and leave in PyTorch's cache.

    a kernel with several configurations     is timed with each when it is first launched
    a product that padding might speed up    is timed both ways while it is compiled

Each is called once, then again while a buffer as large as the GPU's L2 cache exists, which empties
that cache. A kernel that writes into its arguments gets copies of them, but copies that would raise
the peak go to the host. Nothing is timed twice, because Inductor keeps the answers on the disk. A
job is assumed to find that cache empty, as its first run does.

Source: torch/_inductor/runtime/benchmarking.py (InductorBenchmarker.benchmark_gpu),
runtime/triton_heuristics.py (CachingAutotuner.run, bench, copy_args_to_cpu_if_needed,
maybe_clone_args), fx_passes/pad_mm.py (_should_pad).
Not modelled: configurations that the compiled kernel's registers add (_dynamic_scale_rblock) or
that do not fit the GPU.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from vrambudget.compiled.dispatch import GPU
from vrambudget.compiled.fake_storages import GpuMode
from vrambudget.compiled.findings import findings
from vrambudget.compiled.private import clone_preserve_strides, pad_mm, triton_heuristics
from vrambudget.engine.context import context
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.steady import run


def benchmarked(call: Callable[[], Any], *_: Any, **__: Any) -> float:
    """Call a function as the benchmark does."""
    call()
    buffer = torch.empty(context.platform.l2_bytes // 4, dtype=torch.int, device=GPU)
    call()
    del buffer
    return 0.0


class TunedKernel:
    """A kernel of Inductor's: its first launch times its configurations, if it has several."""

    def __init__(
        self,
        tuned: set[str],
        fn: Any,
        *,
        filename: str,
        configs: list[Any],
        mutated_arg_names: list[str],
        optimize_mem: bool,
        **_: Any,
    ) -> None:
        self._tuned, self._source = tuned, filename
        self._names, self._untried = fn.arg_names, 1 if filename in tuned else len(configs)
        self._written, self._saves_memory = set(mutated_arg_names), optimize_mem

    def run(self, *args: Any, **_: Any) -> None:
        """Launch the kernel: the first time, time its configurations."""
        configs, self._untried = self._untried, 0
        if configs > 1:
            context.benchmarks += 1
            self._tuned.add(self._source)
            given = zip(self._names, args, strict=False)
            written = [x for name, x in given if name in self._written]
            for _configuration in range(configs):
                benchmarked(self._with_copies(written))

    def _with_copies(self, written: list[Any]) -> Callable[[], Any]:
        copied = []
        limit = _available_bytes() if written and self._saves_memory else None
        for x in written:
            lengths = zip(x.shape, x.stride(), strict=True)
            size = (sum((n - 1) * stride for n, stride in lengths) + 1) * x.element_size()
            if limit is None or size <= limit:
                copied.append(x)
                limit = None if limit is None else limit - size
        return lambda: [clone_preserve_strides(x) for x in copied]


def _available_bytes() -> int:
    """Return how far what is allocated is below its peak."""
    tape = context.tape
    allocator = allocator_for(tape)
    here = 0
    for mark, _ in run(tape, allocator):
        here = mark.position
        if mark.resets_allocator:
            allocator.reset_peaks()
    allocator.run(tape.events, tape.sizes, here, len(tape.events))
    return allocator.peak_allocated_bytes - allocator.allocated_bytes


class _Config:
    """triton.Config, for builds without Triton."""

    def __init__(self, kwargs: dict[str, Any], num_warps: int = 4, num_stages: int = 3) -> None:
        self.kwargs, self.num_warps, self.num_stages = kwargs, num_warps, num_stages
        self.num_ctas, self.maxnreg, self.pre_hook = 1, None, None


class _InductorConfig(_Config):
    """triton_heuristics.InductorConfig."""

    def __init__(self, *args: Any, dynamic_scale_rblock: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dynamic_scale_rblock = dynamic_scale_rblock


def jit(fn: Callable[..., Any]) -> Any:
    """Return the part of triton.jit's result that Inductor reads: names."""
    names = [*inspect.signature(fn).parameters]
    return SimpleNamespace(fn=fn, __name__=fn.__name__, arg_names=names)


@contextmanager
def benchmarks(mode: GpuMode, *, pads: bool) -> Iterator[None]:
    """Let Inductor benchmark inside. `pads`: whether pad_mm's benchmarks find padding faster."""
    autotune = triton_heuristics.cached_autotune
    kernel = functools.partial(TunedKernel, mode.tuned)

    takes_its_kind = "caching_autotuner_cls" in inspect.signature(autotune).parameters

    def tuned(*args: Any, **kwargs: Any) -> Any:
        own = {"caching_autotuner_cls": kernel} if takes_its_kind else {}  # since 2.10
        return autotune(*args, **{**kwargs, **own})

    def decide(key: str, _ori_time: float, _pad_time: float) -> bool:
        findings.asked.add(key)
        mode.padded[key] = pads
        return pads

    with ExitStack() as stack:
        for target, name, new in (
            (triton_heuristics, "cached_autotune", tuned),
            (triton_heuristics, "CachingAutotuner", kernel),
            (triton_heuristics, "Config", _Config),
            (triton_heuristics, "InductorConfig", _InductorConfig),
            (pad_mm, "no_dispatch", mode.on_the_gpu),
            (pad_mm, "get_do_bench", lambda: benchmarked),
            (pad_mm, "get_cached_should_pad", mode.padded.get),
            (pad_mm, "get_cached_base_mm_benchmark_time", lambda _key: None),
            (pad_mm, "set_cached_base_mm_benchmark_time", lambda _key, _value: None),
            (pad_mm, "is_padded_faster", decide),
        ):
            if hasattr(target, name):
                stack.enter_context(patch.object(target, name, new))
        yield
