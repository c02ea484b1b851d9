"""What a function mode does not see, replaced while a model is traced.

    nn.Module.__call__              the tape learns which module runs
    torch.utils.checkpoint          the engine's checkpoint
    torch.autograd.Function.apply   its forward and backward are torch calls too: they are run
    torch.clear_autocast_cache      the end of an autocast region
    torch.cuda's questions          what GPU this is
    torch.jit.ScriptFunction        a rule's, or the Python that it was compiled from is run
    torch.nn.init's trunc_normal_   nothing is drawn: up to torch 2.11 it makes nothing, either

Source: torch/utils/checkpoint.py (_checkpoint_without_reentrant_generator), autograd/function.py.
Not modelled: what TorchScript fuses, and that it frees results after their last use, in functions
without a rule (rules.SCRIPTS); checkpoints with re-entry whose function draws random numbers; what
trunc_normal_ makes since torch 2.13, if a model is built on the GPU (masks of what it draws again).
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint as checkpoints

from vrambudget.engine.autograd import keep
from vrambudget.engine.checkpoint import CheckpointFrame, Holder
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Tensor
from vrambudget.tape.events import Purpose
from vrambudget.traced import regions
from vrambudget.traced.fast_path import FAST_PATH
from vrambudget.traced.functions import apply_function
from vrambudget.traced.mode import TracingMode
from vrambudget.traced.rules import RULES, SCRIPTS
from vrambudget.traced.tensor import TracedTensor, traced_tensor


@contextmanager
def running(mode: TracingMode) -> Iterator[None]:
    """Let modelling code run on traced tensors inside, under the engine's autocast and no_grad."""
    with regions.as_engine(), _patched(mode), mode:
        yield


@contextmanager
def _patched(mode: TracingMode) -> Iterator[None]:
    called = torch.nn.Module.__call__

    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        tape = context.tape
        outer = tape.module
        shadow = mode.shadows.get(id(module))
        tape.module = outer if shadow is None else shadow.path or outer
        if id(module) == mode.head:  # what follows is for the logits and the loss, too
            context.purpose = Purpose.LOGITS_AND_LOSS
        try:
            return called(module, *args, **kwargs)
        finally:
            tape.module = outer

    def frame(function: Callable[..., Any], *options: Any, **kwargs: Any) -> Iterator[None]:
        return _frame(mode, function, options[5:], kwargs)

    capability = context.platform.compute_capability
    clear = torch.clear_autocast_cache

    def clear_cache() -> None:
        clear()
        regions.clear_cache()

    with ExitStack() as stack:
        for target, name, new in (
            (torch.nn.Module, "__call__", call),
            (checkpoints, "_checkpoint_without_reentrant_generator", frame),
            (torch.autograd.Function, "apply", classmethod(_applied(mode))),
            (torch, "clear_autocast_cache", clear_cache),
            (torch.cuda, "get_device_capability", lambda _device=None: capability),
            (torch.jit.ScriptFunction, "__call__", _scripted(mode)),
            (torch.nn.init, "_no_grad_trunc_normal_", lambda tensor, *_, **__: tensor),
            (torch.amp.autocast_mode, "amp_definitely_not_available", lambda: False),
            *FAST_PATH,
        ):
            if hasattr(target, name):
                stack.enter_context(patch.object(target, name, new))
        yield


def _scripted(mode: TracingMode) -> Callable[..., Any]:
    """Return a call of the function that torch.jit.script kept (torch/jit/_script.py), by rules."""

    def call(script: Any, *args: Any, **kwargs: Any) -> Any:
        function = script._torchdynamo_inline  # noqa: SLF001 - which torch.compile reads
        if (rule := SCRIPTS.get(function.__name__)) is None:
            return function(*args, **kwargs)
        RULES.setdefault(function, rule)
        return mode.__torch_function__(function, (), args, kwargs)

    return call


def _applied(mode: TracingMode) -> Callable[..., Any]:
    def apply(function: Any, *args: Any, **kwargs: Any) -> Any:
        return apply_function(mode, function, args, kwargs)

    return apply


def _frame(
    mode: TracingMode, function: Callable[..., Any], args: Any, kwargs: Any
) -> Iterator[None]:
    """Count a checkpoint without re-entry: what it saves waits, and backward runs it again."""
    regions.adopt()
    if not context.grad_enabled:
        yield
        return
    inputs = args if context.frame is None else tuple(map(_input_of_inner, args))

    def again() -> None:
        given = [x.again() if isinstance(x, _Input) else x for x in inputs]
        with running(mode):
            function(*given, **kwargs)

    before, context.frame = context.frame, CheckpointFrame(again)
    try:
        yield
    finally:
        context.frame = before


def _input_of_inner(x: Any) -> Any:
    """Return what a checkpoint within another one keeps of an input; parameters are there."""
    is_made = isinstance(x, TracedTensor) and (x.v.node is not None or not x.v.requires_grad)
    return _Input(x) if is_made else x


class _Input:
    """An activation that an inner checkpoint starts from: the outer one recomputes it.

    Source: torch/utils/checkpoint.py (_NoopSaveInputs: inputs are saved under the outer hooks).
    """

    def __init__(self, x: TracedTensor) -> None:
        layout = x.v
        self.layout = layout.shape, layout.dtype, layout.strides
        self.requires_grad, self.known = layout.requires_grad, x.known
        self.saved = keep(layout)

    def again(self) -> TracedTensor:
        """Return it, as the outer checkpoint made it again: once."""
        storage: Any = self.saved
        if isinstance(storage, Holder):
            storage.frame.recompute()
            storage, self.saved = storage.storage, None
        shape, dtype, strides = self.layout
        x = Tensor(shape, dtype, storage, strides)
        x.requires_grad = self.requires_grad
        return traced_tensor(x, self.known)
