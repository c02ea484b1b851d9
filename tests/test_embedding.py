"""Embedding against what PyTorch 2.11's allocator recorded on virtual cards."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget.dtypes import bfloat16, float32, int64
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import Parameter, Tensor, empty
from vrambudget.ops.cub import exclusive_sum_bytes, sort_pairs_bytes, unique_by_key_bytes
from vrambudget.ops.embedding import embedding


def backward_of(card, indices, weight_shape, dtype):
    with recording(CARDS[card]) as tape:
        weight = Parameter(weight_shape, dtype)
        y = embedding(empty(indices[0], int64, indices[1]), weight)
        dy = empty(y.shape, y.dtype)
        with trace(tape) as part:
            gradient = y.node.backward(dy)
        assert gradient.shape == weight.shape
        return part.text


# Up to 3072 indices there is the gradient and nothing else. Beyond, for n = 4096 indices and a
# weight [50257, 64], min(n, V) = 4096 segments and 4096 / 10 + 4096 = 4505 parts:
#   32768 = 8 n                     sorted indices, original rows, positions, ...
#   84479 = 255 + 2 x 32768 (spare) + 16384 (digits) + 2 x 1024 (ceil(4096 / 3840) tiles) + 256
#   12865792 = 4 x 50257 x 64       the gradient
#   1279 = 255 + 256 + 768          768 = 16 x (tiles + 32), up to 256: up to 16 tiles
#   36040 = 8 x 4505; 1153280 = 4 x 4505 x 64
RECORDED = [
    pytest.param("a100-80gb", ((3072,), None), (50257, 64), float32, "+12865792", id="one kernel"),
    pytest.param(
        "a100-80gb",
        ((4096,), None),
        (50257, 64),
        float32,
        "+32768 +32768 +32768 +84479 -3 -2 +12865792 +32768 +8 +32768 +1279 -8 -7 "
        "+32768 +32768 +1279 -11 +8 +36040 +1153280 -14 -13 -12 -10 -9 -6 -5 -1 -0",
        id="sorted",
    ),
    pytest.param(
        "t4",  # tiles of 2816 and 320: 2 and 13
        ((4096,), None),
        (50257, 64),
        float32,
        "+32768 +32768 +32768 +84479 -3 -2 +12865792 +32768 +8 +32768 +1279 -8 -7 "
        "+32768 +32768 +1279 -11 +8 +36040 +1153280 -14 -13 -12 -10 -9 -6 -5 -1 -0",
        id="sorted on a T4",
    ),
    pytest.param(
        "a100-80gb",  # 65 segments, blocks of 64 threads: 65 blocks < 4 x 108; 8192 / 10 + 65 = 884
        ((8192,), None),
        (65, 64),
        bfloat16,
        "+65536 +65536 +65536 +151039 -3 -2 +8320 +65536 +8 +65536 +1279 -8 -7 "
        "+520 +520 +1279 -11 +8 +7072 +7072 +16640 -15 -14 -13 -12 -10 -9 -6 -5 -1 -0",
        id="few segments are added atomically, in float32",
    ),
    pytest.param(
        "a100-80gb",
        ((20000,), None),
        (65, 768),
        float32,
        "+160000 +160000 +160000 +343039 -3 -2 +199680 +160000 +8 +160000 +1279 -8 -7 "
        "+520 +520 +1279 -11 +8 +16520 +16520 -14 -13 -12 -10 -9 -6 -5 -1 -0",
        id="few segments of float32 need no second gradient",
    ),
    pytest.param(
        "h100-80gb",  # 8 + 9 + 10 tiles: 4608, 4480 and 896 items each
        ((65536,), None),
        (128256, 64),
        bfloat16,
        "+524288 +524288 +524288 +1080831 -2 -3 +16416768 +524288 +8 +524288 +1279 -7 -8 "
        "+524288 +524288 +2303 -11 +8 +576712 +18454784 -0 -1 -10 -12 -13 -14 -5 -6 -9",
        id="sorted on an H100",
    ),
    pytest.param(
        "rtx-4090",
        ((262144,), None),
        (50257, 64),
        bfloat16,
        "+2097152 +2097152 +2097152 +4281855 -2 -3 +6432896 +2097152 +8 +2097152 +14335 -7 -8 "
        "+402056 +402056 +2047 -11 +8 +611768 +19576576 -0 -1 -10 -12 -13 -14 -5 -6 -9",
        id="more indices than rows, on an RTX 4090",
    ),
    pytest.param(
        "a100-80gb",
        ((2, 100), (0, 1)),
        (1000, 64),
        float32,
        "+1600 +256000 -0",
        id="expanded indices",
    ),
    pytest.param(
        "a100-80gb",
        ((40, 100), (0, 1)),
        (1000, 64),
        float32,
        "+32000 +32000 +32000 +32000 +82943 -4 -3 +256000 +32000 +8 +32000 +1279 -9 -8 "
        "+8000 +8000 +1279 -12 +8 +11200 +358400 -15 -14 -13 -11 -10 -7 -6 -2 -1 -0",
        id="expanded indices are copied, then sorted",
    ),
]


@pytest.mark.parametrize(("card", "indices", "weight", "dtype", "recorded"), RECORDED)
def test_backward_is_what_pytorch_recorded(card, indices, weight, dtype, recorded):
    assert backward_of(card, indices, weight, dtype) == normal(recorded)


def test_forward_copies_only_indices_that_cannot_be_flattened():
    with recording(CARDS["t4"]) as tape:
        weight = Parameter((1000, 64), float32)
        row, expanded = empty((1, 100), int64), empty((2, 100), int64, (0, 1))
        with trace(tape) as flat:
            first = embedding(row, weight)
        with trace(tape) as copied:
            second = embedding(expanded, weight)
    assert first.shape == (1, 100, 64)
    assert second.shape == (2, 100, 64)
    assert flat.text == "+25600"
    assert copied.text == "+1600 +51200 -0"


def test_indices_live_until_backward_only_if_the_weight_wants_a_gradient():
    for wants, then in ((True, ""), (False, "-?800")):
        with recording(CARDS["t4"]) as tape:
            weight = Parameter((10, 4), float32)
            weight.requires_grad = wants
            indices = empty((100,), int64)
            y = embedding(indices, weight)
            with trace(tape) as part:
                del indices
        assert part.text == then
        assert y.requires_grad is wants


def test_a_gradient_with_gaps_is_copied_after_the_indices():
    with recording(CARDS["a100-80gb"]) as tape:
        weight = Parameter((1024, 64), bfloat16)
        y = embedding(empty((4, 100), int64, (0, 1)), weight)
        dy = Tensor(y.shape, y.dtype, empty((1,), y.dtype).storage, (0, 0, 0))
        with trace(tape) as part:
            gradient = y.node.backward(dy)
    assert gradient.dtype is bfloat16
    assert part.text == "+3200 +51200 +131072 -0 -1"


@pytest.mark.parametrize(
    ("card", "sort", "unique", "scan"),
    [  # 1,000,000 indices, 10^9 rows; recorded
        ("a100-80gb", 16284159, 9983, 18943),
        ("t4", 16381439, 51199, 18943),
        ("v100-16gb", 16381439, 51199, 18943),
        ("rtx-3060", 16284159, 51199, 18943),
        ("h100-80gb", 16240127, 4607, 18943),
    ],
)
def test_temporary_storage_of_a_million_items_follows_the_architecture(card, sort, unique, scan):
    n = 10**6
    with recording(CARDS[card]):
        assert (sort_pairs_bytes(n), unique_by_key_bytes(n), exclusive_sum_bytes(n)) == (
            sort,
            unique,
            scan,
        )


def test_all_that_backward_makes_goes_but_the_gradient():
    with recording(CARDS["a100-80gb"]) as tape:
        weight = Parameter((50257, 768), float32)
        y = embedding(empty((8, 1024), int64), weight)
        run_backward(y)
        del y
        alive = {i for i in tape.events if i >= 0} - {~i for i in tape.events if i < 0}
        assert (
            sum(tape.sizes[i] for i in alive) == 2 * 4 * 50257 * 768
        )  # the weight and its gradient
