"""Run the user's command with the stub libraries in its environment, and see it off.

The command runs below a supervisor (`supervisor`), in a session of its own; nothing of it outlives
the call, whatever it starts and however we end. It inherits input and output, untouched.
SIGINT, SIGTERM and SIGHUP that come to us are handed on; a command that does not end in time
afterwards is asked for its records, and killed.
"""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from vrambudget.config.gpus import Gpu
from vrambudget.files import cache_folder
from vrambudget.rehearse import gpu_variables
from vrambudget.rehearse.hook.vrambudget_hook.launch import gpus_environment, ranks_environment
from vrambudget.rehearse.launchers import visible_gpus
from vrambudget.rehearse.left import ask_for_records
from vrambudget.rehearse.reading import Reader
from vrambudget.rehearse.supervisor import end_left

HOOK = Path(__file__).parent / "hook"
GRACE_SECONDS = 20.0  # from the time limit, or from an interrupt, to the kill
_POLL_SECONDS = 0.2
_SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))


@dataclass(frozen=True, slots=True)
class ProcessPlan:
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
    routing: str | None = None  # how tokens spread over experts; None: uniformly, which is reported
    launcher_variables: Mapping[str, str] = field(default_factory=dict)  # of mpirun or srun
    lock: int | None = None  # the folder's, which whoever uses it holds
    server: str | None = None  # the engine, where the command is a server's
    devices: int | None = None  # GPUs of this machine that a server's ranks take
    variables: Mapping[str, str] = field(default_factory=dict)  # that a server needs here

    def to_json(self, gpu: Gpu) -> str:
        """Return what the recorder reads."""
        major, minor = gpu.compute_capability
        asked = {
            **asdict(self),
            "timeout": None if self.server else self.timeout,
            "grace": GRACE_SECONDS / 2,
            "capability": 10 * major + minor,
        }
        return json.dumps(asked, default=str)  # str: of paths


@dataclass(frozen=True, slots=True)
class Ended:
    """How the command ended; `cut`: why we ended it ("timeout", "ready"), or "interrupt"."""

    exit_code: int
    seconds: float
    cut: str | None = None


def environment(
    gpu: Gpu, plan: ProcessPlan, base: Mapping[str, str], also: Path | None = None
) -> dict[str, str]:
    """Return the command's environment; what Triton compiles is kept apart from real GPUs'.

    Sets of strings have one order, so that two rehearsals are equal: transformers computes
    Gemma 3's rotary tables in such an order (modeling_gemma3.py, Gemma3TextModel.forward).
    """
    compiled = cache_folder() / "compiled"
    folders = [str(HOOK), str(also) if also else "", base.get("PYTHONPATH", "")]
    return {
        "PYTHONHASHSEED": "0",
        **base,
        **gpu_variables.environment(gpu),
        "VRAMBUDGET_REHEARSAL": plan.to_json(gpu),
        "VRAMBUDGET_FOLDER": str(plan.folder),
        "PYTHONPATH": os.pathsep.join(filter(None, folders)),
        **_ranks(plan, base),
        **plan.variables,
        "TRITON_LIBCUDA_PATH": str(plan.libraries[-1].parent),
        "TRITON_CACHE_DIR": str(compiled / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(plan.folder / "inductor"),
    }


def _ranks(plan: ProcessPlan, base: Mapping[str, str]) -> dict[str, str]:
    """Return which rank it is, and how many GPUs it sees."""
    if plan.ranks is None:
        return gpus_environment(plan.devices or visible_gpus(base))
    variables = ranks_environment(plan.ranks, plan.rank, plan.each or plan.ranks)
    return {**variables, **plan.launcher_variables}


def run(
    command: Sequence[str],
    gpu: Gpu,
    plan: ProcessPlan,
    *,
    watch: Callable[[], None] = lambda: None,
    quiet: bool = False,
    python_path: Path | None = None,
    base: Mapping[str, str] | None = None,
    lines: Callable[[str], bool] | None = None,
) -> Ended:
    """Run the command to its end and return how it ended; `watch` is called now and then.

    `python_path` is one more folder from which its Python imports. `base`: the environment without
    what a rehearsal puts into it, this process's by default. `lines` reads the command's output,
    which goes on to this process's; once it returns True the command is ended as by Ctrl-C.
    """
    output = subprocess.DEVNULL if quiet else None
    reader = None if lines is None else Reader(lines, quiet=quiet)
    started = time.monotonic()
    children: list[subprocess.Popen[bytes]] = []
    interrupt = threading.Event()
    with _handing_on(children, interrupt):
        child = subprocess.Popen(  # noqa: S603 - the user's own command
            [sys.executable, "-I", "-S", _SUPERVISOR, str(os.getpid()), str(plan.folder), *command],
            env=environment(gpu, plan, os.environ if base is None else base, python_path),
            start_new_session=True,
            pass_fds=() if plan.lock is None else (plan.lock,),
            stdout=output if reader is None else subprocess.PIPE,
            stderr=output if reader is None else subprocess.STDOUT,
        )
        children.append(child)
        try:
            if interrupt.is_set():  # it came while the command was started
                _signal(child, signal.SIGINT)
            if reader is not None:
                reader.start(child)
            cut = _wait(child, plan, interrupt, watch, reader)
        finally:
            _signal(child, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(GRACE_SECONDS)
            _signal(child, signal.SIGKILL)
            if child.wait() < 0:  # the supervisor was killed
                end_left(plan.folder)
            if reader is not None:
                reader.finish()
    return Ended(_shell_code(child.wait()), time.monotonic() - started, cut)


def _wait(
    child: subprocess.Popen[bytes],
    plan: ProcessPlan,
    interrupt: threading.Event,
    watch: Callable[[], None],
    reader: Reader | None,
) -> str | None:
    """Wait for the end, at most until the grace after the time limit or an interrupt is over.

    At its half, processes that have not ended are asked for their records. A server is interrupted
    once it is ready, or at the time limit.
    """
    end = None if plan.timeout is None else time.monotonic() + plan.timeout
    limit = None if end is None or plan.server else end + GRACE_SECONDS
    cut, is_asked = None, False
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
            watch()
            return "interrupt" if interrupt.is_set() else cut
        watch()
        late = plan.server and end is not None and time.monotonic() > end
        if reader is not None and cut is None and (reader.ready.is_set() or late):
            cut = "ready" if reader.ready.is_set() else "timeout"
            limit = time.monotonic() + GRACE_SECONDS
            _signal(child, signal.SIGINT)
        if interrupt.is_set() and cut is None:
            cut, limit = "interrupt", time.monotonic() + GRACE_SECONDS
        left = math.inf if limit is None else limit - time.monotonic()
        if left < GRACE_SECONDS / 2 and not is_asked:
            cut, is_asked = cut or "timeout", True
            ask_for_records(plan.folder)
        if left < 0:
            return cut


@contextlib.contextmanager
def _handing_on(
    children: Sequence[subprocess.Popen[bytes]], interrupt: threading.Event
) -> Iterator[None]:
    """Hand signals that end us on to the commands as SIGINT; a second one kills them."""

    def hand_on(_number: int, _frame: FrameType | None) -> None:
        handed_on = signal.SIGTERM if interrupt.is_set() else signal.SIGINT
        interrupt.set()
        for child in children:
            _signal(child, handed_on)

    if threading.current_thread() is not threading.main_thread():
        yield  # Python lets only the main thread handle signals
        return
    before = {n: signal.signal(n, hand_on) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(child: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Signal the supervisor, if it has not ended."""
    if child.poll() is None:
        child.send_signal(number)


def _shell_code(code: int) -> int:
    """Return the exit code as a shell says it: 128 + n for signal n."""
    return 128 - code if code < 0 else code
