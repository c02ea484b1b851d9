"""The allocator with several streams, against what PyTorch's did and against its own laws.

Records: `records/streams/*.json.gz`, each one run of `records/streams/program.py` by PyTorch on a
virtual GPU (PyTorch's own allocator; the kernels do not run): all counters after each thing done.
"""

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from test_allocator_laws import random_job, random_size

from vrambudget.config.job import Job
from vrambudget.engine.context import Platform, on_stream, recording
from vrambudget.engine.tensor import empty_bytes
from vrambudget.errors import VramBudgetError
from vrambudget.report.memory_curve import memory_curve
from vrambudget.report.snapshot import snapshot
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.allocators import allocator_for
from vrambudget.tape.events import Tape
from vrambudget.tape.expandable import ExpandableAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.tape.packing import Event, EventKind, encode
from vrambudget.tape.repeats import place_of, repeats
from vrambudget.tape.replay import replay
from vrambudget.tape.steady import run
from vrambudget.tape.streams import ExpandableStreamAllocator, StreamAllocator
from vrambudget.tape.trace import trace
from vrambudget.units import format_bytes

MIB = 2**20
CARD = 80 * 2**30
RECORDS = sorted(Path(__file__).parent.glob("records/streams/*.json.gz"))
KINDS = {
    "allocate": EventKind.ALLOCATE,
    "free": EventKind.FREE,
    "release": EventKind.RELEASE,
    "fill": EventKind.FILL,
    "record_stream": EventKind.RECORD_STREAM,
    "end": EventKind.END,
}
ON_A_STREAM = {EventKind.ALLOCATE, EventKind.FILL, EventKind.RECORD_STREAM}


def load(name):
    return json.loads(gzip.decompress((RECORDS[0].parent / f"{name}.json.gz").read_bytes()))


def counters(allocator):
    return [
        allocator.allocated_bytes,
        allocator.reserved_bytes,
        allocator.requested_bytes,
        allocator.peak_allocated_bytes,
        allocator.peak_reserved_bytes,
        allocator.peak_requested_bytes,
        allocator.num_alloc_retries,
    ]


def event(kind, storage, stream=0):
    return encode(Event(kind, storage, stream if kind in ON_A_STREAM else 0))


def do(allocator, record):
    """Yield what PyTorch's counters were after each thing, and what they are here."""
    for what, storage, stream, *expected in record["did"]:
        if what == "empty_cache":
            allocator.empty_cache()
        else:
            allocator.run([event(KINDS[what], storage, stream)], record["sizes"])
        yield expected, counters(allocator)


def allocator_of(record, *, expandable):
    room = record["most_bytes"]
    if expandable:
        return ExpandableStreamAllocator(record["card_bytes"], room)
    return StreamAllocator(room)


# What PyTorch did


@pytest.mark.parametrize("name", ["default", "retries-then-out-of-memory", "expandable"])
def test_every_counter_is_pytorch_s_after_each_thing_that_a_program_did(name):
    record = load(name)
    allocator = allocator_of(record, expandable=name == "expandable")
    for expected, got in do(allocator, record):
        assert got == expected


def test_the_program_s_crash_comes_where_pytorch_s_came():
    record = load("retries-then-out-of-memory")
    allocator = allocator_of(record, expandable=False)
    assert all(got == expected for expected, got in do(allocator, record))
    last = len(record["sizes"]) - 1  # what it asked for and did not get
    message, stream, *expected = record["out_of_memory"]
    with pytest.raises(OutOfDeviceMemoryError) as caught:
        allocator.run([event(EventKind.ALLOCATE, last, stream)], record["sizes"])
    assert f"Tried to allocate {format_bytes(caught.value.segment_bytes)}." in message
    assert counters(allocator) == expected
    assert record["did"][-1][-1] == 2  # it had been full before, and went on


def test_the_records_can_tell_the_rules_apart():
    record = load("default")
    as_if_one = [[*did[:2], 0, *did[3:]] for did in record["did"]]
    for other in (
        (StreamAllocator(), {**record, "did": as_if_one}),
        (ExpandableStreamAllocator(CARD), record),
    ):
        assert any(got != expected for expected, got in do(*other))
    assert sum(did[0] == "record_stream" for did in record["did"]) > 100
    assert any(did[5] > did[3] for did in record["did"])  # freed, and waited for


# The rules, one by one


def served(events, sizes, capacity_bytes=None):
    allocator = StreamAllocator(capacity_bytes)
    allocator.run(events, sizes)
    return allocator


def test_a_stream_never_gets_what_another_freed():
    sizes = [30 * MIB, 30 * MIB]
    shared = served([0, ~0, event(EventKind.ALLOCATE, 1, 0)], sizes)
    apart = served([0, ~0, event(EventKind.ALLOCATE, 1, 2)], sizes)
    assert shared.reserved_bytes == 30 * MIB
    assert apart.reserved_bytes == 60 * MIB


def test_a_full_card_gives_back_the_cache_of_every_stream():
    events = [event(EventKind.ALLOCATE, 0, 1), ~0, event(EventKind.ALLOCATE, 1, 2)]
    allocator = served(events, [30 * MIB, 40 * MIB], 64 * MIB)
    assert allocator.num_alloc_retries == 1
    assert allocator.reserved_bytes == 40 * MIB


def test_a_block_that_another_stream_uses_is_free_from_the_next_allocation_on():
    sizes = [30 * MIB, MIB, 30 * MIB]
    allocator = served([0, event(EventKind.RECORD_STREAM, 0, 1), ~0], sizes)
    assert allocator.allocated_bytes == 0
    assert allocator.requested_bytes == 30 * MIB
    assert allocator.is_waiting(0)
    allocator.run([1], sizes)
    assert allocator.requested_bytes == MIB
    allocator.run([2], sizes)
    assert allocator.reserved_bytes == 32 * MIB


def test_a_use_on_a_block_s_own_stream_is_no_other_use():
    events = [event(EventKind.ALLOCATE, 0, 1), event(EventKind.RECORD_STREAM, 0, 1), ~0]
    allocator = served(events, [30 * MIB])
    assert not allocator.is_waiting(0)
    assert allocator.requested_bytes == 0


def test_a_use_ends_with_the_bytes_that_were_used():
    events = [
        event(EventKind.ALLOCATE, 0),
        event(EventKind.RECORD_STREAM, 0, 1),
        event(EventKind.RELEASE, 0),
    ]
    allocator = served([*events, event(EventKind.FILL, 0), ~0], [30 * MIB])
    assert not allocator.is_waiting(0)


def test_emptying_the_cache_waits_for_other_streams():
    allocator = served([0, event(EventKind.RECORD_STREAM, 0, 1), ~0], [30 * MIB])
    allocator.empty_cache()
    assert allocator.reserved_bytes == allocator.requested_bytes == 0


def test_bytes_come_back_where_there_is_room_then():
    sizes = [30 * MIB, 30 * MIB]
    allocator = served([0, event(EventKind.RELEASE, 0), 1, event(EventKind.FILL, 0, 3)], sizes)
    assert allocator.reserved_bytes == 60 * MIB
    assert allocator.address_of(0) > allocator.address_of(1)
    assert allocator.stream_of(0) == 3


def test_more_streams_than_there_are_addresses_for_is_an_error():
    allocator = ExpandableStreamAllocator(CARD)
    with pytest.raises(VramBudgetError, match="more than 12 streams"):
        allocator.run([event(EventKind.ALLOCATE, i, i) for i in range(20)], [MIB] * 20)


# Laws


def random_program(seed, length=500, streams=3):
    """Return events and sizes of a random program, and what is allocated after each event."""
    rng = random.Random(seed)  # noqa: S311 - a test's numbers are to come again
    events, sizes, full, empty = [], [], [], []
    while len(events) < length:
        kind = rng.choices(list(EventKind), [9, 7, 2, 3, 4, 1])[0]
        stream = rng.randrange(streams)
        if kind is EventKind.ALLOCATE:
            sizes.append(random_size(rng) or 1)
            full.append(len(sizes) - 1)
            events.append(event(kind, full[-1], stream))
        elif kind in (EventKind.FREE, EventKind.RELEASE, EventKind.RECORD_STREAM) and full:
            storage = rng.choice(full)
            events.append(event(kind, storage, stream))
            if kind is not EventKind.RECORD_STREAM:
                full.remove(storage)
                empty += [storage] * (kind is EventKind.RELEASE)
        elif kind in (EventKind.FILL, EventKind.END) and empty:
            storage = empty.pop(rng.randrange(len(empty)))
            events.append(event(kind, storage, stream))
            full += [storage] * (kind is EventKind.FILL)
    return events, sizes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
def test_blocks_never_overlap_and_bytes_add_up_at_every_event(seed, expandable):
    events, sizes = random_program(seed)
    tape = Tape(events, sizes, is_fast=False)
    allocator = ExpandableStreamAllocator(CARD) if expandable else StreamAllocator()
    for position in range(len(events)):
        allocator.run(events, sizes, position, position + 1)
        alive = tape.alive_at(position)
        blocks = sorted((allocator.address_of(i), allocator.block_bytes(i)) for i in alive)
        ends = [0, *(address + size for address, size in blocks)]
        assert all(end <= address for end, (address, _) in zip(ends, blocks, strict=False))
        allocated = sum(size for _, size in blocks)
        assert allocator.allocated_bytes == allocated <= allocator.reserved_bytes
        assert sum(sizes[i] for i in alive) <= allocator.requested_bytes
        assert sum(allocator.segments().values()) == allocator.reserved_bytes
        streams = [allocator.stream_at(at) for at in allocator.segments()]
        assert set(streams) <= {0, 1, 2}
    assert allocator.peak_requested_bytes <= allocator.peak_allocated_bytes
    assert allocator.peak_allocated_bytes <= allocator.peak_reserved_bytes


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
def test_in_one_run_or_in_many_it_is_the_same(seed, expandable):
    events, sizes = random_program(seed)
    whole, parts = (
        ExpandableStreamAllocator(CARD) if expandable else StreamAllocator() for _ in range(2)
    )
    whole.run(events, sizes)
    for start in range(0, len(events), 7):
        parts.run(events, sizes, start, start + 7)
    assert whole.state() == parts.state()
    assert counters(whole) == counters(parts)
    assert whole.peak_event == parts.peak_event


@pytest.mark.parametrize("stream", [0, 2])
@pytest.mark.parametrize("seed", range(6))
def test_with_one_stream_it_is_the_allocator_of_one_stream(seed, stream):
    events, sizes = random_job(seed)
    moved = [event(EventKind.ALLOCATE, e, stream) if e >= 0 else e for e in events]
    pairs = [
        (CachingAllocator(), StreamAllocator()),
        (ExpandableAllocator(CARD), ExpandableStreamAllocator(CARD)),
    ]
    for plain, streamed in pairs:
        plain.run(events, sizes)
        streamed.run(moved, sizes)
        assert counters(streamed) == counters(plain)
        assert streamed.peak_event == plain.peak_event


# What is made of such a tape


def sharded(steps=6) -> Tape:
    """Return the tape of a loop that gathers on one stream and computes on another."""
    with recording(Platform()) as tape:
        tape.mark(0, "build", resets_allocator=True)
        gathered = [empty_bytes(30 * MIB) for _ in range(3)]
        for storage in gathered:
            storage.release()
        places, held = [], None
        for step in range(steps):
            places.append(place_of(tape))
            tape.mark(step, "gather")
            for storage in gathered:
                with on_stream(1):
                    storage.fill()
                    shard = empty_bytes(3 * MIB)
                shard.record_stream(0)
                held = empty_bytes(5 * MIB)
                del shard
                storage.release()
            tape.mark(step, "step_end")
            if step > 1 and repeats(tape, *places[-2:], place_of(tape)):
                period = len(tape.events) - places[-1].event
                number = places[-1].mark
                tape.marks[number] = tape.marks[number]._replace(period=period)
        tape.close()
        del held, gathered, storage
    return tape


def test_steps_that_fill_and_release_the_same_storages_repeat_one_another():
    tape = sharded()
    assert [mark.step for mark in tape.marks if mark.period] == [2, 3, 4, 5]


def test_a_step_that_leaves_a_storage_filled_repeats_none():
    with recording(Platform()) as tape:
        storages, places = [empty_bytes(MIB) for _ in range(3)], []
        for storage in storages:
            places.append(place_of(tape))
            empty_bytes(MIB)
            storage.release()
        assert not repeats(tape, *places)
        del storage


def test_a_replay_in_short_is_the_replay_in_full():
    tape = sharded(20)
    full = replace(tape, marks=[mark._replace(period=0) for mark in tape.marks])
    assert replay(tape) == replay(full)
    states = []
    for each in (tape, full):
        allocator, ran = allocator_for(each), list(run(each, allocator_for(each)))
        for _ in run(each, allocator):
            pass
        states.append((allocator.state(), counters(allocator), ran))
    assert states[0][:2] == states[1][:2]
    assert [allocated for _, allocated in states[0][2]] == [a for _, a in states[1][2]]


def test_pictures_tell_when_a_block_waited_and_for_which_stream():
    tape = sharded()
    traced = trace(tape)
    kinds = [action.kind for action in traced.actions]
    assert kinds.count("free_requested") == kinds.count("free_completed") + len(traced.waiting)
    assert {action.stream for action in traced.actions if action.kind == "alloc"} == {0, 1}
    assert sorted(traced.streams) == sorted(traced.segments)
    assert set(traced.streams.values()) == {0, 1}
    assert [span.phase for span in memory_curve(tape, Job()).spans][1:] == ["gather"] * 6


def test_a_snapshot_has_the_streams_and_what_waits():
    tape = sharded()
    with recording(Platform()) as last:
        storage = empty_bytes(MIB)
        storage.record_stream(1)
        del storage
    given = SimpleNamespace(
        tape=last, available_bytes=None, budget=SimpleNamespace(out_of_memory=None)
    )
    (segment,) = snapshot(given)["segments"]
    assert [block["state"] for block in segment["blocks"]] == ["active_pending_free", "inactive"]
    assert (segment["allocated_size"], segment["active_size"]) == (0, MIB)
    given.tape = tape
    found = snapshot(given)
    assert {segment["stream"] for segment in found["segments"]} == {0, 1}
    assert {entry["stream"] for entry in found["device_traces"][0]} == {0, 1}
