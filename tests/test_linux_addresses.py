"""Segments where NVIDIA's driver for Linux puts them: what is published of it, and what follows."""

import json
from pathlib import Path

import pytest
from virtual import VIRTUAL_GPU

import vrambudget
from vrambudget.config.record import read_records
from vrambudget.measure.record import runnable
from vrambudget.rehearse.events import rehearse_job
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.linux_addresses import LinuxAllocator
from vrambudget.validate import validate

MIB = 2**20
FOLDER = Path(__file__).parent / "records" / "published"
T4 = [r for r in read_records(FOLDER / "real_cards.jsonl") if r["card"] == "t4"]


def addresses(sizes, events=None):
    """Where storages lie, seen from the first, without the gaps behind pages."""
    allocator = LinuxAllocator()
    allocator.run(range(len(sizes)) if events is None else events, sizes)
    at = [allocator.address_of(i) // 512 // 4097 * 2 * MIB for i in range(len(sizes))]
    return [address - at[0] for address in at]


def test_segments_lie_as_cuda_malloc_s_did_in_a_published_log():
    # github.com/rapidsai/rmm/issues/75; PyTorch's segments of these sizes are 24 MiB and 40 MiB
    log = [0x7F610C000000, 0x7F610A000000, 0x7F60EC000000, 0x7F60E8000000]
    two, others = addresses([23_246_208, 23_246_176]), addresses([39_343_856, 39_343_856])
    assert two == [0, log[1] - log[0]] == [0, -32 * MIB]
    assert others == [0, log[3] - log[2]] == [0, -64 * MIB]


def test_what_is_left_of_a_chunk_is_filled_from_its_lowest_room():
    # 24 MiB each in chunks of 32: 6 MiB (here three segments of 2) lie behind the lower one
    sizes = [24 * MIB, 24 * MIB, MIB, MIB, MIB]
    assert addresses(sizes)[2] == -32 * MIB + 24 * MIB == 0x7F610B800000 - 0x7F610C000000


def test_room_that_is_given_back_joins_what_lies_beside_it():
    sizes = [24 * MIB, 24 * MIB, 40 * MIB]
    allocator = LinuxAllocator()
    allocator.run([0, 1, ~0], sizes)
    allocator.empty_cache()  # 8 MiB behind the second segment, and the first one's chunk
    allocator.run([2], sizes)
    assert allocator.address_of(2) - allocator.address_of(1) == 24 * MIB // (2 * MIB) * 4097 * 512


def test_blocks_of_two_segments_are_never_one():
    allocator = LinuxAllocator()
    allocator.run([0, 1, ~0, ~1, 2], [16 * MIB, 16 * MIB, 32 * MIB])
    assert allocator.peak_reserved_bytes == 64 * MIB


def test_of_two_free_blocks_of_one_size_the_newer_segment_s_is_taken():
    sizes, events = [40 * MIB, 40 * MIB, 40 * MIB], [0, 1, ~0, ~1, 2]
    for kind, offset in ((CachingAllocator, 0), (LinuxAllocator, 1)):
        allocator = kind()
        allocator.run(events, sizes)
        assert allocator.address_of(2) == allocator.address_of(offset)


def test_streams_have_segments_of_their_own_there():
    job = {"batch": 4, "parallel": "fsdp2", "ranks": 4, "gpu": "a100-80gb"}
    rising = vrambudget.estimate("gpt2", **job)
    linux = vrambudget.estimate("gpt2", **job, driver_addresses="linux")
    assert linux.peak.requested_bytes == rising.peak.requested_bytes
    assert linux.peak.reserved_bytes >= linux.peak.allocated_bytes


@pytest.mark.parametrize("record", T4, ids=lambda record: record["id"])
def test_a_real_t4_reserved_what_is_predicted_with_these_addresses(record):
    (found,) = validate([record])
    assert abs(found.error("reserved")) < 0.0013
    assert abs(found.error("allocated")) < 0.001


def test_five_of_six_rows_of_the_t4_are_reserved_to_the_byte():
    assert [check.error("reserved") == 0 for check in validate(T4)].count(True) == 5


def test_a_process_that_trained_before_keeps_the_workspaces_of_both_threads():
    job = {"mode": "eval", "precision": "fp32", "block": 128, "gpu": "t4"}
    fresh, warm = (vrambudget.estimate("gpt2", **job, warm_process=warm) for warm in (False, True))
    first, last = (budget.breakdown["workspaces"] for budget in (fresh, warm))
    assert last - first == 8_519_680  # backward's, which an evaluation has not
    assert first == 8_519_680 + MIB


@pytest.mark.virtual_gpu
class TestOnAVirtualGpu:
    """The stub library's driver follows the same rule, written a second time, in C."""

    pytestmark = VIRTUAL_GPU

    @pytest.mark.parametrize("driver_addresses", ["rising", "linux"])
    def test_it_reserves_what_is_estimated(self, driver_addresses):
        fields = ("model", "task", "precision", "optimizer", "keep_outputs", "forward_returns")
        job = {key: T4[-1][key] for key in fields}
        job |= {"id": "bert", "batch": 8, "block": 256, "steps": 2, "warm_process": True}
        job |= {"driver_addresses": driver_addresses}
        found = rehearse_job(runnable(job), gpu=vrambudget.find_gpu("t4"), events=False)
        record = {**job, "card": "t4", "measured": found.measured, "versions": found.versions}
        (check,) = validate([json.loads(json.dumps(record))])
        assert check.predicted == check.measured
