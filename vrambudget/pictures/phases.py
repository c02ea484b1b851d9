"""The schedule of a pipeline: which component runs, and what lies on the GPU meanwhile.

    none          all components, all the time
    model         the one that runs: it goes to the GPU before its call, the one before it back
    sequential    the weights of one layer, while it runs

Packed components (nf4) are made on the GPU, all of them, before any is moved to the host.

A call of a component is a phase of the tape: encode text, encode images, denoise, decode.

Source: diffusers/pipelines/pipeline_utils.py (enable_model_cpu_offload,
enable_sequential_cpu_offload); accelerate/hooks.py (CpuOffload.pre_forward, AlignDevicesHook).
Not modelled: group offload, which loads blocks ahead on another stream.
"""

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.pictures.job import Offload
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.steady import run
from vrambudget.traced.counted import counted, dtype_of
from vrambudget.traced.mode import Following

_CALLS = ("forward", "encode", "decode")


class Schedule:
    """Marks the phases of a pipeline on the tape, and moves its components as its offload does."""

    def __init__(self, pipe: Any, offload: Offload, packed: Collection[str] = ()) -> None:
        self.parts: dict[str, torch.nn.Module] = {
            name: part
            for name, part in pipe.components.items()
            if isinstance(part, torch.nn.Module)
        }
        self.offload = offload
        self._waiting = {*packed} if offload != "none" else set[str]()
        self._loaded: str | None = None
        self._phase = ""

    def begin(self, mode: Following) -> None:
        """Take over the components' calls; they have been replayed."""
        for name, part in self.parts.items():
            if self.offload != "none":
                if name not in self._waiting:
                    _leave(mode, part)
                _moved_later(mode, part)
            if self.offload == "sequential":
                _by_layer(mode, part)
            for call in _CALLS:
                if callable(getattr(part, call, None)):
                    setattr(part, call, self._watched(mode, name, call, getattr(part, call)))

    def _watched(
        self, mode: Following, name: str, call: str, function: Callable[..., Any]
    ) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            while self._waiting:
                _leave(mode, self.parts[self._waiting.pop()])
            phase = _phase_of(name, call)
            moves = self.offload == "model" and self._loaded != name
            if moves and self._loaded is not None:
                _leave(mode, self.parts[self._loaded])
            if phase != self._phase:
                context.tape.mark(0, phase)
                self._phase = phase
            if moves:
                _arrive(mode, self.parts[name])
                self._loaded = name
            return function(*args, **kwargs)

        return called


def _phase_of(name: str, call: str) -> str:
    if name.startswith("text_encoder"):
        return "encode text"
    if name.startswith(("vae", "vqvae", "movq")):
        return "decode" if call == "decode" else "encode images"
    if name.startswith(("image_encoder", "safety", "feature")):
        return "encode images"
    return "denoise"


def _tensors(mode: Following, module: torch.nn.Module, *, recurse: bool) -> Iterator[Tensor]:
    """Yield a module's tensors in the order in which `module.to` moves them, shared ones once."""
    seen = set[int]()
    children = module.children() if recurse else ()
    for child in children:
        for v in _tensors(mode, child, recurse=True):
            if id(v) not in seen:
                seen.add(id(v))
                yield v
    for x in (*module._parameters.values(), *module._buffers.values()):  # noqa: SLF001
        found = None if x is None else mode.counted_of(x)
        if found is not None and id(found.v) not in seen:
            seen.add(id(found.v))
            yield found.v


def _leave(mode: Following, module: torch.nn.Module, *, recurse: bool = True) -> None:
    nowhere: Any = None
    for v in _tensors(mode, module, recurse=recurse):
        v.storage = nowhere


def _arrive(mode: Following, module: torch.nn.Module, *, recurse: bool = True) -> None:
    context.operation = "to_device"
    with made_for(Purpose.WEIGHTS):
        for v in _tensors(mode, module, recurse=recurse):
            if v.storage is None:
                v.storage = empty(v.shape, v.dtype).storage


def _moved_later(mode: Following, part: Any) -> None:
    """Let `.to(dtype)` of a component that is on the host change what comes to the GPU later."""

    def to(*args: Any, **kwargs: Any) -> Any:
        given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)]
        for x in (*part.parameters(), *part.buffers()) if given else ():
            found = mode.counted_of(x)
            if found is not None and found.v.dtype.is_floating_point:
                found.v.dtype = dtype_of(given[0])
                mode.weights[id(x)] = counted(found.v)  # which shows the new type to the code
        return part

    part.to = to


def _by_layer(mode: Following, part: torch.nn.Module) -> None:
    def before(module: torch.nn.Module, *_: Any) -> None:
        _arrive(mode, module, recurse=False)

    def after(module: torch.nn.Module, *_: Any) -> None:
        _leave(mode, module, recurse=False)

    for module in part.modules():
        if module._parameters or module._buffers:  # noqa: SLF001 - its own ones
            module.register_forward_pre_hook(before)
            module.register_forward_hook(after)


def phase_peaks(tape: Tape) -> dict[str, int]:
    """Return the most bytes that are allocated in each phase, in the order in which they begin."""
    allocator = allocator_for(tape)
    peaks: dict[str, int] = {}
    phase = ""
    for mark, _ in run(tape, allocator):
        if phase:
            peaks[phase] = max(peaks.get(phase, 0), allocator.peak_allocated_bytes)
        allocator.reset_peaks()
        phase = mark.phase
    peaks.pop("step_end", None)
    return peaks
