"""Sums against what PyTorch 2.11's allocator recorded on virtual cards."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget import estimate
from vrambudget.dtypes import bfloat16, float32
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import empty
from vrambudget.ops.reduce import sum_to_size
from vrambudget.ops.reduce_buffers import reduction_buffers


def sum_on(card, shape, target, dtype, strides=None):
    with recording(CARDS[card]) as tape:
        x = empty(shape, dtype, strides)
        with trace(tape) as part:
            y = sum_to_size(x, target)
        assert y.shape == target
        return part.text


# A bias' gradient [8192, 2304] -> [2304] on an A100: 4 outputs a thread, 576 / 32 = 18 blocks of
# 32 x 4 threads across, 108 x (2048 / 128) = 1728 blocks fill the card, so 1728 / 18 = 96 split the
# 8192 rows: 96 x 2304 outputs x 4 bytes x 32 x 4 = 113,246,208; semaphores 4 x 18.
RECORDED = [
    ("a100-80gb", (8192, 2304), (2304,), bfloat16, "+4608 +113246208 +72 -1 -2"),
    ("t4", (8192, 2304), (2304,), bfloat16, "+4608 +21233664 +72 -1 -2"),
    ("rtx-4090", (8192, 2304), (2304,), bfloat16, "+4608 +101449728 +72 -1 -2"),
    ("a100-80gb", (8192, 50257), (50257,), bfloat16, "+100514"),  # outputs enough to fill the card
    ("a100-80gb", (1000, 768), (768,), bfloat16, "+1536"),  # too few rows to split
    ("a100-80gb", (262144, 3), (3,), float32, "+12 +1536 +8 -1 -2"),  # 3: one output a thread
    ("a100-80gb", (4096, 65), (65,), bfloat16, "+130 +133120 +12 -1 -2"),
    ("a100-80gb", (8, 1024, 768), (1, 1024, 768), float32, "+3145728"),  # learned positions
    ("a100-80gb", (8, 1024, 768), (1, 1, 768), float32, "+3072 +50331648 +24 -1 -2"),
    ("t4", (8, 1024, 768), (1, 1, 768), float32, "+3072 +21233664 +24 -1 -2"),
    ("a100-80gb", (3, 100000), (3, 1), float32, "+12"),  # the dimension that lies in a row
    ("a100-80gb", (100000, 3), (1, 1), bfloat16, "+2 +148 +4 -1 -2"),
]


@pytest.mark.parametrize(("card", "shape", "target", "dtype", "recorded"), RECORDED)
def test_sum_is_what_pytorch_recorded(card, shape, target, dtype, recorded):
    assert sum_on(card, shape, target, dtype) == recorded


def test_memory_order_decides_not_the_order_of_dimensions():
    rows = sum_on("a100-80gb", (768, 4096), (768, 1), bfloat16)
    columns = sum_on("a100-80gb", (768, 4096), (768, 1), bfloat16, strides=(1, 768))
    assert rows == "+1536"
    assert columns == "+1536 +25165824 +24 -1 -2"


def test_beyond_2_gib_a_sum_runs_in_halves():
    # 700,000 x 768 x 4 = 2,150,400,000 bytes > 2**31
    assert sum_on("a100-80gb", (700000, 768), (768,), float32) == (
        "+3072 +134479872 +24 -1 -2 +134479872 +24 -3 -4"
    )


def test_halves_of_a_16_bit_sum_wait_in_a_float32_buffer():
    recorded = "+1536 +3072 +268959744 +24 -2 -3 +268959744 +24 -1 -4 -5"
    assert sum_on("a100-80gb", (1400000, 768), (768,), bfloat16) == normal(recorded)


def test_dimensions_that_lie_one_after_another_count_as_one():
    device = CARDS["a100-80gb"]
    sizes = {"itemsize": 4, "output_itemsize": 4, "accumulator": 4}
    joined = reduction_buffers(device, (8192, 768), (768, 1), (0,), **sizes)
    apart = reduction_buffers(device, (8, 1024, 768), (1024 * 768, 768, 1), (0, 1), **sizes)
    assert joined == apart
    assert joined.kernels


@pytest.mark.parametrize(("target", "is_view"), [((5,), True), ((1, 5), False), ((), False)])
def test_a_gradient_that_loses_leading_dimensions_is_a_view_of_its_sum(target, is_view):
    with recording(CARDS["a100-80gb"]):
        y = sum_to_size(empty((8, 5), float32), target)
        assert y.is_view == is_view


def test_nothing_is_summed_without_a_buffer():
    job = {"block": 1, "label_smoothing": 0.1, "steps": 1}  # no token has a next one
    assert estimate("gpt2", **job).peak.allocated_bytes > 0
