"""A pointwise result lies in memory as PyTorch lays it, dimensions of 1 included."""

import pytest

from vrambudget.config.gpus import find_gpu
from vrambudget.dtypes import float32
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import empty, empty_like
from vrambudget.ops import elementwise
from vrambudget.scenario import platform_of

torch = pytest.importorskip("torch")

LAYOUTS = [  # shape, strides of a, strides of b; None: contiguous
    ((1, 8, 4, 4), (8, 1, 32, 8), None),  # what attention over pixels returns, plus an image
    ((1, 8, 4, 4), (8, 1, 32, 8), (8, 1, 32, 8)),
    ((1, 8, 4, 4), (128, 1, 32, 8), (8, 1, 32, 8)),
    ((2, 8, 1, 1), (8, 1, 8, 8), None),
    ((2, 8, 4, 4), (128, 1, 32, 8), None),
    ((2, 8, 4, 4), (16, 1, 32, 8), (128, 16, 4, 1)),  # with gaps
    ((1, 8, 2, 4, 4), (8, 1, 128, 32, 8), (8, 1, 128, 32, 8)),
]


@pytest.mark.parametrize(("shape", "a", "b"), LAYOUTS)
def test_pointwise_results_lie_as_pytorchs_do(shape, a, b):
    real = [
        torch.empty(shape) if s is None else torch.empty(4096).as_strided(shape, s) for s in (a, b)
    ]
    with recording(platform_of(find_gpu("a100-80gb"), "2.11")):
        x, y = (empty(shape, float32, s) for s in (a, b))
        assert elementwise.add(x, y).actual_strides() == (real[0] + real[1]).stride()
        assert elementwise.add(y, x).actual_strides() == (real[1] + real[0]).stride()
        silu = torch.nn.functional.silu(real[0])
        assert elementwise.silu(x).actual_strides() == silu.stride()
        assert elementwise.mul_scalar(x).actual_strides() == (real[0] * 2).stride()
        assert empty_like(x).actual_strides() == torch.empty_like(real[0]).stride()
