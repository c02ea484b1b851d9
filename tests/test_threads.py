"""Many jobs in one process: threads take turns, and nothing is left behind."""

import gc
import inspect
import multiprocessing
import signal
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from vrambudget import estimate
from vrambudget.engine.context import Platform, recording
from vrambudget.errors import VramBudgetError
from vrambudget.tape.events import Storage, _Released

MODEL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100}


def peak(batch):
    return estimate(MODEL, batch=batch, block=8).peak


def test_a_hundred_threads_find_what_one_finds():
    batches = list(range(1, 61))
    alone = [peak(batch) for batch in batches]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads change places in the midst of a job
    try:
        with ThreadPoolExecutor(100) as pool:
            together = list(pool.map(peak, batches))
    finally:
        sys.setswitchinterval(interval)
    assert together == alone
    assert gc.isenabled()


@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="only a fork copies a turn"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_process_that_is_forked_in_another_thread_s_turn_has_its_own():
    begun, over = threading.Event(), threading.Event()

    def hold():
        with recording(Platform()):
            begun.set()
            over.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    begun.wait(60)
    child = multiprocessing.get_context("fork").Process(target=peak, args=(1,))
    child.start()
    child.join(60)
    over.set()
    thread.join()
    assert child.exitcode == 0


def test_memory_does_not_grow_with_the_number_of_jobs():
    def run(count):
        for batch in range(count):
            peak(1 + batch % 5)
        gc.collect()

    run(30)  # what is remembered once
    tracemalloc.start()
    run(5)
    before = tracemalloc.get_traced_memory()[0]
    run(30)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="timers of POSIX")
def test_an_estimate_in_a_signal_handler_is_right_or_an_error():
    alone, inside = peak(1), []

    def handle(*_):
        try:
            inside.append(peak(1) == alone)
        except VramBudgetError as error:
            inside.append("signal handler" in error.message)
        signal.setitimer(signal.ITIMER_REAL, 0.011)  # not before: it would interrupt itself

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.002)
    try:
        outside = [peak(1) == alone for _ in range(60)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert all(outside)
    assert inside
    assert all(inside)


def sharded(batch):
    return estimate(MODEL, batch=batch, block=8, ranks=2, parallel="fsdp2").peak


@pytest.mark.parametrize(
    ("dies", "last", "job"),
    [(Storage, False, peak), (Storage, True, peak), (_Released, True, sharded)],
)
def test_what_a_handler_raises_while_a_tensor_dies_ends_the_estimate(dies, last, job):
    deaths, at = 0, 0

    def interrupt(frame, event, _):
        nonlocal deaths
        if event == "call" and frame.f_code is dies.__del__.__code__:
            deaths += 1
            if deaths == at:
                raise KeyboardInterrupt

    def watched():
        nonlocal deaths
        deaths = 0
        sys.setprofile(interrupt)
        try:
            return job(2)
        finally:
            sys.setprofile(None)

    before, right = sys.unraisablehook, watched()
    at = deaths if last else 1
    with pytest.raises(KeyboardInterrupt):
        watched()
    assert sys.unraisablehook is before
    assert gc.isenabled()
    assert job(2) == right


@pytest.fixture
def no_callbacks_of_gc():
    """Hypothesis leaves one; what a handler raises in it, Python drops and pytest reports."""
    others, gc.callbacks[:] = [*gc.callbacks], []
    yield
    gc.callbacks[:] = others


@pytest.mark.usefixtures("no_callbacks_of_gc")
def test_a_handler_may_raise_at_any_call_and_the_next_estimate_is_right():
    class StopError(Exception):
        pass

    def watched(at=None):
        calls = 0

        def interrupt(frame, event, _):  # where Python lets a handler run
            nonlocal calls
            is_begun = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
            calls += is_begun or event == "c_return"
            if calls == at:
                sys.setprofile(None)
                raise StopError

        sys.setprofile(interrupt)
        try:
            with recording(Platform()):
                pass
        finally:
            sys.setprofile(None)
        return calls

    before, right = sys.unraisablehook, peak(2)
    for at in range(1, watched() - 1):
        with suppress(StopError):
            watched(at)
        assert sys.unraisablehook is before
        assert gc.isenabled()
    assert peak(2) == right
