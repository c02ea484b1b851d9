"""A step of one's own on the tape: its forward, backward and optimizer run as they are written.

    for _ in range(steps):
        result = step(*given)

Modules, optimizers and tensors that the step uses (`followed.found`) are on the card first, where
`.to("cuda")` puts them; what the step changes in them is put back. `result` is what a script's loop
holds of the last step while the next one runs.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any

import torch

from vrambudget.engine.context import Platform, context, made_for, recording
from vrambudget.engine.module import Module, register
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError, TooLargeError
from vrambudget.ops.workspaces import warm_up
from vrambudget.tape.events import Purpose, Tape
from vrambudget.tape.marks import Phase
from vrambudget.traced import kernels, numbers
from vrambudget.traced.build import allocated
from vrambudget.traced.counted import CARD, REHEARSE, counted, dtype_of
from vrambudget.traced.found import Found, as_they_were, found_in
from vrambudget.traced.known import of_tensor
from vrambudget.traced.lines import own_line
from vrambudget.traced.mode import Following
from vrambudget.traced.patches import running
from vrambudget.traced.shadows import as_parameter, shadow
from vrambudget.traced.stepping import stepping


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a step left: its tape, and what it was made of."""

    tape: Tape
    parameters: int
    trainable: int
    model: str
    optimizers: tuple[str, ...]
    weights: frozenset[str]  # their types
    not_modelled: tuple[str, ...]
    notes: tuple[str, ...]
    unknown_workspace_bytes: int = 0  # most that a convolution touches whose workspace is not known


def stepped(
    step: Callable[..., Any],
    given: Sequence[Any],
    *,
    steps: int,
    platform: Platform,
    warm: bool = False,
    prepare: Callable[[Any], None] = lambda _mode: None,
    way: "Way | None" = None,
) -> Stepped:
    """Return what `steps` calls of `step` leave on the tape. Raises NotModelledError.

    `warm`: the process has trained before. `prepare` is called once all lies on the card. `way`:
    how torch's calls are counted; by default on counted tensors.
    """
    way = way or COUNTED
    kernels.unchecked.clear()
    numbers.decided.clear()
    found = found_in(step, *given)
    if not found.modules:
        raise NotModelledError(
            f"{_name(step)} uses no module",
            hint="pass what it works on: vrambudget.follow(step, model, optimizer, batch)",
        )
    with recording(platform) as tape, as_they_were(found):
        if warm:
            warm_up()
        with way.mode() as mode:
            parameters = way.allocate(found, given, mode)
            prepare(mode)
            tape.mark(0, Phase.FORWARD, resets_allocator=True)
            held = _run(step, given, steps, mode, way)
            tape.close()
        unknown = max(context.unknown_workspaces, default=0)
        del held, mode
    trained = [p for p in parameters if p.requires_grad]
    return Stepped(
        tape,
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in trained),
        " and ".join(dict.fromkeys(type(module).__name__ for module in found.modules)),
        tuple(dict.fromkeys(type(x).__name__ for x in found.optimizers)),
        frozenset(dtype_of(p.dtype).name for p in parameters),
        tuple(kernels.not_modelled()),
        tuple(numbers.notes()),
        unknown,
    )


@dataclass(frozen=True, slots=True)
class Way:
    """How a step's calls of torch are counted.

    `mode` is entered for all of it, `allocate` puts on the GPU what the step uses and returns its
    parameters, and `inside` is entered for each call of the step.
    """

    mode: Callable[[], AbstractContextManager[Any]]
    allocate: Callable[[Found, Sequence[Any], Any], list[Any]]
    inside: Callable[[Any], AbstractContextManager[None]]


def _run(step: Callable[..., Any], given: Sequence[Any], steps: int, mode: Any, way: Way) -> Any:
    """Call the step as a loop does; return what it returned last."""
    result: Any = None
    for number in range(steps):
        mode.begins = Marks(number).begins
        try:
            with way.inside(mode):
                result = step(*given)
        except (NotModelledError, TooLargeError) as error:
            error.where = error.where or _line(error)
            raise
        except (Exception, SystemExit) as error:
            ended = "ended the script" if isinstance(error, SystemExit) else "fails"
            raise NotModelledError(
                f"{_name(step)} {ended} when it is traced: {type(error).__name__}: {error}",
                where=_line(error),
                hint=REHEARSE,
            ) from error
        context.tape.mark(number, Phase.STEP_END)
    return result


def _line(error: BaseException) -> str | None:
    """Return the line of the user's code where an error comes from."""
    frames = extract_tb(error.__traceback__)
    return own_line((frame.filename, frame.lineno or 0) for frame in reversed(frames))


class Marks:
    """Notes on the tape when a phase of a step begins."""

    def __init__(self, number: int) -> None:
        self.number, self.phase = number, str(Phase.FORWARD)
        if number:
            context.tape.mark(number, Phase.FORWARD)

    def begins(self, phase: str) -> None:
        """Hear that a phase begins; what comes after backward is forward once a module runs."""
        if phase == "module":
            if self.phase != "after backward":
                return
            phase = Phase.FORWARD
        if phase not in {self.phase, "after backward"}:
            context.tape.mark(self.number, phase)
        self.phase = phase


def _allocated(found: Found, given: Sequence[Any], mode: Following) -> list[torch.nn.Parameter]:
    """Allocate modules, then what the step is called with, then states that optimizers have."""
    parameters: dict[int, torch.nn.Parameter] = {}
    for module in found.modules:
        allocated(module, mode)
        parameters |= {id(p): p for p in module.parameters()}
        own = Module()
        mode.shadows |= shadow(own, module, lambda weight: _parameter(mode, weight))
        register(own, context.tape)
        head = getattr(module, "get_output_embeddings", lambda: None)()
        mode.head = id(head) if head is not None else mode.head
    loose = [x for x in found.tensors if isinstance(x, torch.nn.Parameter)]
    parameters |= {id(p): p for p in loose}  # of no module: a temperature, a prompt
    _lay_loose(loose, mode)
    for x in [x for x in given if isinstance(x, torch.Tensor)]:
        _lay(x, mode, Purpose.INPUTS)
    for p in parameters.values():
        if p.grad is not None:
            ours = mode.counted_of(p)
            assert ours is not None  # noqa: S101 - it was allocated
            ours.v.grad = _lay(p.grad, mode, Purpose.GRADIENTS)
    for optimizer in found.optimizers:
        for state in optimizer.state.values():
            for x in state.values():
                if isinstance(x, torch.Tensor) and (x.dim() or x.device.type == CARD.type):
                    _lay(x, mode, Purpose.OPTIMIZER_STATES)
    return list(parameters.values())


def _lay_loose(parameters: list[torch.nn.Parameter], mode: Following) -> None:
    for p in parameters:
        _lay(p, mode, Purpose.WEIGHTS)
        _parameter(mode, p)


def _parameter(mode: Following, weight: torch.Tensor) -> Any:
    ours = mode.counted_of(weight)
    if ours is None:
        return None
    ours.v = as_parameter(ours.v)
    return ours.v


def _lay(x: torch.Tensor, mode: Following, purpose: Purpose) -> Tensor:
    known = mode.counted_of(x)
    if known is not None:
        return known.v
    with made_for(purpose):
        v = empty(tuple(x.shape), dtype_of(x.dtype))
    v.requires_grad = bool(x.requires_grad)
    is_known = x.is_cpu and not x.is_floating_point()
    mode.weights[id(x)] = counted(v, of_tensor(x) if is_known else None)
    return v


@contextmanager
def _mode() -> Iterator[Following]:
    mode = Following()
    mode.is_step = True
    yield mode


@contextmanager
def _inside(mode: Following) -> Iterator[None]:
    with running(mode), stepping(mode):
        yield


COUNTED = Way(_mode, _allocated, _inside)
"""On counted tensors, by the engine's autograd."""


def _name(step: Callable[..., Any]) -> str:
    return getattr(step, "__name__", type(step).__name__)
