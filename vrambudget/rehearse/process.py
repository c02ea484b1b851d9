"""Run the user's command with the stand-ins in its environment, and see it off.

The command runs in a session of its own, so that a signal reaches all of its processes; nothing of
it outlives the call. Its output and its input are ours, untouched. SIGINT and SIGTERM that come to
us are handed on; a command that does not end in time afterwards is killed.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from vrambudget.config.gpus import Gpu
from vrambudget.files import cache_folder
from vrambudget.rehearse import card
from vrambudget.rehearse.hook.vrambudget_hook.launch import cards_environment, ranks_environment
from vrambudget.rehearse.launchers import visible_cards

HOOK = Path(__file__).parent / "hook"
GRACE_SECONDS = 20.0  # from the time limit, or from an interrupt, to the kill
_POLL_SECONDS = 0.2
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True, slots=True)
class Plan:
    """What the recorder in the command's Python is to do; it travels as JSON in the environment."""

    folder: Path
    libraries: tuple[Path, ...]
    steps: int | None = None
    timeout: float | None = None
    stacks: str = "python"  # "all": C++ frames too, for names of operations; "none": no history
    events: int = 400_000  # of the allocator's history; older ones are forgotten
    marks: int = 2_000
    snapshot: bool = False
    ranks: int | None = None  # run as one of so many
    rank: int = 0
    each: int | None = None  # of the ranks, on one machine
    values: tuple[str, int] = ("zeros", 0)  # what unknown numbers are, and the seed of random ones
    routing: str | None = None  # how tokens spread over experts; None: uniformly, which is told
    told: Mapping[str, str] = field(default_factory=dict)  # what mpirun or srun tells a rank

    def to_json(self, gpu: Gpu) -> str:
        """Return what the recorder reads."""
        major, minor = gpu.compute_capability
        return json.dumps(
            {
                "folder": str(self.folder),
                "libraries": [str(path) for path in self.libraries],
                "steps": self.steps,
                "timeout": self.timeout,
                "stacks": self.stacks,
                "events": self.events,
                "marks": self.marks,
                "snapshot": self.snapshot,
                "ranks": self.ranks,
                "rank": self.rank,
                "values": self.values,
                "routing": self.routing,
                "grace": GRACE_SECONDS / 2,
                "capability": 10 * major + minor,
            }
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended; `cut`: we ended it ("timeout"), or the user did ("interrupt")."""

    exit_code: int
    seconds: float
    cut: str | None = None


def environment(
    gpu: Gpu, plan: Plan, base: Mapping[str, str], also: Path | None = None
) -> dict[str, str]:
    """Return the command's environment; what Triton compiles is kept apart from real cards'.

    Sets of strings are walked in one order, so that two rehearsals are equal: transformers computes
    Gemma 3's rotary tables in such an order (modeling_gemma3.py, Gemma3TextModel.forward).
    """
    compiled = cache_folder() / "compiled"
    folders = [str(HOOK), str(also) if also else "", base.get("PYTHONPATH", "")]
    return {
        "PYTHONHASHSEED": "0",
        **base,
        **card.environment(gpu),
        "VRAMBUDGET_REHEARSAL": plan.to_json(gpu),
        "VRAMBUDGET_FOLDER": str(plan.folder),
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        **_ranks(plan, base),
        "TRITON_LIBCUDA_PATH": str(plan.libraries[-1].parent),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(plan.folder / "inductor"),
    }


def _ranks(plan: Plan, base: Mapping[str, str]) -> dict[str, str]:
    """Return which rank it is, and how many cards it sees."""
    if plan.ranks is None:
        return cards_environment(visible_cards(base))
    told = ranks_environment(plan.ranks, plan.rank, plan.each or plan.ranks)
    return {**told, **plan.told}


def run(
    command: Sequence[str],
    gpu: Gpu,
    plan: Plan,
    *,
    watch: Callable[[], None] = lambda: None,
    quiet: bool = False,
    python_path: Path | None = None,
    base: Mapping[str, str] | None = None,
) -> Ended:
    """Run the command to its end and return how it ended; `watch` is called now and then.

    `python_path` is one more folder from which its Python imports. `base`: the environment without
    what a rehearsal puts into it, ours by default.
    """
    output = subprocess.DEVNULL if quiet else None
    started = time.monotonic()
    children: list[subprocess.Popen[bytes]] = []
    interrupt = threading.Event()
    with _handing_on(children, interrupt):
        child = subprocess.Popen(  # noqa: S603 - the user's own command
            list(command),
            env=environment(gpu, plan, os.environ if base is None else base, python_path),
            start_new_session=True,
            preexec_fn=_die_with(os.getpid()),  # noqa: PLW1509 - it only asks the kernel
            stdout=output,
            stderr=output,
        )
        children.append(child)
        try:
            if interrupt.is_set():  # it came while the command was started
                _signal_session(child, signal.SIGINT)
            cut = _wait(child, plan.timeout, interrupt, watch)
        finally:
            _signal_session(child, signal.SIGKILL)
    return Ended(_shell_code(child.wait()), time.monotonic() - started, cut)


def _die_with(parent: int) -> Callable[[], None]:
    """Return what lets a child be killed when its parent, this process, is."""
    prctl = ctypes.CDLL(None).prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before
            os.kill(os.getpid(), signal.SIGKILL)

    return ask


def _wait(
    child: subprocess.Popen[bytes],
    timeout: float | None,
    interrupt: threading.Event,
    watch: Callable[[], None],
) -> str | None:
    """Wait for the end, at most until the grace after the time limit or an interrupt is over."""
    limit = None if timeout is None else time.monotonic() + timeout + GRACE_SECONDS
    cut = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
            watch()
            return "interrupt" if interrupt.is_set() else None
        watch()
        if interrupt.is_set() and cut is None:
            cut, limit = "interrupt", time.monotonic() + GRACE_SECONDS
        if limit is not None and time.monotonic() > limit:
            return cut or "timeout"


@contextlib.contextmanager
def _handing_on(
    children: Sequence[subprocess.Popen[bytes]], interrupt: threading.Event
) -> Iterator[None]:
    """Hand SIGINT and SIGTERM on to the commands as SIGINT; a second one kills them."""

    def hand_on(_number: int, _frame: FrameType | None) -> None:
        handed_on = signal.SIGKILL if interrupt.is_set() else signal.SIGINT
        interrupt.set()
        for child in children:
            _signal_session(child, handed_on)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread handle signals
        return
    before = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal_session(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, number)


def _shell_code(code: int) -> int:
    """Return the exit code as a shell says it: 128 + n for signal n."""
    return 128 - code if code < 0 else code
