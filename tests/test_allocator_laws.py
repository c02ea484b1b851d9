"""The replay against a model that is too simple to be wrong, and against its own laws."""

import contextlib
import random

import pytest

from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.full_gpu import OutOfDeviceMemoryError

KIB, MIB = 2**10, 2**20
STATISTICS = ("requested_bytes", "allocated_bytes", "reserved_bytes")


def run(sizes, events, capacity_bytes=None):
    allocator = CachingAllocator(capacity_bytes)
    allocator.run(events, sizes)
    return allocator


def peaks(allocator):
    return tuple(getattr(allocator, f"peak_{name}") for name in STATISTICS)


class NaiveAllocator:
    """The rules again, written to be read: segments are lists of [size, storage or None]."""

    def __init__(self, capacity_bytes):
        self.capacity_bytes, self.segments = capacity_bytes, []  # (is small, blocks)

    def blocks(self):
        return [block for _, blocks in self.segments for block in blocks]

    def reserved_bytes(self):
        return sum(size for size, _ in self.blocks())

    def allocated_bytes(self):
        return sum(size for size, storage in self.blocks() if storage is not None)

    def empty_cache(self):
        self.segments = [s for s in self.segments if len(s[1]) > 1 or s[1][0][1] is not None]

    def allocate(self, storage, asked):
        """Return False where the card is full."""
        need = -(-asked // 512) * 512
        if need == 0:
            return True
        small = need <= MIB
        if not self.fits(small, need) and not self.grow(small, need):
            return False
        _, _, _, blocks, at = min(self.fits(small, need))
        left = blocks[at][0] - need
        if left >= 512 if small else left > MIB:
            blocks[at : at + 1] = [[need, storage], [left, None]]
        else:
            blocks[at][1] = storage
        return True

    def fits(self, small, need):
        return [
            (blocks[at][0], number, at, blocks, at)
            for number, (is_small, blocks) in enumerate(self.segments)
            if is_small == small
            for at in range(len(blocks))
            if blocks[at][1] is None and blocks[at][0] >= need
        ]

    def grow(self, small, need):
        size = 2 * MIB if small else 20 * MIB if need < 10 * MIB else -(-need // MIB // 2) * 2 * MIB
        if self.reserved_bytes() + size > self.capacity_bytes:
            self.empty_cache()
        if self.reserved_bytes() + size > self.capacity_bytes:
            return False
        self.segments.append((small, [[size, None]]))
        return True

    def free(self, storage):
        for _, blocks in self.segments:
            for at, block in enumerate(blocks):
                if block[1] == storage:
                    block[1] = None
                    if at + 1 < len(blocks) and blocks[at + 1][1] is None:
                        block[0] += blocks.pop(at + 1)[0]
                    if at and blocks[at - 1][1] is None:
                        blocks[at - 1][0] += blocks.pop(at)[0]
                    return


def random_size(rng):
    largest = rng.choice([600, 100 * KIB, 2 * MIB, 2 * MIB, 40 * MIB])
    return rng.choice([0, 512, MIB, 10 * MIB, rng.randrange(largest), rng.randrange(largest)])


def random_job(seed, length=600):
    """Return events and sizes; about half of all storages live at a time, all are freed at last."""
    rng = random.Random(seed)  # noqa: S311 - a test's numbers are to come again
    events, sizes, alive = [], [], []
    while len(events) < length:
        if alive and rng.random() < 0.48:
            events.append(~alive.pop(rng.randrange(len(alive))))
        else:
            alive.append(len(sizes))
            events.append(len(sizes))
            sizes.append(rng.choice(sizes) if sizes and rng.random() < 0.5 else random_size(rng))
    rng.shuffle(alive)
    return events + [~storage for storage in alive], sizes


@pytest.mark.parametrize("seed", range(12))
def test_it_does_what_the_naive_model_does_at_every_event(seed):
    events, sizes = random_job(seed)
    endless = run(sizes, events).peak_reserved_bytes
    capacity = endless * (50, 75, 90, 100)[seed % 4] // 100
    naive, allocator = NaiveAllocator(capacity), CachingAllocator(capacity)

    for position, event in enumerate(events):
        if event < 0:
            naive.free(~event)
        elif not naive.allocate(event, sizes[event]):
            with pytest.raises(OutOfDeviceMemoryError, match=f"event {position}$"):
                allocator.run(events, sizes, position, position + 1)
            break
        allocator.run(events, sizes, position, position + 1)
        assert allocator.allocated_bytes == naive.allocated_bytes()
        assert allocator.reserved_bytes == naive.reserved_bytes()
        held = {storage: size for size, storage in naive.blocks() if storage is not None}
        assert held == {storage: allocator.block_bytes(storage) for storage in held}


@pytest.mark.parametrize("seed", range(100, 106))
def test_reserved_is_at_least_allocated_is_at_least_requested_and_peaks_are_peaks(seed):
    events, sizes = random_job(seed)
    allocator = CachingAllocator()
    seen = []

    for position in range(len(events)):
        allocator.run(events, sizes, position, position + 1)
        now = allocator.requested_bytes, allocator.allocated_bytes, allocator.reserved_bytes
        seen.append(now)
        assert list(now) == sorted(now)

    assert peaks(allocator) == tuple(max(column) for column in zip(*seen, strict=True))
    assert seen[allocator.peak_event][1] == allocator.peak_allocated_bytes
    assert all(now[1] < allocator.peak_allocated_bytes for now in seen[: allocator.peak_event])


@pytest.mark.parametrize("seed", range(200, 206))
def test_when_everything_is_freed_nothing_is_left_but_cache(seed):
    events, sizes = random_job(seed)
    allocator = run(sizes, events)

    assert allocator.allocated_bytes == allocator.requested_bytes == 0
    assert allocator.reserved_bytes == allocator.peak_reserved_bytes > 0

    allocator.empty_cache()
    assert allocator.reserved_bytes == 0


@pytest.mark.parametrize("seed", range(300, 306))
def test_in_one_run_or_in_many_it_is_the_same(seed):
    events, sizes = random_job(seed)
    whole, parts = run(sizes, events), CachingAllocator()

    for start in range(0, len(events), 37):
        parts.run(events, sizes, start, start + 37)

    assert peaks(parts) == peaks(whole)
    assert parts.peak_event == whole.peak_event


@pytest.mark.parametrize("seed", range(400, 406))
def test_a_card_as_large_as_the_endless_ones_peak_goes_the_same(seed):
    events, sizes = random_job(seed)
    endless = run(sizes, events)

    exact = run(sizes, events, capacity_bytes=endless.peak_reserved_bytes)

    assert peaks(exact) == peaks(endless)
    assert exact.num_alloc_retries == 0


@pytest.mark.parametrize("seed", range(500, 506))
def test_a_card_is_never_more_than_full(seed):
    events, sizes = random_job(seed)
    endless = run(sizes, events)
    allocator = CachingAllocator(endless.peak_reserved_bytes - 1)

    with contextlib.suppress(OutOfDeviceMemoryError):
        allocator.run(events, sizes)

    assert allocator.num_alloc_retries > 0
    assert allocator.peak_reserved_bytes < endless.peak_reserved_bytes
