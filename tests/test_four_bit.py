"""4-bit weights against what bitsandbytes 0.50.2 recorded on a virtual A100 with PyTorch 2.11."""

import pytest
from sequences import CARDS, normal, trace

import vrambudget
from vrambudget.config.gpus import find_gpu
from vrambudget.config.job import Job
from vrambudget.dtypes import bfloat16, float16, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import ModelOptions, context, no_grad, recording
from vrambudget.engine.tensor import Parameter, empty
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.layers import Linear
from vrambudget.ops.four_bit import quantise
from vrambudget.ops.four_bit_kernels import reads_packed
from vrambudget.ops.linear import cublas_workspace
from vrambudget.training.kbit import Linear4bit

TINY = {
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 320,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def with_workspaces():
    """Make what other layers' products have made: cuBLAS's workspaces and cuBLASLt's."""
    for thread in ("main", "autograd"):
        context.thread = thread
        cublas_workspace(epilogue=True)
    context.thread = "main"


def layer_of(shape, *, double):
    out_features, features = shape
    layer = Linear4bit(Linear(features, out_features, bias=double))
    if double:
        layer.bias = Parameter((out_features,), float32)  # as PEFT's preparation leaves it
        layer.bias.requires_grad = False
    return layer


# A weight of 300 x 128 elements has 600 blocks of 64 and, doubled, 3 blocks of 256:
#   2400 = 4 x 600, 19200 = 38400 / 2, 64 = 16 codes, 1024 = 256 codes, 12 = 4 x 3
# 2 x 1024 rows: 524288 = x as bfloat16, 1228800 = y as bfloat16, 2457600 = y as float32.
# The first forward casts the bias, 1200 bytes, to bfloat16.
RECORDED = [
    pytest.param(
        (300, 128),
        True,
        (
            "+2400 +19200 +64 +64 +4 -3 -4 +4 +2400 +1024 +12 +600 +1024 -0 -6",
            "+524288 +600 -?1200 +2400 +2400 +76800 +1228800 -2 -3 -4 +2457600 -0 -5",
            "+2457600 +1228800 +2400 +76800 -2 +524288 -1 -3 +1048576 -0 -4",
            "+2400",
        ),
        id="double",
    ),
    pytest.param(
        (2048, 1024),
        False,
        (
            "+131072 +1048576 +64 +64 +4 -3 -4",
            "+4194304 +4194304 +8388608 -1 +16777216 -0 -2",
            "+16777216 +8388608 +4194304 +4194304 -1 -2 +8388608 -0 -3",
            "+16384",
        ),
        id="single",
    ),
]


@pytest.mark.parametrize(("shape", "double", "recorded"), RECORDED)
def test_a_4_bit_layer_is_what_bitsandbytes_recorded(shape, double, recorded):
    loaded, forward, backward, few = recorded
    with recording(CARDS["a100-80gb"], ModelOptions(dtype=bfloat16)) as tape:
        with_workspaces()
        layer = layer_of(shape, double=double)
        weight = empty(shape, bfloat16)
        with trace(tape) as part:
            tables = []
            layer.quantised = quantise(weight, tables, double=double)
        assert part.text == normal(loaded)

        x = Parameter((2, 1024, shape[1]), float32)
        with trace(tape) as part:
            y = layer(x)
        assert part.text == normal(forward)

        with trace(tape) as part:
            run_backward(y)
        assert part.text == normal(backward)

        four_rows = empty((1, 4, shape[1]), bfloat16)
        with trace(tape) as part, no_grad():
            z = layer(four_rows)
        assert part.text == few
        del tables, z


def estimate(**fields):
    return vrambudget.estimate(TINY, batch=2, block=1024, quant="nf4", gpu="a100-80gb", **fields)


def test_all_but_linear_layers_is_cast_to_float32_and_all_are_counted_as_parameters():
    plain = vrambudget.estimate(TINY, batch=2, block=1024, gpu="a100-80gb", lora_rank=4)
    quantised = estimate(lora_rank=4)

    assert quantised.parameters == plain.parameters
    # 4 projections of 128 x 128, 3 of 320 x 128: 188,416 elements in 4 bit, absmax in 8.
    four_bit = 188_416 // 2 + 188_416 // 64
    embeddings_and_norms = 4 * (2 * 100 * 128 + 3 * 128)
    adapters = 4 * 4 * (4 * (128 + 128) + 3 * (320 + 128))
    token_counts = four_bit + embeddings_and_norms + adapters
    small = 7 * (64 + 4 + 1024) + 1024 + 4 * (2944 // 256 + 7) + 128  # tables, offsets, absmax
    assert token_counts < quantised.breakdown["weights"] < token_counts + small + 512


def test_evaluation_leaves_what_is_not_quantised_in_16_bits():
    trained, evaluated = estimate(lora_rank=4), estimate(mode="eval")

    assert evaluated.breakdown["weights"] < trained.breakdown["weights"]


def test_4_bit_weights_alone_do_not_train():
    with pytest.raises(VramBudgetError, match="such weights cannot be trained"):
        Job.parse({"quant": "nf4"})


@pytest.mark.parametrize(
    ("model", "task"),
    [
        ("roberta-base", "masked-lm"),
        ("nanogpt", None),
        ("t5-small", None),
        ("mixtral-8x7b", None),
        ("gpt2", "seq-cls"),
    ],
)
def test_models_whose_4_bit_form_is_not_followed_are_refused(model, task):
    with pytest.raises(NotModelledError, match="in nf4 is not modelled"):
        vrambudget.estimate(model, block=64, quant="nf4", mode="eval", task=task)


# Up to how many rows gemm_4bit of bitsandbytes 0.50.2 reads a packed weight in fp16, by asking its
# _gemm_4bit_use_custom_cuda: q, k, down and up of Llama 3 8B; k of Llama 3.2 1B; [3072, 512].
READ_PACKED = {
    "t4": (64, 32, 64, 128, 64, 320),
    "a100": (5, 16, 5, 64, 32, 512),
    "a10": (64, 16, 64, 128, 23, 192),
    "h100": (7, 7, 5, 32, 32, 320),
    "rtx-4090": (8, 12, 64, 128, 23, 320),
    "l4": (32, 12, 128, 256, 23, 192),
    "rtx-5090": (8, 8, 8, 64, 23, 320),
    "b200": (4, 4, 4, 8, 4, 4),
    "v100": (7, 7, 7, 7, 7, 7),
}
WEIGHTS = ((4096, 4096), (1024, 4096), (4096, 14336), (14336, 4096), (512, 2048), (3072, 512))


@pytest.mark.parametrize(("card", "most"), READ_PACKED.items(), ids=READ_PACKED)
def test_few_rows_are_multiplied_by_packed_weights(card, most):
    gpu = find_gpu(card)
    of_card = gpu.compute_capability, gpu.multiprocessors
    for shape, rows in zip(WEIGHTS, most, strict=True):
        assert all(reads_packed(n, *shape, float16, of_card) for n in range(1, rows + 1))
        assert not reads_packed(rows + 1, *shape, float16, of_card)


def test_rows_in_float32_and_odd_weights_are_dequantised():
    of_t4 = find_gpu("t4").compute_capability, 40
    assert reads_packed(7, 4096, 4096, float32, of_t4)
    assert not reads_packed(8, 4096, 4096, float32, of_t4)
    assert not reads_packed(8, 4096, 4096, bfloat16, of_t4)  # no such tensor cores
    assert not reads_packed(1, 4096, 4100, float16, of_t4)  # inputs are no multiple of a block


def test_a_report_says_what_bitsandbytes_may_do_besides():
    large = estimate(lora_rank=4, optimizer="paged-adamw-8bit")
    few = vrambudget.estimate(TINY, batch=1, block=64, quant="nf4", lora_rank=4)
    paged = vrambudget.estimate("gpt2", block=64, optimizer="paged-adamw-8bit")

    assert not any("bitsandbytes" in warning for warning in large.warnings)
    assert not any("bitsandbytes" in warning for warning in few.warnings)
    assert any("paged optimizer states" in warning for warning in paged.warnings)
