"""Mixtures of experts: what routing decides; operations as PyTorch 2.11's allocator saw them."""

import pytest
from sequences import CARDS, normal, trace

from vrambudget import estimate
from vrambudget.dtypes import bfloat16, int32, int64
from vrambudget.engine.context import ModelOptions, recording
from vrambudget.engine.tensor import Parameter, empty
from vrambudget.errors import VramBudgetError
from vrambudget.models.parts.experts import rows_per_expert
from vrambudget.ops.grouped import grouped_linear
from vrambudget.ops.indexing import index_rows
from vrambudget.ops.ordering import sort
from vrambudget.ops.selection import nonzero
from vrambudget.ops.workspaces import cublas_workspace

MIXTRAL = {
    "model_type": "mixtral",
    "vocab_size": 1000,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
JOB = {"batch": 2, "block": 64, "precision": "bf16", "gpu": "t4"}


def peak(**fields):
    return estimate(MIXTRAL, **{**JOB, **fields}).check().peak.allocated_bytes


def warnings(**fields):
    return " ".join(estimate(MIXTRAL, **{**JOB, **fields}).warnings)


@pytest.mark.parametrize(("tokens", "top_k", "experts"), [(384, 2, 8), (7, 2, 8), (3, 2, 16)])
@pytest.mark.parametrize("routing", ["uniform", "collapsed"])
def test_every_token_goes_to_its_experts(routing, tokens, top_k, experts):
    with recording(CARDS["t4"], ModelOptions(routing=routing)):
        counts = rows_per_expert(tokens, top_k, experts)
    assert sum(counts) == tokens * top_k
    assert len(counts) <= experts
    assert 0 < min(counts) <= max(counts) <= tokens  # an expert sees a token once


def test_grouped_products_do_not_care_about_routing():
    assert peak(routing="worst") == peak(routing="uniform")
    assert "does not matter" in warnings()


@pytest.mark.parametrize("precision", ["bf16", "amp-bf16"])
def test_the_worst_case_is_the_worse_of_both_extremes(precision):
    fields = {"experts": "eager", "precision": precision}
    even, worst = peak(**fields), peak(routing="worst", **fields)
    assert worst >= even
    assert "experts one by one" in warnings(**fields)


def test_wide_experts_take_more_where_all_tokens_go_to_the_same_few():
    wide = {**MIXTRAL, "intermediate_size": 4096, "vocab_size": 50}
    fields = {**JOB, "gpu": "a100-80gb", "block": 512, "mode": "eval", "experts": "eager"}
    even, worst = (estimate(wide, **fields, routing=each) for each in ("uniform", "worst"))
    # an expert gets 1024 rows instead of 256; a row is gate, up, act(gate) and their product
    more = (1024 - 256) * 4 * 4096 * 2
    assert worst.peak.allocated_bytes - even.peak.allocated_bytes == pytest.approx(more, rel=0.1)
    assert "the first is assumed" in even.warnings[-1]
    assert "the larger is assumed" in worst.warnings[-1]


def test_lora_on_all_linear_layers_reaches_experts_and_routers():
    rank, layers, experts, hidden, inner = 4, 2, 8, 128, 256
    attention = 2 * (hidden + hidden) + 2 * (hidden + hidden // 2)  # q, o and k, v
    router = hidden + experts
    # one factor of each pair is as wide as what goes in, the other as what comes out, per expert
    up, down = 2 * experts * (hidden + 2 * inner), experts * (inner + hidden)
    budget = estimate(MIXTRAL, **JOB, lora_rank=rank)
    assert budget.parameters.trainable == layers * rank * (attention + router + up + down)


def test_half_of_a_tensor_has_no_adapter_of_its_own():
    with pytest.raises(VramBudgetError, match="w1 and w3 are one tensor"):
        estimate(MIXTRAL, **JOB, lora_rank=4, lora_targets=("q_proj", "w1"))


def test_more_experts_for_a_token_than_there_are_is_an_error():
    with pytest.raises(VramBudgetError, match="there are 8 experts"):
        estimate({**MIXTRAL, "num_experts_per_tok": 9}, **JOB)


def test_other_names_for_the_number_of_experts():
    four = estimate({**MIXTRAL, "num_experts": 4}, **JOB).parameters.total
    assert four == estimate({**MIXTRAL, "num_local_experts": 4}, **JOB).parameters.total


# S = 12288 rows of [6144, 64]: 98304 = 8 S. The largest index, 6143, has 13 bits, two passes:
# 205311 = 255 + 2 x 2048 + 4 tiles x 1024 + 2 x 98304 + 256; below 2305 rows one block sorts them.
@pytest.mark.parametrize(
    ("rows", "table", "recorded"),
    [
        (12288, 6144, "+786432 +98304 +98304 -1 +98304 +98304 +98304 +205311 -6 -2 -3 -4 -5"),
        (768, 384, "+49152 +6144 +6144 -1 +6144 +6144 +6144 +1 -6 -2 -3 -4 -5"),
        (2305, 10, "+1280 +18440 +18440 -1 +18440 +18440 +18440 +3583 -6 -2 -3 -4 -5"),
    ],
)
def test_the_gradient_of_picked_rows_is_what_pytorch_recorded(rows, table, recorded):
    with recording(CARDS["a100-80gb"]) as tape:
        y = index_rows(Parameter((table, 64), bfloat16), empty((rows,), int64))
        dy = empty(y.shape, y.dtype)
        with trace(tape) as part:
            gradient = y.node.backward(dy)
        assert gradient.shape == (table, 64)
        assert part.text == normal(recorded)


@pytest.mark.parametrize(
    ("rows", "recorded"),
    [
        (768, "+6144 +6144 +6144 -2"),
        (12288, "+98304 +98304 +98304 +217599 -3 -2"),  # 8 passes of int64 keys
    ],
)
def test_sort_is_what_pytorch_recorded(rows, recorded):
    with recording(CARDS["a100-80gb"]) as tape:
        x = empty((rows,), int64)
        with trace(tape) as part:
            held = sort(x)
        assert len(held) == 2
        assert part.text == normal(recorded)


@pytest.mark.parametrize(
    ("card", "recorded"),
    [
        ("a100-80gb", "+1966080"),
        ("t4", "+1966080"),
        # 480 = 8 groups x (3 pointers + 3 strides + 3 sizes of 4); 67584 = 132 x 4 maps of 128
        ("h100-80gb", "+1966080 +480 +67584 -2 -1"),
    ],
)
def test_grouped_products_are_what_pytorch_recorded(card, recorded):
    with recording(CARDS[card]) as tape:
        cublas_workspace()
        x, weight = empty((768, 256), bfloat16), Parameter((8, 1280, 256), bfloat16)
        offsets = empty((8,), int32)
        with trace(tape) as part:
            y = grouped_linear(x, weight, offsets)
        assert y.shape == (768, 1280)
        assert part.text == normal(recorded)


# A contiguous copy, the count, partial sums, the indices, the selection's temporary storage.
@pytest.mark.parametrize(
    ("card", "elements", "sums", "selection"),
    [
        ("a100-80gb", 768, 1, 1023),
        ("a100-80gb", 5000, 17663, 1023),
        ("a100-80gb", 1000000, 17663, 4351),
        ("t4", 131072, 3583, 2559),
        ("h100-80gb", 500000, 21503, 1791),
    ],
)
def test_finding_an_experts_rows_is_what_pytorch_recorded(card, elements, sums, selection):
    with recording(CARDS[card]) as tape:
        x = empty((2, elements // 2), int64, strides=(1, 2))
        with trace(tape) as part:
            found = nonzero(x, 100)
        assert [each.shape for each in found] == [(100,), (100,)]
        assert part.text == normal(f"+{elements * 8} +4 +{sums} -2 +1600 +{selection} -4 -1 -0")
