"""A step of one's own on the tape: its forward, backward and optimizer run as they are written.

    for _ in range(steps):
        result = step(*given)

Modules, optimizers and tensors that the step uses (`eager.found`) are on the GPU first, where
`.to("cuda")` puts them; what the step changes in them is put back. `result` is what a script's loop
holds of the last step while the next one runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from traceback import extract_tb
from typing import Any

from vrambudget.eager import numbers
from vrambudget.eager.found import as_they_were, found_in
from vrambudget.eager.running import allocate, inside, on_the_gpu
from vrambudget.eager.standing import Standing
from vrambudget.engine.context import Platform, context, recording
from vrambudget.errors import NotModelledError, TooLargeError
from vrambudget.ops.workspaces import warm_up
from vrambudget.tape.events import Tape
from vrambudget.tape.marks import Phase
from vrambudget.traced import kernels
from vrambudget.traced.lines import own_line
from vrambudget.traced.tensor import REHEARSE, dtype_of


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
    prepare: Callable[[Standing], None] = lambda _mode: None,
    met: frozenset[int] = frozenset(),
    moved: frozenset[int] = frozenset(),
) -> Stepped:
    """Return what `steps` calls of `step` leave on the tape. Raises NotModelledError.

    `warm`: the process has trained before. `prepare` is called once all lies on the GPU.

    What it uses beside the GPU's tensors without a move was there before (`met`), and of what it is
    called with the host has what it moves (`moved`): run anew then.
    """
    kernels.unchecked.clear()
    numbers.decided.clear()
    numbers.assumed.clear()
    found = found_in(step, *given)
    if not found.modules and not any(x.requires_grad for x in found.tensors):
        raise NotModelledError(
            f"{_name(step)} uses no module and trains nothing",
            hint="pass what it works on: vrambudget.trace(step, model, optimizer, batch)",
        )
    with recording(platform) as tape, as_they_were(found):
        if warm:
            warm_up()
        with on_the_gpu() as mode:
            parameters, here = allocate(found, given, mode, met, moved - met)
            prepare(mode)
            tape.mark(0, Phase.FORWARD, resets_allocator=True)
            held = _run(step, given, steps, mode)
            tape.close()
            further = mode.met & mode.reached - met, mode.moved & here - moved - met
        unknown = max(context.unknown_workspaces, default=0)
        del held, mode
    if any(further):
        again: Any = {"steps": steps, "platform": platform, "warm": warm, "prepare": prepare}
        return stepped(step, given, **again, met=met | further[0], moved=moved | further[1])
    trained = [p for p in parameters if p.requires_grad]
    return Stepped(
        tape,
        sum(p.numel() for p in parameters),
        sum(p.numel() for p in trained),
        " and ".join(dict.fromkeys(type(module).__name__ for module in found.modules))
        or "parameters of no module",
        tuple(dict.fromkeys(type(x).__name__ for x in found.optimizers)),
        frozenset(dtype_of(p.dtype).name for p in parameters),
        tuple(kernels.not_modelled()),
        tuple(numbers.notes()),
        unknown,
    )


def _run(step: Callable[..., Any], given: Sequence[Any], steps: int, mode: Standing) -> Any:
    """Call the step as a loop does; return what it returned last."""
    result: Any = None
    for number in range(steps):
        mode.begins = Marks(number).begins
        try:
            with inside(mode):
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


def _name(step: Callable[..., Any]) -> str:
    return getattr(step, "__name__", type(step).__name__)
