"""Tensor parallelism: what is cut, and what collectives make. Whole jobs: test_records.py."""

from collections import Counter

import pytest

from vrambudget import estimate
from vrambudget.dtypes import bfloat16
from vrambudget.engine.context import Platform, recording
from vrambudget.engine.tensor import empty
from vrambudget.errors import NotModelledError
from vrambudget.parallel.group import Group
from vrambudget.parallel.tensor.collectives import all_gather, reduce_scatter
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
TITAN = {
    "model_type": "titan",
    "dim": 256,
    "n_layers": 2,
    "n_heads": 8,
    "n_kv_heads": 4,
    "hidden": 512,
    "vocab_size": 1000,
}
ALL_CUT = {"parallel": "tp=4", "sequence_parallel": True, "precision": "bf16"}


def small(model=TITAN, **fields):
    return estimate(model, gpu="a100-80gb", **{"block": 64, "batch": 2, **fields})


def tape_of(model=LLAMA, **fields):
    told = {"block": 64, "batch": 2, "precision": "bf16", "optimizer_impl": "for-loop", **fields}
    scenario = resolve(model, gpu="a100-80gb", **told)
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def made_by(operation, tape, phase):
    begin = next(m.position for m in tape.marks if m.step == 1 and m.phase == phase)
    end = next(m.position for m in tape.marks if m.position > begin)
    events = list(tape.read())[begin:end]
    return [
        tape.sizes[e.storage]
        for e in events
        if e.change and tape.operations[e.storage] == operation and e.change > 0
    ]


def test_gathering_along_another_dimension_copies_unless_the_ones_before_it_are_1():
    with recording(Platform()) as tape:
        part = empty((2, 8, 16), bfloat16)
        assert all_gather(part, -1, Group(4)).shape == (2, 8, 64)
        assert reduce_scatter(part, 1, Group(4)).shape == (2, 2, 16)
        one = empty((1, 8, 16), bfloat16)
        assert all_gather(one, 1, Group(4)).shape == (1, 32, 16)
        made = Counter(tape.operations)
    assert made["cat"] == 2
    assert made["all_gather_into_tensor"] == 2


def test_each_product_by_rows_is_reduced_in_forward_and_each_by_columns_in_backward():
    tape = tape_of(parallel="tp=2")
    hidden = 2 * 64 * 256 * 2
    assert made_by("all_reduce", tape, "forward") == [hidden] * 4  # o and down of two layers
    backward = made_by("all_reduce", tape, "backward")
    assert backward == [hidden] * 11  # q, k, v, gate and up of two layers, and the head


def test_more_ranks_leave_each_fewer_weights_but_whole_norms():
    weights = [small(**{**ALL_CUT, "parallel": f"tp={n}"}).breakdown["weights"] for n in (2, 4)]
    norms = 5 * 256 * 2
    assert (weights[0] - norms) == pytest.approx(2 * (weights[1] - norms), rel=0.05)


def test_the_sequence_and_the_loss_are_cut_where_told():
    plain = small(parallel="tp=4", precision="bf16", optimizer_impl="for-loop", block=512)
    both = small(**ALL_CUT, loss_parallel=True, optimizer_impl="for-loop", block=512)
    assert both.breakdown["logits and loss"] < plain.breakdown["logits and loss"] / 2
    assert both.peak.allocated_bytes < plain.peak.allocated_bytes


def test_the_gradient_of_an_embedding_cut_by_rows_has_all_rows():
    tape = tape_of(TITAN, parallel="tp=2")
    assert 1000 * 256 * 2 in made_by("embedding_backward", tape, "backward")


def test_a_mesh_of_two_dimensions_shards_what_is_left():
    one = small(ranks=8, parallel="fsdp2", precision="fp32", param_dtype="bf16")
    two = small(**{**ALL_CUT, "ranks": 8, "parallel": "fsdp2+tp=2"}, param_dtype="bf16")
    assert two.breakdown["gathered weights"] < one.breakdown["gathered weights"]


@pytest.mark.parametrize(
    ("model", "fields", "says"),
    [
        (LLAMA, {}, "foreach adamw is refused by PyTorch"),
        (LLAMA, {"optimizer_impl": "for-loop", "clip": 1.0}, "clipping by a norm is refused"),
        (LLAMA, {"optimizer_impl": "for-loop", "loss_parallel": True}, "torchtitan's Llama alone"),
        (LLAMA, {"optimizer_impl": "for-loop", "lora_rank": 4}, "LoRA with tensor"),
        (LLAMA, {"optimizer_impl": "for-loop", "parallel": "tp=8"}, "4 heads of keys and values"),
        (TITAN, {"sequence_parallel": True, "block": 63}, "63 tokens with sequence_parallel"),
        (TITAN | {"hidden": 301}, {"optimizer_impl": "for-loop"}, "multiply 301 features"),
        ({"model_type": "gpt2"}, {"optimizer_impl": "for-loop"}, "parallelism of gpt2"),
        (
            {"model_type": "olmo2", "num_attention_heads": 4},
            {"optimizer_impl": "for-loop"},
            "parallelism of olmo2",
        ),
        ({**LLAMA, "mlp_bias": True}, {"optimizer_impl": "for-loop"}, "cut by rows"),
    ],
)
def test_what_pytorch_refuses_or_is_not_modelled_is_refused_by_name(model, fields, says):
    with pytest.raises(NotModelledError, match=says):
        small(model, **{"parallel": "tp=2", **fields})
