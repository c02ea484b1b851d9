"""Context parallelism: what ring attention makes on a rank. Whole jobs: test_rank_records.py."""

import pytest

from vrambudget import estimate
from vrambudget.dtypes import bfloat16, float32
from vrambudget.engine.autograd import run_backward
from vrambudget.engine.context import Platform, context, recording
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.ops.attention import scaled_dot_product_attention
from vrambudget.ops.reduce import mean_all
from vrambudget.parallel.context.region import Buffer, context_parallel
from vrambudget.parallel.context.ring import Ring
from vrambudget.parallel.group import Group

TITAN = {
    "model_type": "titan",
    "dim": 256,
    "n_layers": 2,
    "n_heads": 8,
    "n_kv_heads": 4,
    "hidden": 512,
    "vocab_size": 1000,
}
SHAPE = (2, 8, 64, 32)  # [B, H, S, D] of one rank


def small(model=TITAN, **fields):
    return estimate(model, gpu="a100-80gb", **{"block": 256, "batch": 2, **fields})


def attended(rank: int, ranks: int, method: str = "allgather") -> list[tuple[str, int]]:
    """Return the operations of one rank's attention and its backward, and what each made."""
    with recording(Platform()) as tape:
        q, k, v = (empty(SHAPE, bfloat16) for _ in range(3))
        for x in (q, k, v):
            x.requires_grad = True
        x = empty((2, 64 * ranks), float32)
        with context_parallel(Ring(Group(ranks, rank), method), [Buffer(x, 1)]):
            start = len(tape.sizes)
            y = scaled_dot_product_attention(q, k, v, is_causal=True)
            run_backward(mean_all(y))
        return list(zip(tape.operations[start:], tape.sizes[start:], strict=True))


def test_keys_and_values_are_gathered_once_or_received_once_for_each_other_rank():
    both = 2 * 2 * 8 * 64 * 32 * 2  # keys and values, bfloat16
    gathered = [size for name, size in attended(0, 4) if name == "all_gather_into_tensor"]
    assert gathered == [4 * both] * 2  # in forward, and in backward
    sent = [size for name, size in attended(0, 4, "alltoall") if name == "all_to_all_single"]
    assert sorted(sent) == [both] * 6 + [2 * both] * 4  # gradients in float32, from each rank


def test_an_early_rank_meets_later_keys_with_half_its_queries():
    whole = 2 * 8 * 64 * 4  # logsumexp of all queries, float32

    def of_queries(rank: int) -> list[int]:
        made = attended(rank, 4)
        return [
            size for name, size in made if name == "flash_attention" and size in {whole, whole // 2}
        ]

    assert of_queries(0)[:4] == [whole, *[whole // 2] * 3]
    assert of_queries(3)[:4] == [whole] * 4


def test_a_buffer_is_cut_inside_and_only_a_restored_one_is_whole_after():
    with recording(Platform()):
        tokens, table = empty((2, 64), float32), empty((64, 16), float32)
        buffers = [Buffer(tokens, 1), Buffer(table, 0, restored=True)]
        with context_parallel(Ring(Group(4)), buffers):
            assert (tokens.shape, table.shape) == ((2, 16), (16, 16))
            assert context.attention is not None
        assert (tokens.shape, table.shape) == ((2, 16), (64, 16))
        assert context.attention is None


def test_ranks_differ_and_each_has_its_own_line():
    budget = small(parallel="cp=4", precision="bf16", block=2048)
    assert budget.distributed is not None
    assert [peak.rank for peak in budget.distributed.peaks] == [0, 1, 2, 3]
    assert len({peak.peak_allocated_bytes for peak in budget.distributed.peaks}) > 1


def test_a_rank_takes_less_than_the_whole_sequence():
    whole = small(precision="bf16", block=2048).peak
    part = small(parallel="cp=4", precision="bf16", block=2048, rank=0).peak
    assert part.allocated_bytes < whole.allocated_bytes


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        (TITAN, {"block": 250}, "a head and a tail for each of 2 ranks"),
        (TITAN, {"precision": "fp32", "block": 96}, "48 tokens of each rank fail"),
        (TITAN, {"mode": "eval"}, "evaluation is not modelled"),
        (TITAN, {"eval_batches": 2}, "evaluation is not modelled"),
        ("gpt2", {}, "of GPT2LMHeadModel is not modelled"),
    ],
)
def test_what_fails_or_has_no_rules_is_refused(model, fields, words):
    with pytest.raises((NotModelledError, VramBudgetError), match=words):
        small(model, **{"parallel": "cp=2", "precision": "bf16", **fields})


def test_attention_that_is_not_causal_is_refused():
    x: Tensor
    with recording(Platform()):
        q, x = empty(SHAPE, bfloat16), empty((2, 128), float32)
        with (
            context_parallel(Ring(Group(2)), [Buffer(x, 1)]),
            pytest.raises(NotModelledError, match="causal attention without a mask alone"),
        ):
            scaled_dot_product_attention(q, q, q)
