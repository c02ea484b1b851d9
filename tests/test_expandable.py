"""Expandable segments, rule by rule: pools grow by pages, and free neighbours are one block.

That whole jobs are exact, and that full cards fail where PyTorch's did, is `test_records.py`'s to
hold (records/expandable.jsonl).
"""

import random

import pytest

import vrambudget
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.expandable import ExpandableAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError

MIB = 2**20


CARD = 80 * 1024 * MIB


def run(sizes, events=None, capacity_bytes=None, gpu_bytes=CARD):
    allocator = ExpandableAllocator(gpu_bytes, capacity_bytes)
    allocator.run(range(len(sizes)) if events is None else events, sizes)
    return allocator


@pytest.mark.parametrize(
    ("asked", "reserved"),
    [(1, 2 * MIB), (MIB, 2 * MIB), (MIB + 1, 20 * MIB), (21 * MIB, 40 * MIB)],
)
def test_a_pool_grows_by_whole_pages(asked, reserved):
    assert run([asked]).peak_reserved_bytes == reserved


def test_a_free_block_at_the_end_is_grown_where_a_segment_could_not_be():
    sizes, events = [30 * MIB, 100 * MIB], [0, ~0, 1]
    assert run(sizes, events).peak_reserved_bytes == 100 * MIB
    fixed = CachingAllocator()
    fixed.run(events, sizes)
    assert fixed.peak_reserved_bytes == 130 * MIB


def test_emptying_the_cache_keeps_the_pages_that_are_in_use():
    allocator = run([10 * MIB, 50 * MIB], [0, 1, ~1])
    assert allocator.reserved_bytes == 60 * MIB
    allocator.empty_cache()
    assert allocator.reserved_bytes == 20 * MIB


def test_a_pool_s_addresses_end_at_nine_eighths_of_the_card():
    sizes = [120 * MIB, 20 * MIB, 10 * MIB, 10 * MIB]
    events = [0, 1, 2, ~0, 3]
    # free then: 120 at the front, 10 at the end; best fit counts the addresses behind the end
    small, large = (run(sizes, events, gpu_bytes=card) for card in (200 * MIB, CARD))
    assert small.address_of(3) == 150 * MIB + small.address_of(0)  # 80 of 240: less than 120
    assert large.address_of(3) == large.address_of(0)


def test_a_stretch_of_addresses_without_room_is_followed_by_another():
    sizes = [60 * MIB, 20 * MIB, 60 * MIB, 20 * MIB, 100 * MIB]
    allocator = run(sizes, [0, 1, 2, 3, ~0, ~2], gpu_bytes=200 * MIB)
    allocator.empty_cache()  # without pages then: 60, 60 and 80 of 240
    allocator.run([4], sizes)
    assert sorted(allocator.segments().values()) == [20 * MIB, 20 * MIB, 100 * MIB]
    assert allocator.address_of(4) >= 240 * MIB + allocator.address_of(0)


def test_past_the_card_s_memory_addresses_have_no_end():
    sizes = [40 * MIB, 500 * MIB, 60 * MIB]
    small, large = (run(sizes, [0, 1, ~0, 2], gpu_bytes=n * MIB) for n in (64, 10**6))
    assert small.segments() == large.segments()


def test_a_full_card_is_out_of_memory():
    with pytest.raises(OutOfDeviceMemoryError):
        run([30 * MIB, 30 * MIB], capacity_bytes=50 * MIB)


def test_the_laws_hold_at_every_event_of_any_program():
    draw = random.Random(0)  # noqa: S311 - a program, not a secret
    sizes = [draw.choice([1, 700, 300_000, 3 * MIB, 45 * MIB]) for _ in range(400)]
    allocator, alive = ExpandableAllocator(CARD), []
    for position in range(len(sizes)):
        events = [position]
        alive.append(position)
        while len(alive) > draw.randrange(1, 40):
            events.append(~alive.pop(draw.randrange(len(alive))))
        allocator.run(events, sizes)
        asked = sum(sizes[storage] for storage in alive)
        rounded = sum(-(-sizes[storage] // 512) * 512 for storage in alive)
        assert allocator.requested_bytes == asked
        assert allocator.allocated_bytes == rounded <= allocator.reserved_bytes
        assert sum(allocator.segments().values()) == allocator.reserved_bytes


def test_a_job_asks_for_the_same_and_takes_no_more():
    fixed, grown = (
        vrambudget.estimate("gpt2", batch=4, block=512, expandable_segments=on, steps=3)
        for on in (False, True)
    )
    assert grown.peak.requested_bytes == fixed.peak.requested_bytes
    assert grown.peak.allocated_bytes <= fixed.peak.allocated_bytes  # blocks are always split
    assert grown.peak.allocated_bytes <= grown.peak.reserved_bytes <= fixed.peak.reserved_bytes
