"""Decoders whose layer is a program: what is recorded anew is the package's file."""

import pickle

import pytest
from rehearsed import assert_equal, each, records_of

from vrambudget import estimate
from vrambudget.config.gpus import find_gpu
from vrambudget.config.record import job_of_record
from vrambudget.models import RECORDED, config_class
from vrambudget.program.writing import written
from vrambudget.scenario import platform_of
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

pytest.importorskip("transformers", "5.17")

from decoder_programs import record_decoder

from vrambudget.recording.checking import peaks
from vrambudget.recording.runs import traced

TYPES = sorted(path.stem for path in RECORDED.glob("*.program"))
SMALL = {"hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 999}
OLD = {"falcon", "gpt2", "gpt_neox", "opt", "persimmon"}  # types without keys for groups of heads
LATENT = {"deepseek_v2", "deepseek_v3", "glm4_moe_lite"}


def small(model_type):
    if model_type in LATENT:  # one latent for all heads
        return {**SMALL, "num_key_value_heads": 6, "num_experts_per_tok": 4}
    return {k: v for k, v in SMALL.items() if k != "num_key_value_heads" or model_type not in OLD}


REHEARSED = [
    record
    for record in records_of("model_types.jsonl") + records_of("programs.jsonl")
    if record["model"]["model_type"] in TYPES
]


@each(REHEARSED)
def test_a_recorded_layer_has_its_models_rehearsed_peak(record):
    config = config_class(record["model"]["model_type"]).parse(record["model"])
    job = job_of_record(record).model_copy(update={"torch": "2.11"}).resolve(config)
    tape = simulate(config.for_job(job), job, platform_of(find_gpu("a100-80gb"), "2.11")).tape
    assert_equal(replay(tape).peak, record)


@pytest.mark.parametrize("model_type", ["helium", "cohere"])
def test_a_layer_recorded_anew_is_the_file(model_type):
    text = (RECORDED / f"{model_type}.program").read_text(encoding="utf-8")
    assert written(record_decoder(model_type)) == text


@pytest.mark.sampled(3)
@pytest.mark.parametrize("model_type", TYPES)
def test_a_recorded_layer_has_the_trace_s_peak(model_type):
    values = {"model_type": model_type, **small(model_type), "pad_token_id": 0}
    values |= {} if model_type in OLD else {"head_dim": 64}
    for job in (
        {"batch": 2, "block": 37, "precision": "amp-bf16"},
        {"batch": 3, "block": 61, "precision": "bf16", "checkpointing": "full"},
    ):
        own = {"attention": "eager"} if model_type == "gpt_oss" else {}  # sdpa knows no sinks
        config, resolved = traced(
            {**values, "num_hidden_layers": 4}, steps=2, use_cache=False, **job, **own
        )
        own = config_class(model_type).parse({**values, "num_hidden_layers": 4})
        assert peaks(own.for_job(resolved), resolved) == peaks(config, resolved)


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("exaone4", {"sliding_window": 16, "sliding_window_pattern": 2}),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 5}),
        ("smollm3", {"no_rope_layers": [0, 1, 1, 0, 0]}),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 16}),
        ("olmo3", {"sliding_window": 16}),
        ("gemma2", {"sliding_window": 16, "final_logit_softcapping": None}),
        ("gemma2", {"attn_logit_softcapping": None, "hidden_activation": "silu"}),
        ("phi", {"partial_rotary_factor": 0.75, "resid_pdrop": 0.1, "embd_pdrop": 0.05}),
        ("phi", {"qk_layernorm": True, "tie_word_embeddings": True}),
        ("starcoder2", {"embedding_dropout": 0.1, "residual_dropout": 0.2}),
        ("gemma3_text", {"sliding_window_pattern": 2, "final_logit_softcapping": 30.0}),
        ("gpt_neox", {"use_parallel_residual": False, "rotary_pct": 0.5, "hidden_dropout": 0.1}),
        ("gpt2", {"n_inner": 200, "attn_pdrop": 0.0, "activation_function": "relu"}),
        ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 64}),
        ("opt", {"layer_norm_elementwise_affine": False, "enable_bias": False}),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
        ("falcon", {"multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
        ("deepseek_v2", {"topk_method": "group_limited_greedy", "n_group": 8, "topk_group": 3}),
        ("deepseek_v2", {"q_lora_rank": None, "mlp_bias": True, "first_k_dense_replace": 2}),
        ("deepseek_v3", {"norm_topk_prob": False, "rope_interleave": False}),
        ("deepseek_v3", {"n_group": 1, "topk_group": 1, "attention_bias": True}),
    ],
)
def test_keys_that_decide_what_a_layer_does_are_as_in_the_trace(model_type, keys):
    values = {"model_type": model_type, **small(model_type), **keys}
    values |= {"num_hidden_layers": 5, "pad_token_id": 0}
    job = {"batch": 2, "block": 37, "precision": "bf16", "use_cache": False}
    for attention in ("sdpa", "eager"):
        config, resolved = traced(values, steps=2, attention=attention, **job)
        own = config_class(model_type).parse(values)
        assert peaks(own.for_job(resolved), resolved) == peaks(config, resolved)


@pytest.mark.parametrize("bias", [True, False])
def test_a_key_decides_which_modules_of_a_layer_have_biases(bias):
    values = {"model_type": "helium", **SMALL, "head_dim": 64, "num_hidden_layers": 2}
    biased = 2 * (384 + 2 * 192) if bias else 0
    plain = estimate(values, batch=1, block=8).parameters.total
    found = estimate({**values, "attention_bias": bias}, batch=1, block=8).parameters.total
    assert found == plain + biased


def test_a_configuration_goes_to_another_process():
    config = config_class("granite").parse({"model_type": "granite", **SMALL})
    again = pickle.loads(pickle.dumps(config))  # noqa: S301 - our own
    assert (type(again), again.hidden_size) == (type(config), 384)


def test_a_switch_of_the_code_is_a_program_of_its_own():
    values = {
        "model_type": "cohere",
        **SMALL,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }
    plain = estimate(values, batch=1, block=8).parameters.total
    normed = estimate({**values, "use_qk_norm": True}, batch=1, block=8).parameters.total
    assert normed == plain + 2 * (6 + 3) * 64
