"""The replay against what PyTorch's allocator did, and its rules one by one.

Records: `records/allocator/*.json.gz`, each one process of PyTorch on a virtual GPU (PyTorch's own
allocator; the kernels do not run), with its versions. `events` and `sizes` are all that the process
allocated and freed; `marks` say at which event the script emptied the cache, reset the peaks or
read `torch.cuda.memory_stats()`, and what it read.
"""

import gzip
import json
from pathlib import Path

import pytest

from vrambudget.errors import VramBudgetError
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError
from vrambudget.units import format_bytes

MIB = 2**20
RECORDS = sorted(Path(__file__).parent.glob("records/allocator/*.json.gz"))
STATISTICS = (
    "requested_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "peak_requested_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "num_alloc_retries",
)


def load(path):
    return json.loads(gzip.decompress(path.read_bytes()))


def statistics(allocator):
    return {name: getattr(allocator, name) for name in STATISTICS}


def replay(record, allocator):
    """Yield (what PyTorch said, what the replay says) at every reading of the record."""
    at = 0
    for position, what, expected in record["marks"]:
        allocator.run(record["events"], record["sizes"], at, position)
        at = position
        if what == "stats":
            yield expected, statistics(allocator)
        else:
            getattr(allocator, what)()
    allocator.run(record["events"], record["sizes"], at)


# What PyTorch did


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.name.partition(".")[0])
def test_every_reading_of_a_real_run_is_met_to_the_byte(path):
    record = load(path)
    allocator = CachingAllocator(record["capacity_bytes"])
    readings, failure = 0, None

    try:
        for expected, got in replay(record, allocator):
            assert got == expected
            readings += 1
    except OutOfDeviceMemoryError as error:
        failure = error

    assert readings > 0
    assert (failure is not None) == (record["out_of_memory"] is not None)


@pytest.mark.parametrize(
    "name",
    [
        "nanogpt-eval-out-of-memory",
        "llama-2-layers-lora-retry-then-out-of-memory",
        "t5-2-layers-five-retries-then-out-of-memory",
    ],
)
def test_a_real_crash_comes_at_its_event_with_the_numbers_of_its_message(name):
    record = load(Path(__file__).parent / "records" / "allocator" / f"{name}.json.gz")
    truth = record["out_of_memory"]
    allocator = CachingAllocator(record["capacity_bytes"])

    with pytest.raises(OutOfDeviceMemoryError) as caught:
        list(replay(record, allocator))

    error = caught.value
    assert error.event == truth["event"]
    assert error.requested_bytes == truth["rounded_bytes"]  # all that PyTorch records of it
    assert error.segment_bytes == truth["segment_bytes"]
    assert record["capacity_bytes"] - error.reserved_bytes == truth["free_bytes"]
    assert statistics(allocator) == truth["stats"]
    for words in (
        f"Tried to allocate {format_bytes(error.segment_bytes)}.",
        f"{format_bytes(error.allocated_bytes)} is allocated by PyTorch",
        f"{format_bytes(error.reserved_bytes - error.allocated_bytes)} is reserved",
    ):
        assert words in truth["message"]


def test_the_records_hold_what_they_are_there_for():
    retries = [load(path)["marks"][-1][2]["num_alloc_retries"] for path in RECORDS]

    assert len(RECORDS) >= 8
    assert max(retries) >= 3


# The rules, one by one


def run(sizes, events=None, capacity_bytes=None):
    allocator = CachingAllocator(capacity_bytes)
    allocator.run(list(range(len(sizes))) if events is None else events, sizes)
    return allocator


@pytest.mark.parametrize(
    ("asked", "allocated", "reserved"),
    [
        pytest.param(0, 0, 0, id="nothing for nothing"),
        pytest.param(1, 512, 2 * MIB, id="at least 512 bytes"),
        pytest.param(513, 1024, 2 * MIB, id="a multiple of 512"),
        pytest.param(MIB, MIB, 2 * MIB, id="the largest of the small pool"),
        pytest.param(MIB + 1, MIB + 512, 20 * MIB, id="the smallest of the large pool"),
        pytest.param(10 * MIB - 512, 10 * MIB - 512, 20 * MIB, id="the last in a shared segment"),
        pytest.param(10 * MIB - 1, 10 * MIB, 10 * MIB, id="rounded first, then a segment"),
        pytest.param(10 * MIB + 1, 10 * MIB + 512, 12 * MIB, id="2 MiB - 512 left over: split"),
        pytest.param(11 * MIB - 512, 11 * MIB - 512, 12 * MIB, id="1 MiB + 512 left over: split"),
        pytest.param(11 * MIB, 12 * MIB, 12 * MIB, id="1 MiB left over: whole"),
    ],
)
def test_the_first_request_of_a_process(asked, allocated, reserved):
    allocator = run([asked])

    assert allocator.requested_bytes == asked
    assert allocator.allocated_bytes == allocator.block_bytes(0) == allocated
    assert allocator.reserved_bytes == reserved


def test_small_blocks_are_split_down_to_the_last_512_bytes():
    allocator = run([MIB, MIB - 512, 512])

    assert allocator.reserved_bytes == allocator.allocated_bytes == 2 * MIB


def test_the_smallest_free_block_that_is_enough_is_taken():
    # 30 and 20 MiB are free: 20 goes for 18 (split, 2 left), which 30 would have served as well
    allocator = run([30 * MIB, 20 * MIB, 18 * MIB, 30 * MIB], [0, 1, ~0, ~1, 2, 3])

    assert allocator.reserved_bytes == 50 * MIB


def test_free_neighbours_become_one_block_in_any_order_of_freeing():
    sizes = [6 * MIB, 6 * MIB, 8 * MIB, 20 * MIB]  # three in one segment of 20 MiB
    for first, second, third in [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)]:
        allocator = run(sizes, [0, 1, 2, ~first, ~second, ~third, 3])

        assert allocator.reserved_bytes == allocator.allocated_bytes == 20 * MIB


def test_blocks_of_two_segments_never_become_one():
    allocator = run([10 * MIB, 10 * MIB, 20 * MIB], [0, 1, ~0, ~1, 2])

    assert allocator.reserved_bytes == 40 * MIB


def test_a_small_request_never_lives_in_the_large_pool():
    allocator = run([20 * MIB, 512], [0, ~0, 1])

    assert allocator.reserved_bytes == 22 * MIB


def test_emptying_the_cache_gives_back_whole_segments_only():
    allocator = run([6 * MIB, 6 * MIB, 30 * MIB, 512], [0, 1, 2, 3, ~0, ~2, ~3])

    allocator.empty_cache()

    assert allocator.reserved_bytes == 20 * MIB  # storage 1 still lives in it
    assert allocator.peak_reserved_bytes == 52 * MIB


def test_a_full_card_gives_back_its_cache_and_tries_again():
    allocator = run([30 * MIB, 40 * MIB], [0, ~0, 1], capacity_bytes=64 * MIB)

    assert allocator.num_alloc_retries == 1
    assert allocator.reserved_bytes == allocator.peak_reserved_bytes == 40 * MIB


def test_out_of_memory_says_what_was_asked_and_what_was_there():
    sizes = [30 * MIB, 8 * MIB, 1, 36 * MIB + 1]
    allocator = CachingAllocator(56 * MIB)

    with pytest.raises(OutOfDeviceMemoryError, match="event 4") as caught:
        allocator.run([0, 1, 2, ~0, 3], sizes)

    error = caught.value
    assert error.event == 4
    assert error.requested_bytes == 36 * MIB + 1
    assert error.segment_bytes == 38 * MIB
    assert error.allocated_bytes == 8 * MIB + 512
    assert error.reserved_bytes == 22 * MIB


def test_the_event_of_the_peak_is_the_first_that_reached_it():
    events, sizes = [0, 1, ~1, 2, ~2, ~0], [MIB, MIB, MIB]
    allocator = CachingAllocator()

    allocator.run(events, sizes, 0, 4)
    assert allocator.peak_event == 1

    allocator.reset_peaks()
    assert allocator.peak_event is None
    assert allocator.peak_allocated_bytes == allocator.allocated_bytes == 2 * MIB

    allocator.run(events, sizes, 4)
    assert allocator.peak_event is None
    assert allocator.allocated_bytes == 0


def test_more_than_its_addresses_reach_is_an_error():
    with pytest.raises(VramBudgetError, match=r"takes more than 8,192\.00 TiB"):
        CachingAllocator().run([0, 1], [2**52, 2**52])
