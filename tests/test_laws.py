"""Laws that hold for every architecture, task, precision, attention, checkpointing and adapter.

Each traces all combinations that are offered, on models of two tiny layers.
"""

from itertools import product
from typing import Any

import pytest

from vrambudget.budget import Budget
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import estimate_scenario
from vrambudget.models import config_class, model_types
from vrambudget.scenario import Scenario, resolve
from vrambudget.simulate import simulate
from vrambudget.tape.allocator import CachingAllocator
from vrambudget.tape.events import Tape
from vrambudget.tape.replay import replay

DECODER = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
GROUPED = {**DECODER, "num_key_value_heads": 2}
EXPERTS = {**GROUPED, "num_experts_per_tok": 2}
GEMMA3 = {**GROUPED, "head_dim": 16, "sliding_window": 8, "sliding_window_pattern": 2}
LATENT = {**DECODER, "moe_intermediate_size": 16, "num_experts_per_tok": 2, "n_routed_experts": 4}
LATENT |= {"kv_lora_rank": 16, "q_lora_rank": 24, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8}
LATENT |= {
    "num_key_value_heads": 4,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
TINY: dict[str, dict[str, Any]] = {
    "arcee": {**GROUPED, "head_dim": 8},
    "biogpt": DECODER,
    "bitnet": GROUPED,
    "cohere": {**GROUPED, "use_qk_norm": True},
    "cohere2": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "cwm": {**GROUPED, "sliding_window": 8},
    "deepseek_v2": {**LATENT, "topk_method": "group_limited_greedy"},
    "deepseek_v3": LATENT,
    "ernie4_5": {**GROUPED, "head_dim": 16},
    "exaone4": {**GROUPED, "sliding_window": 8, "sliding_window_pattern": 2},
    "gemma": {**GROUPED, "head_dim": 16},
    "falcon": {k: v for k, v in DECODER.items() if k != "intermediate_size"},
    "flex_olmo": {**EXPERTS, "num_experts": 4},
    "gemma2": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "gemma3": {
        # every layer slides: transformers makes masks of two kinds in a set's order, any order
        "text_config": {"model_type": "gemma3_text", **GEMMA3, "sliding_window_pattern": 6},
        "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
        | {"model_type": "siglip_vision_model", "num_attention_heads": 2, "image_size": 32},
    },
    "gemma3_text": GEMMA3,
    "glm": {**GROUPED, "head_dim": 16},
    "glm4": {**GROUPED, "head_dim": 16},
    "glm4_moe": {**EXPERTS, "head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 16},
    "glm4_moe_lite": {k: v for k, v in LATENT.items() if k != "first_k_dense_replace"},
    "granite": GROUPED,
    "granitemoe": {**EXPERTS, "num_local_experts": 4},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "n_positions": 64},
    "gpt_neox": DECODER,
    "gpt_oss": {**EXPERTS, "num_local_experts": 4, "head_dim": 16, "sliding_window": 8},
    "helium": {**GROUPED, "head_dim": 8},
    "hunyuan_v1_dense": {**GROUPED, "head_dim": 16},
    "hunyuan_v1_moe": {**GROUPED, "head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "hy_v3": {**EXPERTS, "head_dim": 16, "num_experts": 4, "moe_intermediate_size": 16},
    "hyperclovax": {**GROUPED, "head_dim": 8},
    "jais2": {**GROUPED, "head_dim": 8},
    "llama": GROUPED,
    "minimax_m2": {**EXPERTS, "head_dim": 16, "num_local_experts": 4},
    "ministral": {**GROUPED, "head_dim": 16, "sliding_window": 8},
    "ministral3": {**GROUPED, "head_dim": 16},
    "mistral": {**GROUPED, "sliding_window": 8},
    "mixtral": {**EXPERTS, "num_local_experts": 4},
    "nanogpt": {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50},
    "olmo": GROUPED,
    "olmo2": GROUPED,
    "olmo3": {**GROUPED, "sliding_window": 8},
    "olmoe": {**EXPERTS, "num_experts": 4},
    "opt": {"hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    | {"vocab_size": 50, "word_embed_proj_dim": 32, "max_position_embeddings": 64},
    "persimmon": DECODER,
    "phi": GROUPED,
    "phi3": DECODER,
    "qwen2": GROUPED,
    "qwen2_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16}
    | {"shared_expert_intermediate_size": 24},
    "qwen3": {**GROUPED, "head_dim": 16},
    "qwen3_moe": {**EXPERTS, "num_experts": 4, "moe_intermediate_size": 16},
    "seed_oss": {**GROUPED, "head_dim": 16},
    "solar_open": {**EXPERTS, "head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 16},
    "smollm3": {**GROUPED, "no_rope_layer_interval": 2},
    "stablelm": {**GROUPED, "head_dim": 8},
    "starcoder2": {**GROUPED, "sliding_window": 8, "embedding_dropout": 0.1},
    "titan": {"dim": 32, "hidden": 48, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2}
    | {"vocab_size": 50},
}
PRECISIONS = ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16")
KINDS = [(name, task) for name in model_types() for task in config_class(name).tasks]
each_kind = pytest.mark.parametrize(("name", "task"), KINDS)


def tiny(name: str, task: str, **fields: Any) -> Scenario:
    values = {"model_type": name, **TINY[name]}
    return resolve(values, gpu="t4", **{"task": task, "batch": 2, "block": 16, **fields})


def tape_of(scenario: Scenario) -> Tape:
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def offered(name: str, task: str, **fields: Any) -> Budget | None:
    """Return the budget, or None where the combination is refused by name."""
    try:
        return estimate_scenario(tiny(name, task, **fields)).check()
    except NotModelledError:
        return None


def test_every_architecture_has_a_tiny_model_here() -> None:
    assert sorted(TINY) == model_types()


@pytest.mark.sampled(6)
@each_kind
def test_checkpointing_never_adds_what_forward_leaves_alive(name: str, task: str) -> None:
    traced = 0
    for precision, attention, rank in product(PRECISIONS, ("sdpa", "eager"), (None, 4)):
        fields = {"precision": precision, "attention": attention, "lora_rank": rank}
        plain = offered(name, task, **fields)
        recomputed = offered(name, task, checkpointing="full", **fields)
        if plain is None or recomputed is None:
            continue
        traced += 1
        after = [b.steps[0].after_forward_bytes or 0 for b in (plain, recomputed)]
        # what a checkpoint keeps besides the layers' inputs is in other blocks of 512 bytes
        assert after[1] <= after[0] + 4096, fields
    # nanoGPT has no checkpointing; torchtitan's code has one attention, and no adapters
    assert traced >= {"nanogpt": 0, "titan": 5}.get(name, 10)


@pytest.mark.sampled(4)
@each_kind
def test_the_peak_never_falls_as_the_batch_grows(name: str, task: str) -> None:
    for precision, mode in product(("fp32", "amp-bf16"), ("train", "eval")):
        peaks = [
            replay(
                tape_of(tiny(name, task, batch=batch, precision=precision, mode=mode))
            ).peak.requested_bytes
            for batch in (1, 2, 3, 8)
        ]
        assert peaks == sorted(peaks), (precision, mode)


@pytest.mark.sampled(4)
@each_kind
def test_the_peak_never_falls_as_the_block_grows(name: str, task: str) -> None:
    if task == "image-cls":
        pytest.skip("an image has no block")
    for precision in ("fp32", "amp-bf16"):
        peaks = [
            replay(tape_of(tiny(name, task, block=block, precision=precision))).peak.requested_bytes
            for block in (8, 16, 24, 64)
        ]
        assert peaks == sorted(peaks), precision


@each_kind
def test_reserved_holds_allocated_holds_requested_at_every_event(name: str, task: str) -> None:
    tape = tape_of(tiny(name, task))
    allocator = CachingAllocator()
    end = tape.marks[-1].position
    for event in range(end):
        allocator.run(tape.events, tape.sizes, event, event + 1)
        requested, allocated = allocator.requested_bytes, allocator.allocated_bytes
        assert requested <= allocated <= allocator.reserved_bytes
    alive = sum(tape.sizes[storage] for storage in tape.alive_at(end - 1))
    assert alive == allocator.requested_bytes


@pytest.mark.sampled(4)
@each_kind
@pytest.mark.parametrize("precision", ["fp32", "bf16", "amp-fp16"])
def test_a_storage_is_freed_once_after_its_birth(name: str, task: str, precision: str) -> None:
    image = {"image_size": 8} if task == "image-cls" else {}  # a single patch
    for batch, block, fields in (
        (2, 16, {}),
        (1, 1, {}),
        (1, 16, {"grad_accum": 4}),
        (1, 2, {"checkpointing": "full"}),
        (1, 2, {"attention": "eager", "optimizer": "sgd-momentum", "clip": 1.0}),
        (3, 1, {"mode": "eval"}),
    ):
        shape = {"batch": batch, "block": block, **image}
        try:
            tape = tape_of(tiny(name, task, precision=precision, steps=4, **shape, **fields))
        except NotModelledError:
            continue
        assert_each_is_freed_once(tape)


def assert_each_is_freed_once(tape: Tape) -> None:
    born, alive = set[int](), set[int]()
    for event in tape.events:
        if event >= 0:
            assert event not in born, tape.operations[event]
            born.add(event)
            alive.add(event)
        else:
            assert ~event in alive, tape.operations[~event]
            alive.remove(~event)


PATCH = {  # vit-base-patch16-224 on 16 x 16 pixels, fp32, as PyTorch 2.11 runs it
    "requested_bytes": 1_746_456_012,
    "allocated_bytes": 1_749_111_808,
    "reserved_bytes": 1_954_545_664,
}


def test_the_bias_of_a_single_patch_has_a_gradient_of_its_own() -> None:
    scenario = resolve("vit-base-patch16-224", image_size=16, precision="fp32", gpu="a100-80gb")
    peak = estimate_scenario(scenario).peak
    assert {name: getattr(peak, name) for name in PATCH} == PATCH


@each_kind
def test_a_budget_survives_json(name: str, task: str) -> None:
    budget = offered(name, task)
    assert budget is not None
    assert Budget.from_json(budget.to_json()) == budget


JOBS: dict[str, dict[str, Any]] = {
    "generate": {"mode": "generate", "prompt": 4, "new": 2},
    "forward": {"mode": "forward"},
    "embed": {"task": "embed"},
    "label smoothing": {"label_smoothing": 0.1},
    "label smoothing without a head": {"label_smoothing": 0.1, "task": "embed"},
    "trainer": {"loop": "trainer", "eval_batches": 2},
    "sft": {"loop": "sft"},
    "dpo": {"loop": "dpo"},
    "qlora": {"quant": "nf4", "lora_rank": 4},
    "8 bit": {"quant": "int8", "lora_rank": 4},
    "packed": {"rows": "packed"},
} | {
    parallel: {"parallel": parallel, "ranks": 2}
    for parallel in ("ddp", "fsdp1", "fsdp2", "deepspeed3", "tp=2", "pp=2", "cp=2", "ep=2")
}


@pytest.mark.parametrize("name", TINY)
def test_every_job_is_counted_or_refused_by_name(name: str) -> None:
    for what, fields in JOBS.items():
        try:
            budget = estimate_scenario(resolve({"model_type": name, **TINY[name]}, **fields))
        except VramBudgetError:
            continue
        except Exception as error:
            error.add_note(what)
            raise
        assert budget.peak.allocated_bytes > 0, what
