"""The schedule of a pipeline: which component runs, and what lies on the GPU meanwhile.

    none          all components, all the time
    model         the one that runs: it goes to the GPU before its call, the one before it back,
                  and PyTorch's cache is emptied between
    sequential    the weights of one layer, while it runs
    group         the same, as diffusers' group offload of leaves does without streams

Packed components (nf4) are made on the GPU, all of them, before any is moved to the host.
A base in fp8 is cast layer by layer (layerwise casting): a layer's weights are in 16 bit while it
runs.

A call of a component is a phase of the tape: encode text, encode images, denoise, decode.

Source: diffusers/pipelines/pipeline_utils.py (enable_model_cpu_offload,
enable_sequential_cpu_offload), hooks/group_offloading.py, hooks/layerwise_casting.py;
accelerate/hooks.py (CpuOffload.pre_forward, with clear_device_cache; AlignDevicesHook), 1.15.
Not modelled: groups of several blocks, and streams that load them ahead.
"""

import re
from collections.abc import Mapping

from vrambudget.dtypes import float8_e4m3fn
from vrambudget.engine.context import context, made_for
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.pictures.job import Offload
from vrambudget.pictures.parts import PipelinePart
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.steady import run

_KEPT_WIDE = ("pos_embed", "patch_embed", "norm", "^proj_in$", "^proj_out$")
_ROWS = 2  # dimensions of a linear layer's weight


class PhaseMarker:
    """Marks the phases of a pipeline on the tape, and moves its components as its offload does."""

    def __init__(self, parts: Mapping[str, PipelinePart], offload: Offload) -> None:
        self.parts, self.offload = parts, offload
        self._waiting = [p for p in parts.values() if p.packs and offload != "none"]
        self._loaded: PipelinePart | None = None
        self._phase = ""

    def begin(self) -> None:
        """Take from the GPU what a pipeline that offloads has there no longer."""
        for part in self.parts.values():
            if self.offload != "none" and part not in self._waiting:
                part.leave()
            if part.base == "fp8":
                _in_float8(part)
            if self.offload in {"sequential", "group"} or part.base == "fp8":
                part.model.entered = _Layers(part, moves=self.offload not in {"none", "model"}).at

    def before(self, name: str, call: str) -> None:
        """Do what is done before a component's call."""
        left = bool(self._waiting)
        while self._waiting:
            self._waiting.pop().leave()
        part, phase = self.parts[name], phase_of(name, call)
        moves = self.offload == "model" and self._loaded is not part
        if moves and self._loaded is not None:
            self._loaded.leave()
            left = True
        if left or phase != self._phase:
            context.tape.mark(0, phase, empties_cache=left)
            self._phase = phase
        if moves:
            part.arrive()
            self._loaded = part


class _Layers:
    """What the layers of a component do with their own weights while they run."""

    def __init__(self, part: PipelinePart, *, moves: bool) -> None:
        self._part, self._moves, self._active = part, moves, list[str]()
        self._own: dict[str, list[Tensor]] = {}
        for name, v in part.model.weights.items():
            path = name[1:].rpartition(".")[0]
            found = self._own.setdefault(path, [])
            if all(v is not x for x in found):
                found.append(v)
                found += part.packs[id(v)].tables if id(v) in part.packs else ()

    def at(self, path: str) -> None:
        """Hear that instructions of a module follow; "" at the end of the call."""
        words = path.split(".")
        chain = [".".join(words[:n]) for n in range(1, len(words) + 1)]
        chain = [p for p in chain if p in self._own]
        for left in reversed([p for p in self._active if p not in chain]):
            self._after(self._own[left])
        for entered in [p for p in chain if p not in self._active]:
            self._before(self._own[entered])
        self._active = chain

    def _before(self, tensors: list[Tensor]) -> None:
        if self._moves:
            self._part.arrive(tensors)
        self._cast(tensors, widens=True)

    def _after(self, tensors: list[Tensor]) -> None:
        self._cast(tensors, widens=False)
        if self._moves:
            self._part.leave(tensors)

    def _cast(self, tensors: list[Tensor], *, widens: bool) -> None:
        """Cast a layer's weights from float8, or back to it."""
        context.operation = "layerwise_cast"
        for v in tensors:
            if id(v) in self._part.in_float8:
                v.dtype = self._part.dtype if widens else float8_e4m3fn
                if not widens and self._part.give_back(v):
                    continue
                with made_for(Purpose.WEIGHTS):
                    v.storage = empty(v.shape, v.dtype).storage


def _in_float8(part: PipelinePart) -> None:
    """Keep the weights of linear layers and convolutions in float8, as diffusers does."""
    source = part.program.source
    patterns = (*_KEPT_WIDE, *source["kept_wide"], *source["kept_float32"])
    by_path: dict[str, list[Tensor]] = {}
    for name, v in part.model.weights.items():
        by_path.setdefault(name[1:].rpartition(".")[0], []).append(v)
    for path, tensors in by_path.items():
        words = path.split(".")[1:]
        prefixes = [".".join(words[:n]) for n in range(1, len(words) + 1)]
        if any(re.search(pattern, prefix) for pattern in patterns for prefix in prefixes):
            continue
        if part.model.kind_of(path) == "Linear" or tensors[0].ndim > _ROWS:
            part.in_float8.update(id(v) for v in tensors if v.dtype is part.dtype)
    for v in part.tensors():
        if id(v) in part.in_float8:
            v.dtype = float8_e4m3fn
            if v.storage is not None:
                with made_for(Purpose.WEIGHTS):
                    v.storage = empty(v.shape, v.dtype).storage


def phase_of(name: str, call: str) -> str:
    """Return the phase that a component's call is."""
    if name.startswith("text_encoder"):
        return "encode text"
    if name.startswith(("vae", "vqvae", "movq")):
        return "decode" if call == "decode" else "encode images"
    if name.startswith(("image_encoder", "safety", "feature")):
        return "encode images"
    return "denoise"


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
