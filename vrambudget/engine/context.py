"""What PyTorch keeps per thread: is autograd on, is autocast on, which device is this.

There is one `context`, as there is one current CUDA device; `recording` gives it a fresh tape for
the length of a job. Threads take turns, a job at a time: run jobs side by side in processes.
"""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vrambudget.config.architectures import limits_of
from vrambudget.dtypes import DType, float32
from vrambudget.errors import VramBudgetError
from vrambudget.tape.events import Purpose, Storage, Tape

if TYPE_CHECKING:
    from vrambudget.engine.checkpoint import CheckpointFrame, Recomputation
    from vrambudget.engine.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Platform:
    """What of the GPU and of torch decides kernels, workspaces and addresses."""

    compute_capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    torch: tuple[int, int] = (2, 11)
    cuda: tuple[int, int] = (13, 0)  # that torch is built with
    l2_bytes: int = 40 * 2**20  # the GPU's second-level cache
    expandable_on_bytes: int | None = None  # the GPU's memory, where PyTorch's segments expand
    cudnn_attention: bool = True  # not TORCH_CUDNN_SDPA_DEPRIORITIZED=1
    cublas_bytes: int | None = None  # that CUBLAS_WORKSPACE_CONFIG sets

    @property
    def max_threads_per_multiprocessor(self) -> int:
        """How many threads are resident on one."""
        return limits_of(self.compute_capability).threads


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is built and run: what a user sets on the model, not on the job's loop."""

    dtype: DType = float32  # of the weights
    attention: str = "sdpa"  # or "eager"
    experts: str = "grouped_mm"  # or "eager", or "batched_mm"
    routing: str = "uniform"  # or "collapsed": how tokens spread over experts
    checkpointing: bool = False
    checkpoint_every: int = 1  # every layer, or every n-th
    checkpoint_operations: bool = False  # a layer's checkpoint saves what some operations make
    use_cache: bool = False  # a decoder called without saying so keeps keys and values
    full_rows: bool = True  # what is read back: neither packed nor padded, so sdpa needs no mask
    transformers: tuple[int, int] = (5, 17)


class Autocast:
    """One autocast region: its 16-bit type, and the copies of weights that it keeps to its end."""

    __slots__ = ("cache", "caches", "dtype")

    def __init__(self, dtype: DType, *, caches: bool = True) -> None:
        self.dtype = dtype
        self.caches = caches  # torch.autocast(cache_enabled=...)
        self.cache: dict[int, Tensor] = {}  # by the weight's id


class Context:
    """The state that operations read; `operation` names what runs, for the tape's labels."""

    __slots__ = (
        "attention",
        "autocast",
        "before_gradient",
        "benchmarks",
        "callbacks",
        "emulates_bf16",
        "frame",
        "got_gradient",
        "grad_enabled",
        "linear",
        "operation",
        "options",
        "platform",
        "purpose",
        "retains_graph",
        "scripts",
        "sequence",
        "splits",
        "tape",
        "thread",
        "unknown_workspaces",
        "workspaces",
    )

    def __init__(self) -> None:
        self.reset(Tape(), Platform(), ModelOptions())

    @property
    def stream(self) -> int:
        """The current stream, as torch.cuda.current_stream(); 0 is the default one."""
        return self.tape.stream

    def reset(self, tape: Tape, platform: Platform, options: ModelOptions) -> None:
        """Begin a new recording."""
        self.tape = tape
        self.platform = platform
        self.options = options
        self.grad_enabled = True
        self.autocast: Autocast | None = None
        self.frame: CheckpointFrame | Recomputation | None = None
        self.purpose = Purpose.TEMPORARIES
        self.operation = ""
        self.sequence = 0  # autograd nodes are numbered as they are made
        self.splits: set[Any] = set()  # `KeySplit` of the attention that flash ran
        self.scripts: frozenset[str] = frozenset()  # TorchScript functions that ran before
        self.retains_graph = False  # whether backward leaves what was saved
        self.thread = "main"  # autograd runs backward in a thread of its own
        self.callbacks: list[Callable[[], None]] = []  # Engine::queue_callback: once backward ends
        self.before_gradient: Callable[[Tensor, list[Tensor | None]], None] | None = None
        self.got_gradient: Callable[[Tensor], None] | None = None  # after AccumulateGrad, with leaf
        self.linear: Callable[..., Tensor] | None = None  # in place of nn.functional.linear
        self.attention: Callable[..., Tensor] | None = None  # of scaled_dot_product_attention
        self.workspaces: dict[tuple[str, str], Storage] = {}
        self.unknown_workspaces: list[
            Any
        ] = []  # bytes that convolutions touch whose workspace is not known
        self.emulates_bf16 = False  # whether autocast has asked for it
        self.benchmarks = 0  # kernels that were timed when they were first launched


context = Context()
_turn = threading.RLock()
_recording = False  # whether the thread that has the turn records: a signal may interrupt it


def _new_turn() -> None:
    """Let a forked process begin with nobody's turn: other threads were not forked."""
    global _turn, _recording
    _turn, _recording = threading.RLock(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_turn)


@contextmanager
def recording(platform: Platform, options: ModelOptions = ModelOptions()) -> Iterator[Tape]:
    """Record what runs inside on a fresh tape.

    Python's cycle collector is paused: storages die by reference counting alone, as in PyTorch,
    and a collection would only cost time. Raises VramBudgetError in a signal handler that
    interrupts another recording, and what a handler raises while a storage dies: Python prints it.
    """
    global _recording  # noqa: PLW0603 - of the thread that has the turn
    with _turn:
        if _recording:
            raise VramBudgetError(
                "an estimate of this thread is not over: a signal handler cannot make another",
                hint="make it when the first one is over, or in a thread or process of its own",
            )
        collecting, lost, hook = gc.isenabled(), list[Any](), sys.unraisablehook
        try:  # a handler may raise after any call
            _recording = True
            sys.unraisablehook = lambda it: (lost.append if _is_raised_here(it) else hook)(it)
            gc.disable()
            tape = Tape()
            context.reset(tape, platform, options)
            yield tape
        finally:
            _recording = False
            try:
                context.reset(Tape(), platform, options)
                gc.collect(0)  # the model, whose parts know each other: its storages die here
            finally:
                sys.unraisablehook = hook
                if collecting:
                    gc.enable()
            if lost:  # and the free with it
                raise lost[0].exc_value


def _is_raised_here(dropped: Any) -> bool:
    """Return whether what Python drops came up in a `__del__` here, or is no error at all."""
    module = str(getattr(dropped.object, "__module__", ""))
    return module.startswith("vrambudget.") or not isinstance(dropped.exc_value, Exception)


@contextmanager
def no_grad() -> Iterator[None]:
    """Like torch.no_grad()."""
    before, context.grad_enabled = context.grad_enabled, False
    try:
        yield
    finally:
        context.grad_enabled = before


@contextmanager
def on_meta() -> Iterator[None]:
    """Let tensors made inside take no memory (torch.device("meta")), or lie in main memory."""
    tape, context.tape = context.tape, Tape()
    try:
        yield
    finally:
        context.tape = tape


@contextmanager
def on_stream(stream: int) -> Iterator[None]:
    """Storages get their bytes on `stream` inside, as in torch.cuda.stream(...).

    Backward runs on the stream that is current when it is called, not on those of its forward.
    """
    tape = context.tape
    before, tape.stream = tape.stream, stream
    try:
        yield
    finally:
        tape.stream = before


@contextmanager
def made_for(purpose: Purpose) -> Iterator[None]:
    """Storages made inside are for `purpose`."""
    before, context.purpose = context.purpose, purpose
    try:
        yield
    finally:
        context.purpose = before
