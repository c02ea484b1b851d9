"""A tape: events as they are packed, storages that lose and regain bytes, and who made them."""

import weakref

import pytest

from vrambudget.config.job import Job
from vrambudget.dtypes import float32
from vrambudget.engine.context import Platform, context, on_stream, recording
from vrambudget.engine.module import Module, register
from vrambudget.engine.tensor import empty, empty_bytes
from vrambudget.report.memory_curve import memory_curve
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.packing import (
    Event,
    EventKind,
    change_of,
    decode,
    encode,
    storage_of,
    stream_of,
)
from vrambudget.tape.replay import replay

KIB = 1024
CHANGES = {
    EventKind.ALLOCATE: 1,
    EventKind.FREE: -1,
    EventKind.FILL: 1,
    EventKind.RELEASE: -1,
    EventKind.RECORD_STREAM: 0,
    EventKind.END: 0,
}
EVENTS = [
    Event(
        kind,
        storage,
        stream if kind in (EventKind.ALLOCATE, EventKind.FILL, EventKind.RECORD_STREAM) else 0,
    )
    for kind in EventKind
    for storage in (0, 1, 2**32 - 1)
    for stream in (0, 1, 2**16 - 1)
]


def kinds(tape: Tape) -> list[tuple[EventKind, int, int]]:
    return [tuple(event) for event in tape.read()]


@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_an_event_is_read_as_it_was_written(event):
    assert decode(encode(event)) == event
    assert event.change == CHANGES[event.kind]


def test_arrays_of_events_are_read_as_single_ones_are():
    np = pytest.importorskip("numpy")
    numbers = np.array([encode(event) for event in EVENTS])
    assert storage_of(numbers).tolist() == [event.storage for event in EVENTS]
    assert stream_of(numbers).tolist() == [event.stream for event in EVENTS]
    assert change_of(numbers).tolist() == [event.change for event in EVENTS]


@pytest.mark.parametrize("stream", [-1, 2**16])
def test_a_stream_that_cannot_be_written_is_an_error(stream):
    with pytest.raises(ValueError, match=f"not {stream}"):
        Tape().stream = stream


def test_a_storage_gives_its_bytes_back_and_gets_them_again():
    with recording(Platform()) as tape:
        storage = empty_bytes(KIB)
        storage.fill()  # it has them
        storage.release()
        storage.release()
        assert not tape.alive_at(len(tape.events) - 1)
        storage.fill()
        del storage
    assert [kind for kind, _, _ in kinds(tape)] == [
        EventKind.ALLOCATE,
        EventKind.RELEASE,
        EventKind.FILL,
        EventKind.FREE,
    ]


def test_the_death_of_a_released_storage_frees_nothing():
    with recording(Platform()) as tape:
        storage = empty_bytes(KIB)
        storage.release()
        del storage
    assert kinds(tape)[-1] == (EventKind.END, 0, 0)
    assert tape.peak_requested_bytes() == KIB


def test_bytes_come_on_the_stream_that_is_current():
    with recording(Platform()) as tape:
        with on_stream(3):
            first = empty_bytes(KIB)
            assert context.stream == 3
        assert tape.is_fast is False
        second = empty_bytes(KIB)
        first.release()
        with on_stream(1):
            first.fill()
        streams = [(event.storage, event.stream) for event in tape.read() if event.change > 0]
        del second
    assert streams == [(0, 3), (1, 0), (0, 1)]


def test_a_tape_on_the_default_stream_alone_is_fast():
    with recording(Platform()) as tape:
        with on_stream(0):
            empty_bytes(KIB)
        assert tape.is_fast
        empty_bytes(KIB).record_stream(1)
        assert not tape.is_fast


def test_nothing_of_nothing_is_on_the_tape():
    with recording(Platform()) as tape:
        nothing = empty_bytes(0)
        nothing.release()
        nothing.fill()
        nothing.record_stream(1)
        del nothing
    assert tape.events == []


def test_a_phase_is_any_text():
    tape = Tape()
    context.reset(tape, Platform(), context.options)
    phases = ["prefill", "decode 0", "decode 1", "gather"]
    held = []
    for phase in phases:
        tape.mark(0, phase, resets_allocator=phase == "prefill")
        held.append(empty((KIB,), float32))
    tape.mark(0, "step_end")
    tape.close()
    assert [span.phase for span in memory_curve(tape, Job()).spans] == phases
    assert replay(tape).peak.phase == "gather"


# Who made it


GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}


def recorded(model=GPT2, **fields) -> Tape:
    scenario = resolve(model, batch=2, block=16, **fields)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def test_every_weight_is_its_module_s():
    tape = recorded()
    begin = tape.marks[0].position
    weights = tape.alive_at(begin - 1)
    assert [tape.path_of(i) for i in weights[:4]] == [
        "transformer.wte",
        "transformer.wpe",
        "transformer.h.0.ln_1",
        "transformer.h.0.ln_1",
    ]
    assert all(tape.path_of(i) for i in weights)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_forward_and_backward_make_storages_of_the_same_modules(checkpointing):
    tape = recorded(checkpointing=checkpointing)
    made = list(zip(tape.operations, map(tape.path_of, range(len(tape.sizes))), strict=True))
    forward, backward, optimizer = (
        {path for operation, path in made if operation == name}
        for name in ("addmm", "addmm_backward", "adam.exp_avg")
    )
    products = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert forward == backward == {f"transformer.h.{i}.{x}" for i in (0, 1) for x in products}
    assert ("mm_backward", "lm_head") in made
    assert optimizer == {""}


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_layers_that_are_laid_down_are_named_as_traced_ones(checkpointing, monkeypatch):
    def made():
        tape = recorded({**GPT2, "n_layer": 9}, checkpointing=checkpointing)
        births = [event.storage for event in tape.read() if event.kind is EventKind.ALLOCATE]
        return [(tape.operations[i], tape.path_of(i)) for i in births]

    laid = made()
    monkeypatch.setattr("vrambudget.simulate.stack_layers", lambda _: None)
    assert laid == made()


def test_modules_are_named_as_transformers_names_them():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tape = recorded()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**GPT2)
        )
    theirs = {name for name, _ in model.named_modules()}
    assert len(tape.paths) > 20
    assert set(tape.paths) <= theirs


def test_a_tape_keeps_no_module_alive():
    class Alone(Module):
        def forward(self):
            return empty((KIB,), float32)

    class Outer(Module):
        def __init__(self):
            self.inner = Alone()

    model = Outer()
    with recording(Platform()) as tape:
        register(model, tape)
        inner = weakref.ref(model.inner)
        held = model.inner()
        del model
        assert inner() is None
        assert tape.path_of(held.storage.index) == "inner"


def test_a_module_that_raises_leaves_the_tape_with_the_outer_one():
    class Broken(Module):
        path = 7

        def forward(self):
            raise RuntimeError

    with recording(Platform()) as tape:
        with pytest.raises(RuntimeError):
            Broken()()
        assert tape.module == 0
