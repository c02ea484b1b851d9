"""Layer and RMS normalisation against what PyTorch 2.11's allocator recorded on virtual cards."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.autocast import autocast
from vrambudget.engine.context import recording
from vrambudget.engine.tensor import Parameter, ShapeError, empty
from vrambudget.ops.norm import layer_norm, rms_norm


def activations(shape, dtype, strides=None):
    x = empty(shape, dtype, strides)
    x.requires_grad = True
    return x


def norm_on(card, kind, shape, dtype, *, bias=True):
    """Return the events of forward and of backward."""
    with recording(CARDS[card]) as tape:
        features = shape[-1:]
        x = activations(shape, dtype)
        weight = Parameter(features, dtype)
        offset = Parameter(features, dtype) if bias else None
        with trace(tape) as forward:
            y = layer_norm(x, weight, offset) if kind == "layer_norm" else rms_norm(x, weight)
        dy = empty(y.shape, y.dtype)
        with trace(tape) as backward:
            gradients = y.node.backward(dy)
        assert next(g.shape for g in gradients if g is not None) == shape
        return forward.text, backward.text


def test_layer_norm_keeps_a_mean_and_a_deviation_per_row():
    assert norm_on("a100-80gb", "layer_norm", (1000, 768), bfloat16) == (
        "+1536000 +4000 +4000",  # 2 x 1000 x 768, 4 x 1000 twice
        "+1536000 +1536 +1536",
    )


def test_rms_norm_keeps_a_deviation_per_row():
    assert norm_on("a100-80gb", "rms_norm", (1000, 768), bfloat16) == (
        "+1536000 +4000",
        "+1536000 +1536",
    )


# More than 65536 rows, C / 32 < multiprocessors / 2. 65537 rows of 768: 24 warps of features,
# 32768 / 24 = 1365 parts: 4 x 1365 x 768 = 4,193,280, then two sums over 1365 rows.
PARTS = [
    (
        "a100-80gb",
        (65537, 768),
        True,
        (
            "+201329664 +3072 +3072 +4193280 +4193280 +3072 +8650752 +24 -1 -6 -7 "
            "+3072 +8650752 +24 -10 -2 -3 -4 -9"
        ),
    ),
    ("a100-80gb", (65537, 768), False, "+201329664 +3072 +4193280 +3072 +8650752 +24 -1 -2 -4 -5"),
    ("a100-80gb", (65536, 768), True, "+201326592 +3072 +3072"),
    ("a100-80gb", (70000, 2000), True, "+560000000 +8000 +8000"),  # 62 warps >= 108 / 2
    ("a100-80gb", (100000, 1600), False, "+640000000 +6400 +4192000 +6400 -1 -2"),
    ("a100-80gb", (65537, 33), False, "+8650884 +132 +270468 +132 -1 -2"),  # 65537 / 32 = 2049
]


@pytest.mark.parametrize(("card", "shape", "bias", "recorded"), PARTS)
def test_many_rows_of_few_features_are_summed_in_parts(card, shape, bias, recorded):
    assert norm_on(card, "layer_norm", shape, float32, bias=bias)[1] == normal(recorded)
    if not bias:
        assert norm_on(card, "rms_norm", shape, float32)[1] == normal(recorded)


def test_the_number_of_multiprocessors_decides_what_few_features_are():
    few = norm_on("rtx-3060", "layer_norm", (70000, 400), float32, bias=False)[1]
    many = norm_on("rtx-3060", "layer_norm", (70000, 500), float32, bias=False)[1]
    assert "-" in few  # 12 warps < 28 / 2
    assert "-" not in many


def test_under_autocast_layer_norm_reads_float32_copies_from_the_last_argument_on():
    with recording(CARDS["a100-80gb"]) as tape:
        x = activations((1000, 768), float16)
        weight, bias = Parameter((768,), float16), Parameter((768,), float16)
        with trace(tape) as part, autocast(float16):
            y = layer_norm(x, weight, bias)
    assert y.dtype is float32
    assert part.text == "+3072 +3072 +3072000 +3072000 +4000 +4000"


def test_under_autocast_rms_norm_stays_in_16_bits():
    with recording(CARDS["a100-80gb"]), autocast(bfloat16):
        assert rms_norm(activations((10, 64), bfloat16), None).dtype is bfloat16


def test_a_transposed_input_is_copied_in_forward_and_again_in_backward():
    with recording(CARDS["a100-80gb"]) as tape:
        x = activations((1000, 768), bfloat16, (1, 1000))
        with trace(tape) as forward:
            y = rms_norm(x, Parameter((768,), bfloat16))
        dy = empty(y.shape, y.dtype)
        with trace(tape) as backward:
            gradients = y.node.backward(dy)
    assert len(gradients) == 3
    assert forward.text == "+1536 +1536000 +1536000 +4000 -1"  # the first is the weight
    assert backward.text == "+1536000 +1536000 +1536 -0"


def test_parameters_of_another_width_are_an_error():
    with (
        recording(CARDS["t4"]),
        pytest.raises(ShapeError, match=r"layer_norm of \[2, 8\] by \[4\]"),
    ):
        layer_norm(activations((2, 8), float32), Parameter((4,), float32), None)
