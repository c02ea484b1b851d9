"""A component of a pipeline as a program: one call of it, with the arguments that a pipeline gives.

Sizes are those of its inputs, by name and dimension ("hidden_states_1"), and whole numbers among
its arguments; those that agree at all probes are one. A denoiser is recorded with gradients, so the
same program trains and generates; what it checkpoints is noted, too.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from picture_signatures import (
    Caller,
    Component,
    symbols_by_number,
    symbols_of,
    whole_multiples,
)
from picture_units import checkpoints, starred, with_units

from vrambudget.engine.autocast import autocast
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import ModelOptions, context, no_grad
from vrambudget.engine.context import recording as on_tape
from vrambudget.engine.module import Module, register
from vrambudget.errors import NotModelledError
from vrambudget.ops.reduce import mean_all
from vrambudget.program.component import PlayedComponent
from vrambudget.program.form import PIECES, TYPES, Program
from vrambudget.recording.checking import Peaks, UnequalError
from vrambudget.recording.listener import Listener
from vrambudget.recording.models import note_model
from vrambudget.recording.programs import PRECISIONS, Probe, RecordedModel, program_of
from vrambudget.recording.tracing import listening
from vrambudget.scenario import platform_of
from vrambudget.tape.events import Tape
from vrambudget.tape.marks import Phase
from vrambudget.tape.replay import replay
from vrambudget.traced import kernels
from vrambudget.traced.build import allocated
from vrambudget.traced.live import Live, tensors_in
from vrambudget.traced.mode import TracingMode
from vrambudget.training.inputs import on_device

PLATFORM = platform_of(None, "2.11")
Sizes = Mapping[str, int]


class Way(NamedTuple):
    """How a component is called: to generate, to train adapters of it, or to train it."""

    trains: bool
    is_frozen: bool
    precisions: tuple[str, ...]


WAYS = {
    "forward": Way(trains=False, is_frozen=False, precisions=("bf16", "fp32")),
    "lora": Way(trains=True, is_frozen=True, precisions=("bf16-amp",)),
    "full": Way(trains=True, is_frozen=False, precisions=("amp-bf16",)),
}
WAYS["blocks"] = WAYS["lora"]  # with adapters on modulation, too


class Recorder:
    """Records a component's calls; `make(dtype)` returns the module, adapters are on `targets`."""

    def __init__(self, make: Callable[[str], Any], way: Way, targets: Sequence[str] = ()) -> None:
        self._make, self._way = make, way
        self._adapted = tuple(f".{name}.weight" for name in targets)
        self._kept_bytes = 0  # that its modules keep after a call, and a program does not

    def traced(
        self, component: Component, precision: str, listener: Listener | None = None
    ) -> Tape:
        """Return what one call leaves."""
        weights, _ = PRECISIONS[precision]
        caller = Caller(self._make(weights), component)
        caller.train(self._way.trains)
        for name, p in caller.named_parameters():
            p.requires_grad_(self._is_trained(f".{name}"))
        kernels.unchecked.clear()
        options = ModelOptions(dtype=TYPES[weights])
        listens = listening(listener) if listener else nullcontext()
        with listens, on_tape(PLATFORM, options) as tape:
            mode = TracingMode()
            allocated(caller, mode)
            model = Live(caller, mode, component.known(), lambda _outputs, _inputs: None)
            if listener:
                note_model(listener, model, 0)
            self._run(model, component, precision)
            tape.close()
            del model
        self._kept_bytes = _kept_bytes(caller)
        if kernels.unchecked:
            names = ", ".join(sorted(kernels.unchecked))
            raise NotModelledError(f"what the kernels of {names} allocate besides is not known")
        return tape

    def _is_trained(self, name: str) -> bool:
        """Whether a weight has a gradient: beside adapters it stands for what they add."""
        frozen = self._way.is_frozen and not name.endswith(self._adapted)
        return self._way.trains and not frozen

    def _run(self, model: Module, component: Component, precision: str) -> None:
        """Call a model once, and backward from its first output."""
        way, computes = self._way, PRECISIONS[precision][1]
        register(model, context.tape)
        context.tape.mark(0, Phase.FORWARD)
        model.train(mode=way.trains)
        batch = {name: on_device(x) for name, x in component.inputs(TYPES[computes]).items()}
        next(iter(batch.values())).requires_grad = way.is_frozen  # as behind an adapter
        region = autocast(TYPES[computes] if "amp" in precision else None)
        with nullcontext() if way.trains else no_grad(), region:
            outputs = model(**batch)  # a loop, or a pipeline, holds the inputs meanwhile
        if way.trains:
            run_backward(mean_all(outputs.logits))
        context.tape.mark(0, Phase.STEP_END)

    def program(
        self, seen: Sequence[tuple[Component, str]], source: dict[str, Any], depths: Sizes
    ) -> Program:
        """Return the program of calls at several sizes and precisions."""
        names = symbols_of([component for component, _ in seen])
        probes = [
            Probe(sizes, precision, self._heard(component, precision))
            for sizes, (component, precision) in zip(names, seen, strict=True)
        ]
        stacks = probes[0].recording.facts["stacks"]
        keys = {depth: key for key, depth in depths.items()}
        of_stacks = {stack: keys[n] for stack, n in stacks.items() if n in keys}
        model = RecordedModel(source={**source, "inputs": "own"}, depths=of_stacks, is_nested=True)
        program = program_of(probes, model)
        program.source |= source
        program.source["numbers"] = symbols_by_number(seen, names)
        again = self._checkpointed(seen[0][0]) if self._way.trains else []
        program.code = with_units(program.code, again)
        program.stacks = [[*row[:5], checkpoints(row[0], again)] for row in program.stacks]
        program.stacks = [row for row in program.stacks if row[3] is not None or row[5]]
        program.guards += whole_multiples(names)
        counts = [row[0][1:] for word, row in program.code if word == "repeat" and row[0][0] == "="]
        program.guards += [[n, ">", "0", True, PIECES] for n in counts]
        return program

    def _heard(self, component: Component, precision: str) -> Listener:
        listener = Listener()
        listener.hears_all_layers = True
        self.traced(component, precision, listener)
        return listener

    def _checkpointed(self, component: Component) -> list[str]:
        """Return which modules a denoiser runs again in backward: "*" for all of a list."""
        part = self._make("bfloat16")
        paths = {id(module): path for path, module in part.named_modules()}
        found = list[str]()

        def noted(module: Any, *args: Any, **kwargs: Any) -> Any:
            path = paths.get(id(module))
            if path is None:
                raise NotModelledError(f"{module} is checkpointed, which is no module")
            found.append(path)
            return module(*args, **kwargs)

        if not getattr(part, "_supports_gradient_checkpointing", False):
            return []
        part.enable_gradient_checkpointing(noted)
        caller = Caller(part, component)
        caller.train()
        with on_tape(PLATFORM):
            mode = TracingMode()
            allocated(caller, mode)
            model = Live(caller, mode, {}, lambda *_: None)
            given = component.inputs(TYPES["bfloat16"])
            model(**{name: on_device(x) for name, x in given.items()})
        called = dict.fromkeys(f"part.{path}" for path in found)
        every = Counter(path.rpartition(".")[0] for path in called)
        whole = {x for x, n in every.items() if n == len(part.get_submodule(x[len("part.") :]))}
        names = (starred(x) if x.rpartition(".")[0] in whole else x for x in called)
        return [*dict.fromkeys(names)]

    def check(self, program: Program, component: Component, precision: str, sizes: Sizes) -> None:
        """Raise UnequalError where a program does not do at sizes of no probe what is traced."""
        expected = peaks_of(self.traced(component, precision))
        weights, _ = PRECISIONS[precision]
        with on_tape(PLATFORM, ModelOptions(dtype=TYPES[weights])) as tape:
            model = PlayedComponent(program, sizes)
            model.numbers = component.signature.sizes
            for name, p in model.weights.items():
                p.requires_grad = p.requires_grad and self._is_trained(f".{name[1:]}")
            self._run(model, component, precision)
            tape.close()
            del model
        actual = peaks_of(tape)
        without = *(n - self._kept_bytes for n in expected[:2]), expected[2]
        if not _are_equal(actual, expected) and not _are_equal(actual, without):
            raise UnequalError(
                f"{component.name}: the program comes to {actual} bytes, the traced model to"
                f" {expected} in {precision}"
            )


def _kept_bytes(part: torch.nn.Module) -> int:
    """Return the bytes of tensors that are plain attributes of modules: Z-Image's rotary tables."""
    registered = {id(x) for x in (*part.parameters(), *part.buffers())}
    found = {
        id(x): x.numel() * x.element_size()
        for module in part.modules()
        for x in tensors_in([*vars(module).values()], torch.Tensor)
    }
    return sum(n for key, n in found.items() if key not in registered)


def _are_equal(actual: Peaks, expected: Peaks) -> bool:
    """Whether two peaks are the same to a millionth, and what is reserved to a thousandth.

    In an order of its own the allocator may reserve another segment of 2 MiB.
    """
    shares = [abs(a - b) / b for a, b in zip(actual, expected, strict=True)]
    return max(shares[:2]) < 1e-6 and shares[2] < 1e-3


def peaks_of(tape: Tape) -> Peaks:
    """Return requested, allocated and reserved bytes at the peak."""
    peak = replay(tape).peak
    return peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes
