"""8-bit weights against what bitsandbytes 0.50.2 recorded on a virtual A100 with PyTorch 2.11."""

from pathlib import Path

import pytest
from sequences import CARDS, normal, trace

import vrambudget
from vrambudget.config.record import read_records
from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import ModelOptions, context, no_grad, on_meta, recording
from vrambudget.engine.tensor import Parameter, empty
from vrambudget.models.parts.layers import Linear
from vrambudget.ops.linear import cublas_workspace
from vrambudget.training.kbit import Linear8bit
from vrambudget.validate import validate

REHEARSED = Path(__file__).parent / "records" / "generation" / "eight_bit.jsonl"

# A weight of 300 x 128: 76800 in float16, 1200 = 300 magnitudes, 38400 codes.
LOADED = "+76800 +1200 +38400 -0"
# 2 x 1024 rows: 524288 = x in float16, 8192 magnitudes, 262144 codes, or bools; 2457600 = y in
# int32 or float32, 1228800 in float16; 1, 32 and 4: whether any value is large.
FORWARD = (
    "+524288 +8192 +262144 +524288 +262144 -3 +1 +32 +4 -5 -6 -7 +1 -8 -0 -4"
    " +2457600 +1228800 +2457600 -1 -2 -9 -10"
)
BACKWARD = "+2457600 +153600 +1200 -2 +1048576 +8519680 -0 -1"
# One row of bfloat16, whose bias is cast first; five of float16, cast from it.
ONE_ROW = "+600 -?1200 +256 +4 +128 +256 +128 -4 +1 -6 -1 -5 +1200 +600 +600 -2 -3 -7 -8"
FIVE_ROWS = "+600 -?600 +20 +640 +1280 +640 -3 +1 -5 +1 -4 -6 +6000 +3000 -1 -2 -7"
# 130 inputs are no multiple of 4: codes and weight in float32, 2600 and 15600, and their product.
ODD = (
    "+60 -?60 +1300 +20 +650 +1300 +650 -4 +1 -6 +1 -1 -5 -7 +600 +2600 +15600 +600 -9 -10 +600"
    " -11 -12 +300 +300 -13 -2 -3 -8"
)


def eight_bit(features, out_features, tape):
    with on_meta():
        layer = Linear8bit(Linear(features, out_features))
    layer.bias = Parameter((out_features,), float32)
    layer.bias.requires_grad = False
    loaded = empty((out_features, features), bfloat16)
    with trace(tape) as part:
        layer.quantise(loaded, [], double=True)
    return layer, part.text


def test_an_8_bit_layer_is_what_bitsandbytes_recorded():
    with recording(CARDS["a100-80gb"], ModelOptions(dtype=bfloat16)) as tape:
        cublas_workspace(epilogue=True)
        layer, loaded = eight_bit(128, 300, tape)
        assert loaded == normal(LOADED)

        x = Parameter((2, 1024, 128), float32)
        with trace(tape) as part:
            y = layer(x)
        assert part.text == normal(FORWARD)

        with trace(tape) as part:
            run_backward(y)
        assert part.text == normal(BACKWARD)

        one, five = empty((1, 1, 128), bfloat16), empty((1, 5, 128), float16)
        for rows, recorded in ((one, ONE_ROW), (five, FIVE_ROWS)):
            with trace(tape) as part, no_grad():
                z = layer(rows)
            assert part.text.removesuffix(" -?600") == normal(recorded)
        del y, z


def test_features_that_are_no_multiple_of_four_are_multiplied_in_float32():
    with recording(CARDS["a100-80gb"], ModelOptions(dtype=bfloat16)) as tape:
        cublas_workspace(epilogue=True)
        layer, _ = eight_bit(130, 30, tape)
        layer.bias = Parameter((30,), float16)
        x = empty((1, 5, 130), bfloat16)
        with trace(tape) as part, no_grad():
            y = layer(x)
        assert part.text == normal(ODD)
        del y


def test_the_input_of_a_product_outlives_backward():
    with recording(CARDS["a100-80gb"], ModelOptions(dtype=bfloat16)) as tape:
        layer, _ = eight_bit(128, 300, tape)
        x = Parameter((1, 8, 128), float32)
        context.operation = "input"
        y = layer(x)
        held = x.storage.index
        x.storage = empty((1,), float32).storage
        run_backward(y)
        assert held in tape.alive_at(len(tape.events))
        del y
        assert held not in tape.alive_at(len(tape.events))


def test_the_report_says_what_a_column_with_outliers_takes():
    fields = {"quant": "int8", "gpu": "a100-80gb", "batch": 2}
    report = vrambudget.estimate("gpt2", block=512, lora_rank=4, **fields)
    (said,) = [warning for warning in report.warnings if "6.0 or more" in warning]
    # 1,024 rows, and 3,072 outputs of the widest layer, in float32, and an index
    assert "up to 16.01 KiB more, and keeps for backward a part of it" in said


@pytest.mark.parametrize("record", read_records(REHEARSED), ids=lambda record: record["id"])
def test_8_bit_weights_take_what_was_rehearsed(record):
    (check,) = validate([record])
    assert check.problem is None
    assert check.predicted == check.measured
