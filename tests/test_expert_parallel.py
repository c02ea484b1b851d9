"""Expert parallelism: what a rank has of a mixture of experts, and what is refused by name."""

import pytest

from vrambudget import estimate
from vrambudget.errors import VramBudgetError
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

C, INNER, EXPERTS, VOCAB = 64, 32, 8, 128
MIXTRAL = {
    "model_type": "mixtral",
    "hidden_size": C,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": VOCAB,
    "num_local_experts": EXPERTS,
}
LLAMA = {key: MIXTRAL[key] for key in MIXTRAL if key not in {"num_local_experts", "model_type"}} | {
    "model_type": "llama"
}
JOB = {"block": 32, "precision": "bf16", "optimizer_impl": "for-loop"}


def weights_of(**fields):
    return estimate(MIXTRAL, **JOB, **fields).breakdown["weights"]


def test_a_rank_has_its_own_experts_and_all_else():
    # Each expert is 3 matrices [64, 32] in bfloat16; of 8 experts a rank of 2 has 4, of 4 has 2.
    two_experts = 2 * 3 * C * INNER * 2
    assert weights_of(parallel="ep=2") - weights_of(parallel="ep=4") == two_experts


def test_a_forward_pass_has_the_weights_of_its_rank():
    assert weights_of(mode="forward", parallel="ep=4") == weights_of(parallel="ep=4")


def test_generation_has_the_weights_of_its_rank():
    budget = estimate(MIXTRAL, precision="bf16", mode="generate", prompt=16, new=4, parallel="ep=4")
    assert budget.breakdown["weights"] == weights_of(parallel="ep=4")


def test_how_tokens_spread_decides_nothing_and_is_told():
    even, collapsed = (
        estimate(MIXTRAL, **JOB, parallel="ep=2", routing=routing)
        for routing in ("uniform", "collapsed")
    )
    assert even.peak.allocated_bytes == collapsed.peak.allocated_bytes
    assert any("evenly spread or all on one rank's experts" in note for note in even.warnings)


@pytest.mark.parametrize(
    ("ranks", "operations"), [(4, {"fmod": 3, "lt": 0}), (8, {"fmod": 0, "lt": 3})]
)
def test_the_indices_of_one_expert_are_told_from_others_otherwise(ranks, operations):
    scenario = resolve(MIXTRAL, **JOB, parallel=f"ep={ranks}")  # one layer, three steps
    tape = simulate(scenario.config, scenario.job, scenario.platform).tape
    assert {name: tape.operations.count(name) for name in operations} == operations


@pytest.mark.parametrize(
    ("model", "fields", "words"),
    [
        (MIXTRAL, {"parallel": "ep=3"}, "8 experts cannot be shared evenly among ep=3 ranks"),
        (LLAMA, {"parallel": "ep=2"}, "has no experts that are modelled"),
        (MIXTRAL, {"parallel": "ep=2", "experts": "eager"}, "experts one by one"),
        (MIXTRAL, {"parallel": "ep=2", "optimizer_impl": "fused"}, "PyTorch refuses to clip"),
        (MIXTRAL, {"parallel": "ep=2", "clip": 1.0}, "PyTorch refuses to clip"),
        (MIXTRAL, {"parallel": "ep=2", "lora_rank": 4}, "LoRA on experts or routers"),
        (MIXTRAL, {"parallel": "ep=2", "loop": "accelerate"}, "the loop of accelerate with ep=2"),
        (LLAMA, {"parallel": "fsdp2", "ranks": 2, "mode": "forward"}, "a forward pass with fsdp2"),
    ],
)
def test_what_has_no_rules_is_refused(model, fields, words):
    with pytest.raises(VramBudgetError, match=words):
        estimate(model, **{**JOB, **fields})


def test_adapters_of_linear_layers_are_stepped_and_clipped_together():
    fields = {"optimizer_impl": "fused", "clip": 1.0, "lora_rank": 4}
    targets = {"lora_targets": "q_proj,v_proj"}
    assert estimate(MIXTRAL, **{**JOB, **fields, **targets}, parallel="ep=2").peak.allocated_bytes


def test_it_goes_with_no_other_way():
    with pytest.raises(VramBudgetError, match="expert parallelism together with fsdp2"):
        estimate(MIXTRAL, **JOB, parallel="fsdp2+ep=2", ranks=4)
