"""Layers that are alike are laid down as copies: the tape is that of a trace of every layer."""

import pytest
from test_laws import TINY

from vrambudget import simulate as recorder
from vrambudget.engine import layer_parts
from vrambudget.engine.context import Platform, recording
from vrambudget.engine.identical_layers import Layer, stack_layers
from vrambudget.models import model_types
from vrambudget.pictures import budget as pictures
from vrambudget.pictures.job import picture_job
from vrambudget.pictures.training import trained
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

LAYERS = {
    "gpt2": "n_layer",
    "nanogpt": "n_layer",
    "titan": "n_layers",
}
OPTIONS = {
    "amp-bf16": {"clip": 1.0},
    "fp32, eager": {"precision": "fp32", "attention": "eager"},
    "amp-fp16, accumulated": {"precision": "amp-fp16", "grad_accum": 3, "clip": 1.0},
    "bf16, checkpointing": {"precision": "bf16", "checkpointing": "full"},
    "amp-bf16, checkpointing": {"checkpointing": "full", "optimizer": "sgd"},
    "adapters": {"precision": "bf16", "lora_rank": 4},
    "adapters, checkpointing": {"lora_rank": 4, "checkpointing": "full", "grad_accum": 2},
    "padding": {"attention_mask": "padding", "keep_outputs": False},
    "evaluation": {"mode": "eval"},
    "a cache": {"use_cache": True, "eval_batches": 2, "steps": 4},
    "a cache, adapters": {"use_cache": True, "lora_rank": 4, "precision": "bf16"},
    "a cache, the loss alone": {"use_cache": True, "forward_returns": "loss", "grad_accum": 2},
    "a cache, evaluation": {"use_cache": True, "mode": "eval", "keep_outputs": False},
    "transformers 4": {"transformers": "4.57", "dropout": 0.1, "optimizer": "muon"},
}
SLIDING = {"use_sliding_window": True, "sliding_window": 8}
VARIANTS = {
    "qwen2, later layers slide": ("qwen2", {**SLIDING, "max_window_layers": 3}),
    "gemma2, layers alternate": ("gemma2", {}),
    "mixtral, routers are trained": ("mixtral", {"output_router_logits": True}),
    "qwen3_moe, some layers dense": ("qwen3_moe", {"mlp_only_layers": [0, 3]}),
}
SHARDED = {
    "fp32": {"precision": "fp32"},
    "autocast, checkpointing": {"checkpointing": "full"},
    "mixed precision": {"param_dtype": "bf16", "reduce_dtype": "fp32", "clip": 1.0},
    "checkpointing, accumulated": {"checkpointing": "full", "param_dtype": "bf16", "grad_accum": 2},
    "no_sync": {"grad_accum": 3, "no_sync": True, "param_dtype": "bf16", "reduce_dtype": "fp32"},
    "never resharded": {"reshard_after_forward": False},
    "resharded among four": {"reshard_after_forward": 4, "param_dtype": "bf16"},
    "copies": {"replicate": 2, "grad_accum": 2, "no_sync": True},
    "nothing to gather": {"replicate": 8, "param_dtype": "bf16"},
    "offload": {"cpu_offload": True, "param_dtype": "bf16"},
    "adapters": {"precision": "bf16", "lora_rank": 4, "checkpointing": "full"},
    "evaluation": {"mode": "eval"},
    "evaluations between": {"eval_batches": 2, "steps": 4},
    "Trainer": {"loop": "trainer"},
    "uneven": {"ranks": 7},
    "tensor parallel": {"parallel": "fsdp2+tp=2"},
    "one group": {"fsdp_wrap": "root"},
}
VIEWS = {"gradient_as_bucket_view": True}
REPLICATED = {
    "ddp": {},
    "accumulated with no_sync": {"grad_accum": 3, "no_sync": True},
    "Trainer, which looks for unused parameters": {"loop": "trainer"},
    "ZeRO-1": {"parallel": "zero1"},
    "ZeRO-1 in flat parameters": {"parallel": "zero1", "parameters_as_bucket_view": True, **VIEWS},
    "views": VIEWS,
    "views, accumulated": {**VIEWS, "grad_accum": 2, "clip": 1.0},
    "views, accumulated with no_sync": {**VIEWS, "grad_accum": 2, "no_sync": True},
    "views, autocast, checkpointing": {**VIEWS, "precision": "amp-bf16", "checkpointing": "full"},
    "views, adapters": {**VIEWS, "precision": "bf16", "lora_rank": 4, "checkpointing": "full"},
    "views, 4 bits": {**VIEWS, "precision": "bf16", "lora_rank": 4, "quant": "nf4"},
    "views, small buckets": {**VIEWS, "bucket_cap_mb": 1},
    "views, unused parameters": {**VIEWS, "find_unused_parameters": True},
    "views, a static graph": {**VIEWS, "static_graph": True},
}
ALTERNATING = {"cohere2", "exaone4", "gemma2", "gemma3", "gemma3_text", "gpt_oss", "olmo3"}
# of 20 layers; four, where nothing is said
TRACED = dict.fromkeys((*ALTERNATING, "cwm", "smollm3"), 7)  # layers of two kinds


def scenario_of(name, fields, values=None, layers=9):
    values = {"model_type": name, **TINY[name], **(values or {})}
    depth = {LAYERS.get(name, "num_hidden_layers"): layers}
    if "text_config" in values:
        depth = {"text_config": {**values["text_config"], **depth}}
    values |= depth
    return resolve(values, gpu="t4", batch=2, block=16, **fields)


def tape_of(scenario):
    return simulate(scenario.config, scenario.job, scenario.platform).tape


def traced_in_full(scenario, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(recorder, "stack_layers", lambda _: None)
        return tape_of(scenario)


def in_order(tape):
    """Return the events; frees that follow one another are sorted, for their order is no matter."""
    ordered, frees = [], []
    for event in [*tape.events, 0]:
        if event < 0:
            frees.append(event)
        else:
            ordered += [*sorted(frees), event]
            frees = []
    return ordered


def assert_equal(laid, traced):
    assert laid.sizes == traced.sizes
    assert laid.operations == traced.operations
    assert laid.purposes == traced.purposes
    assert laid.contents == traced.contents
    assert laid.marks == traced.marks
    assert in_order(laid) == in_order(traced)
    assert replay(laid) == replay(traced)


@pytest.fixture
def traces(monkeypatch):
    """Count how many layers are traced."""
    token_counts = []
    trace = Layer.trace

    def counting(layer, *args, **kwargs):
        token_counts.append(layer)
        return trace(layer, *args, **kwargs)

    monkeypatch.setattr(Layer, "trace", counting)
    return token_counts


@pytest.mark.sampled(10)
@pytest.mark.parametrize("fields", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("name", model_types())
def test_the_tape_is_that_of_a_full_trace(name, fields, monkeypatch):
    if name in {"nanogpt", "titan"} and fields.get("attention_mask"):
        pytest.skip("it reads no mask")
    if name == "nanogpt" and {"checkpointing", "lora_rank", "attention"} & fields.keys():
        pytest.skip("nanoGPT's own code has none")
    if name == "titan" and {"lora_rank", "attention"} & fields.keys():
        pytest.skip("torchtitan's own code has none")
    scenario = scenario_of(name, fields)
    assert_equal(tape_of(scenario), traced_in_full(scenario, monkeypatch))


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("name", "values"), VARIANTS.values(), ids=VARIANTS)
def test_layers_of_several_kinds_are_each_like_their_own(name, values, checkpointing, monkeypatch):
    scenario = scenario_of(name, {"checkpointing": checkpointing}, values, layers=12)
    assert_equal(tape_of(scenario), traced_in_full(scenario, monkeypatch))


def sharded(name, fields, **others):
    return scenario_of(name, {"ranks": 8, "parallel": "fsdp2", **fields}, **others)


@pytest.mark.parametrize("fields", SHARDED.values(), ids=SHARDED)
def test_sharded_layers_are_laid_down_with_what_fsdp2_holds_around_them(fields, monkeypatch):
    scenario = sharded("llama", fields)
    laid, traced = tape_of(scenario), traced_in_full(scenario, monkeypatch)
    assert_equal(laid, traced)
    assert laid.modules == traced.modules


@pytest.mark.parametrize("fields", REPLICATED.values(), ids=REPLICATED)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_layers_of_ddp_are_laid_down_with_their_gradients_in_buckets(name, fields, monkeypatch):
    scenario = scenario_of(name, {"ranks": 8, "parallel": "ddp", **fields})
    assert_equal(tape_of(scenario), traced_in_full(scenario, monkeypatch))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_of_many_layers_of_ddp_few_are_traced_in_each_pass(name, traces):
    fields = {"ranks": 8, "parallel": "ddp", **VIEWS, "steps": 3}
    tape_of(scenario_of(name, fields, layers=20))
    assert len(traces) == 3 * TRACED.get(name, 4)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("name", "values"), VARIANTS.values(), ids=VARIANTS)
def test_sharded_layers_of_several_kinds(name, values, checkpointing, monkeypatch):
    fields = {"checkpointing": checkpointing, "param_dtype": "bf16"}
    scenario = sharded(name, fields, values=values, layers=12)
    assert_equal(tape_of(scenario), traced_in_full(scenario, monkeypatch))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_of_many_sharded_layers_few_are_traced(name, traces):
    tape_of(sharded(name, {"steps": 1}, layers=20))
    assert len(traces) == TRACED.get(name, 4)


def test_sharded_layers_that_turn_out_to_differ_are_traced_in_full(monkeypatch, traces):
    scenario = sharded("llama", {"steps": 1})
    traced = traced_in_full(scenario, monkeypatch)
    for part in (layer_parts.ForwardPart, layer_parts.BackwardPart):
        traces.clear()
        with monkeypatch.context() as patched:
            patched.setattr(part, "same_as", lambda *_: False)
            assert_equal(tape_of(scenario), traced)
        assert len(traces) > 9


@pytest.mark.parametrize("freeze", ["transformer.wte", "transformer.h.4", "transformer.h"])
def test_a_frozen_layer_is_not_like_the_others(freeze, monkeypatch):
    scenario = scenario_of("gpt2", {"freeze": [freeze]}, layers=12)
    assert_equal(tape_of(scenario), traced_in_full(scenario, monkeypatch))


@pytest.mark.parametrize("name", model_types())
@pytest.mark.parametrize("use_cache", [False, True])
def test_of_many_layers_few_are_traced(name, use_cache, traces):
    tape_of(scenario_of(name, {"steps": 1, "use_cache": use_cache}, layers=20))
    assert len(traces) == TRACED.get(name, 4)


def test_what_turns_out_to_differ_is_traced_in_full(monkeypatch, traces):
    scenario = scenario_of("gpt2", {"steps": 1})
    traced = traced_in_full(scenario, monkeypatch)
    for part in (layer_parts.ForwardPart, layer_parts.BackwardPart):
        traces.clear()
        with monkeypatch.context() as patched:
            patched.setattr(part, "same_as", lambda *_: False)
            assert_equal(tape_of(scenario), traced)
        assert len(traces) > 9


def test_layers_that_share_a_parameter_are_traced():
    with recording(Platform()):
        model = scenario_of("gpt2", {}).config.build("causal-lm")
        model.transformer.h[3].ln_1 = model.transformer.h[5].ln_1
        stack_layers(model)
        assert all(layer.stack is None for layer in model.transformer.h)


DENOISERS = {  # what is trained, and how many of its layers' calls are traced
    "ltx-video, one tensor": ("ltx-video", {"frames": 9, "checkpointing": True}, 8),
    "flux-dev, pictures and text": ("flux-dev", {}, 9),
    "flux-dev, in views of one tensor": ("flux-dev", {"checkpointing": True, "base": "nf4"}, 18),
    "flux-dev, blocks swapped": ("flux-dev", {"base": "fp8", "swap": 35, "grad_accum": 2}, 18),
    "sd3.5-medium, layers of two kinds": ("sd3.5-medium", {"checkpointing": True}, 16),
    "hunyuanvideo, text that is trained": ("hunyuanvideo", {"frames": 9, "batch": 2}, 9),
}


@pytest.mark.parametrize(("name", "asked", "count"), DENOISERS.values(), ids=DENOISERS)
def test_layers_of_a_denoiser_are_laid_down_with_all_that_they_pass_on(name, asked, count, traces):
    job = picture_job(name, train="lora", **{"resolution": "256", **asked})
    laid = trained(job, Platform()).tape
    assert len(traces) == count
    assert_equal(laid, trained(job, Platform(), in_full=True).tape)


@pytest.mark.parametrize(("name", "count"), [("whisper-small", 9), ("bart-base", 10)])
def test_layers_that_all_read_what_an_encoder_saw_are_laid_down(name, count, monkeypatch, traces):
    fields = {"checkpointing": "full", "use_cache": False, "steps": 1}
    scenario = resolve(name, gpu="t4", batch=2, block=16, **fields)
    laid = tape_of(scenario)
    assert len({id(layer) for layer in traces}) <= count
    assert_equal(laid, traced_in_full(scenario, monkeypatch))


def test_a_denoiser_whose_layers_turn_out_to_differ_is_traced_in_full(monkeypatch, traces):
    monkeypatch.setattr(layer_parts.BackwardPart, "same_as", lambda *_: False)
    job = picture_job("flux-dev", train="lora", resolution="256")
    assert pictures.picture_budget(job, None).tape.events
    assert len(traces) == 9 + 57
