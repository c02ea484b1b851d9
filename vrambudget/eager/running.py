"""Code as PyTorch runs it: its own autograd, on fake tensors of the GPU.

Whatever torch offers goes the way that it goes on a GPU: graphs of gradients, checkpoints, hooks,
functions of one's own, functional transforms, optimizers.

Source: torch/utils/_foreach_utils.py and aten/src/ATen/native/ForeachUtils.h
(_group_tensors_by_first_tensors_device_and_dtype: a hash map, read from its newest entry).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.optim import optimizer as optimizers

from vrambudget.compiled.gpu import GeneratorOfEither
from vrambudget.compiled.model import on_gpu
from vrambudget.compiled.private import enable_python_dispatcher, fake_tensor
from vrambudget.eager import numbers
from vrambudget.eager.dispatcher import FUNCTIONS, in_cpp
from vrambudget.eager.found import Found
from vrambudget.eager.four_bit import scales_of
from vrambudget.eager.mode import EagerMode
from vrambudget.eager.regions import made_without_a_gpu
from vrambudget.eager.standing import Standing
from vrambudget.engine.context import context
from vrambudget.engine.module import Module, register
from vrambudget.errors import NotModelledError
from vrambudget.tape.events import Purpose
from vrambudget.traced.fast_path import FAST_PATH
from vrambudget.traced.live import tensors_in
from vrambudget.traced.shadows import shadow
from vrambudget.traced.tensor import DTYPE, GPU, REHEARSE

Ids = AbstractSet[int]  # of tensors
_CREATE_GRAPH = 3  # its place in the engine's signature
_COLLECTED = "torch.func leaves some tensors to Python's garbage collector; here they die at once"


@contextmanager
def on_the_gpu() -> Iterator[Standing]:
    """Have a fake GPU inside."""
    gpu = EagerMode()
    with in_cpp(), on_gpu(gpu, FUNCTIONS), enable_python_dispatcher():
        begun = torch._C._autograd._get_sequence_nr()
        with ThreadPoolExecutor(1, "autograd", _number_from, (begun,)) as thread:
            yield Standing(gpu, thread)


@contextmanager
def inside(mode: Standing) -> Iterator[None]:
    """Let code train inside: backward passes, optimizers, questions about the GPU."""
    hooks = (
        optimizers.register_optimizer_step_pre_hook(lambda *_: mode.begins("optimizer_step")),
        optimizers.register_optimizer_step_post_hook(lambda own, *_: _label(mode, own)),
    )
    apply = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]

    def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return apply(cls, *mode.with_fakes(args, []), **mode.with_fakes(kwargs, []))

    state = torch.get_rng_state()[:16]  # the generator's, on the host
    backward = _backward(mode, torch.autograd.graph._engine_run_backward)
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        for target, name, new in (
            (torch.autograd, "_engine_run_backward", backward),
            (torch.autograd.graph, "_engine_run_backward", backward),
            (torch.autograd.Function, "apply", classmethod(applied)),
            (torch.nn.Module, "__call__", _called(mode, torch.nn.Module.__call__)),
            (torch.nn.Module, "_apply", _applied(mode, torch.nn.Module._apply)),
            (torch._C, "_group_tensors_by_device_and_dtype", _grouped),
            (torch.jit.ScriptFunction, "__call__", _scripted(torch.jit.ScriptFunction.__call__)),
            (torch, "Generator", GeneratorOfEither),
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.cuda, "_lazy_init", lambda: None),
            (fake_tensor, "init_gpu_context", lambda _device: None),
            (torch.cuda, "manual_seed", lambda _seed: None),
            (torch.cuda, "manual_seed_all", lambda _seed: None),
            (torch.cuda, "get_rng_state", lambda _device=None: state),
            (torch.cuda, "set_rng_state", lambda _state, _device=None: None),
            (torch.cuda.random, "get_rng_state", lambda _device=None: state),
            (torch.cuda.random, "set_rng_state", lambda _state, _device=None: None),
            *made_without_a_gpu(mode.gpu.autocast),
            *FAST_PATH,
            *_transforms(mode),
            *_looking_at_masks(),
        ):
            stack.enter_context(patch.object(target, name, new))
        stack.enter_context(mode)
        yield


def _looking_at_masks() -> list[Any]:
    """Return what lets transformers look at masks though they are fake."""
    own = sys.modules.get("transformers.utils.import_utils")
    return [(own, "is_fake_tensor", lambda _: False)] if hasattr(own, "is_fake_tensor") else []


def _grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's
    """Group tensors by the type of those in the first list; the newest group comes first."""
    places: dict[Any, list[int]] = {}
    for place, x in enumerate(lists[0]):
        places.setdefault((x.device, x.dtype), []).append(place)
    return {
        key: (
            [[given[i] for i in chosen] if given else [] for given in lists],
            chosen if with_indices else [],
        )
        for key, chosen in reversed(places.items())
    }


def _transforms(mode: Standing) -> Iterator[tuple[Any, str, Any]]:
    """Yield what lets functorch wrap the fake tensors of live ones."""
    for target, name in (
        (torch._functorch.vmap, "_add_batch_dim"),
        (torch._functorch.eager_transforms, "_wrap_for_grad"),
    ):
        wraps = getattr(target, name)

        def wrap(x: Any, *rest: Any, _wraps: Any = wraps) -> Any:
            numbers.assume(_COLLECTED)
            return _wraps(mode.fake_of(x), *rest)

        yield target, name, wrap


def _applied(mode: Standing, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Return Module._apply, behind `.to` and `.half`, that keeps the live tensors of a module."""

    def applied(module: Any, change: Callable[[Any], Any], recurse: bool = True) -> Any:  # noqa: FBT001, FBT002 - torch's
        tensors = (*module._parameters.values(), *module._buffers.values())
        own = [x for x in tensors if x is not None]
        if not own or not all(map(mode.is_standing, own)):
            return apply(module, change, recurse)
        for child in module.children() if recurse else ():
            child._apply(change)
        with torch.no_grad():
            for x in own:
                mode.recast(x, change)
        return module

    return applied


def _called(mode: Standing, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return Module.__call__ that tells the tape which module runs."""

    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        tape = context.tape
        outer, purpose = tape.module, context.purpose
        if isinstance(module, torch.jit.ScriptModule):
            what = "a module of TorchScript is not traced: it fuses, and frees after the last use"
            raise NotModelledError(what, hint=REHEARSE)
        mode.begins("module")
        own = mode.shadows.get(id(module))
        tape.module = outer if own is None else own.path or outer
        if id(module) == mode.head:
            context.purpose = Purpose.LOGITS_AND_LOSS
        try:
            return call(module, *args, **kwargs)
        finally:
            tape.module, context.purpose = outer, purpose

    return called


def _scripted(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ScriptFunction.__call__ that the report hears of."""

    def scripted(function: Any, *args: Any, **kwargs: Any) -> Any:
        numbers.assume(
            f"{function.name}, which torch.jit.script compiled, ran operation by operation; on a"
            " GPU TorchScript fuses from its third call on, and takes less"
        )
        return call(function, *args, **kwargs)

    return scripted


def _backward(mode: Standing, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the engine's run, that says what its results are for."""

    def backward(*args: Any, **options: Any) -> Any:
        mode.begins("backward")
        _say_activations(mode)
        before, context.thread = context.thread, "autograd"
        transformed = torch._C._functorch.maybe_current_level() is not None  # of this thread
        makes_graph = args[_CREATE_GRAPH] and not transformed
        running = mode.gpu.running
        outer, running.is_transformed = running.is_transformed, transformed
        try:
            if makes_graph and before == "main":
                return mode.thread.submit(_in_thread, mode, run, args, options).result()
            with mode:
                return run(*args, **options)
        finally:
            context.thread, running.is_transformed = before, outer
            for leaf in mode.leaves():
                if leaf.grad is not None and leaf.grad.layout is torch.strided:
                    mode.gpu.storage_of(leaf.grad).purpose = Purpose.GRADIENTS
            mode.begins("after backward")

    return backward


def _number_from(number: int) -> None:
    """Have this thread number nodes from here on, as far as the one that begins the step has."""
    x = torch.ones((), requires_grad=True)
    while torch._C._autograd._get_sequence_nr() < number:
        x.neg()


def _in_thread(mode: Standing, run: Callable[..., Any], args: Any, options: Any) -> Any:
    """Run a backward pass that makes a graph in a thread of its own, as on a GPU.

    Nodes of a graph are numbered by thread, and of those that are ready the one with the highest
    number runs first (aten/src/ATen/SequenceNumber.h; engine.cpp, CompareNodeTaskTime).
    """
    alone, python = torch.autograd.set_multithreading_enabled(False), enable_python_dispatcher()
    with alone, mode.gpu, python, mode:
        return run(*args, **options)


def _say_activations(mode: Standing) -> None:
    """Name what is kept for backward."""
    purposes = context.tape.purposes
    for index in mode.gpu.alive_since(0):
        if purposes[index] is Purpose.TEMPORARIES:
            purposes[index] = Purpose.ACTIVATIONS


def _label(mode: Standing, optimizer: Any) -> None:
    """Say what an optimizer's states are for."""
    for state in optimizer.state.values():
        for x in state.values() if isinstance(state, dict) else ():
            if mode.traced_of(x) is not None:
                mode.gpu.storage_of(mode.fake_of(x)).purpose = Purpose.OPTIMIZER_STATES


def allocate(
    found: Found, given: Sequence[Any], mode: Standing, met: Ids, moved: Ids
) -> tuple[list[Any], Ids]:
    """Put on the GPU modules, then what a step is called with, then states that optimizers have.

    `met` lies there, too; `moved` the step puts there itself. Returns the parameters, and which
    other tensors lie there.
    """
    parameters: dict[int, Any] = {}
    for module in _with_weights(found):
        _lay(module, mode)
        parameters |= {id(p): p for p in module.parameters()}
        own = Module()
        mode.shadows |= shadow(own, module, lambda _weight: None)
        register(own, context.tape)
        head = getattr(module, "get_output_embeddings", lambda: None)()
        mode.head = id(head) if head is not None else mode.head
    mode.reached = {id(x) for x in found.tensors}
    inputs = [x for x in given if isinstance(x, torch.Tensor | Mapping | Sequence)]
    here = {id(x) for x in tensors_in(inputs, torch.Tensor)} - parameters.keys() - moved | met
    memory = {x.untyped_storage().data_ptr(): x for x in parameters.values() if not x.is_meta}
    for x in found.tensors:
        is_plain = x.layout is torch.strided and x.numel() and not x.is_meta
        whole = memory.get(x.untyped_storage().data_ptr()) if is_plain else None
        is_trained = isinstance(x, torch.nn.Parameter) or (x.requires_grad and x.is_leaf)
        if whole is not None and not mode.is_standing(x):  # detached, or a view
            mode.show(x, whole)
        elif is_trained and id(x) not in here:
            mode.lay(x, Purpose.WEIGHTS, "parameter")
            parameters[id(x)] = x
    for x in found.tensors:
        if id(x) in here:
            mode.lay(x, Purpose.INPUTS)
    _lay_states(found, parameters.values(), mode)
    return list(parameters.values()), here


def _with_weights(found: Found) -> list[torch.nn.Module]:
    """Return the modules but those on meta beside weights elsewhere, which run their code."""
    own = {id(m): list[torch.Tensor](m.parameters()) for m in found.modules}
    trained = [p for weights in own.values() for p in weights]
    trained += [x for x in found.tensors if x.requires_grad]
    if all(p.is_meta for p in trained):
        return found.modules
    return [m for m in found.modules if not any(p.is_meta for p in own[id(m)])]


def _lay_states(found: Found, parameters: Iterable[Any], mode: Standing) -> None:
    """Put on the GPU gradients, then states of optimizers."""
    for p in parameters:
        if p.grad is not None:
            mode.fake_of(p).grad = mode.lay(p.grad, Purpose.GRADIENTS)
    states = [state for own in found.optimizers for state in own.state.values()]
    for x in [x for state in states for x in state.values() if isinstance(x, torch.Tensor)]:
        if x.dim() or x.device.type == GPU.type:
            mode.lay(x, Purpose.OPTIMIZER_STATES)


def _lay(module: torch.nn.Module, mode: Standing) -> None:
    """Put a module there; the counter of an AveragedModel is the host's (optim/swa_utils.py)."""
    for child in module.children():
        _lay(child, mode)
    own = (("parameter", module._parameters), ("buffer", module._buffers))
    for operation, x in [(name, x) for name, tensors in own for x in tensors.values()]:
        if x is not None and x.dtype in DTYPE and x is not getattr(module, "n_averaged", None):
            mode.lay(x, Purpose.WEIGHTS, operation)
            for scales in scales_of(x):
                mode.lay(scales, Purpose.WEIGHTS, operation)
