"""Models that are followed: transformers' own code, on tensors that count.

Each family is held against its followed twin: two ways to one tape, which share only `ops`.
"""

import contextlib
import json
import subprocess
import sys

import pytest
from test_laws import KINDS, TINY

from vrambudget.cli import main
from vrambudget.config.model_config import unknown_model_type
from vrambudget.config.source import find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.estimator import estimate
from vrambudget.planning.sweep import sweep
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate
from vrambudget.tape.replay import replay

torch = Block = None
with contextlib.suppress(ImportError):
    import torch
    from step_cases import Block

GPT_NEO = {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 2, "vocab_size": 500}
GPT_NEO |= {"attention_types": [[["global", "local"], 1]], "num_heads": 4}
GPT_NEO |= {"architectures": ["GPTNeoForCausalLM"]}

JOBS = {
    "bf16": {"precision": "bf16"},
    "autocast": {"precision": "amp-bf16", "clip": 1.0, "grad_accum": 2},
    "eager evaluation": {"precision": "fp32", "attention": "eager", "mode": "eval"},
    "checkpoints, dropout": {"precision": "amp-bf16", "checkpointing": "full", "dropout": 0.1},
    "a mask": {"precision": "fp32", "attention_mask": "padding", "keep_outputs": False},
}
FAMILIES = [kind for kind in KINDS if kind[0] not in {"nanogpt", "titan"}]
TWINS = [
    pytest.param(*kind, list(JOBS)[(number + shift) % len(JOBS)])
    for number, kind in enumerate(FAMILIES)
    for shift in (0, 3)
]


def traced():
    pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.17")
    from vrambudget.traced.config import traced_config  # noqa: PLC0415

    return traced_config


def peaks(config, scenario):
    peak = replay(simulate(config, scenario.job, scenario.platform).tape).peak
    return peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "task", "job"), TWINS)
def test_a_family_equals_its_followed_twin(name, task, job):
    config_of = traced()
    values = {"model_type": name, **TINY[name], "pad_token_id": 0}
    fields = {"torch": "2.11", "transformers": "5.17", **JOBS[job]}
    scenario = resolve(values, task=task, gpu="a100-80gb", batch=2, block=24, **fields)
    twin = config_of(find_model(values), NotModelledError("")).for_job(scenario.job)

    assert peaks(twin, scenario) == peaks(scenario.config, scenario)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral", "flex_olmo"])
@pytest.mark.filterwarnings("ignore")  # PEFT's own
def test_a_family_with_lora_equals_its_twin_in_pefts_own_wrapper(name):
    config_of = traced()
    pytest.importorskip("peft")
    values = {"model_type": name, **TINY[name], "pad_token_id": 0}
    fields = {"torch": "2.11", "transformers": "5.17", "lora_rank": 4, "precision": "bf16"}
    scenario = resolve(values, gpu="a100-80gb", batch=2, block=24, **fields)
    twin = config_of(find_model(values), NotModelledError("")).for_job(scenario.job)

    assert peaks(twin, scenario) == peaks(scenario.config, scenario)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_family_in_trainer_equals_its_twin_there(name):
    """Both are given the number of labels, and all logits are gathered."""
    config_of = traced()
    values = {"model_type": name, **TINY[name], "pad_token_id": 0}
    fields = {"torch": "2.11", "transformers": "5.17", "loop": "trainer", "eval_gather": True}
    fields |= {"eval_batches": 2, "eval_batch": 3, "grad_accum": 2, "batch": 2, "block": 24}
    scenario = resolve(values, gpu="a100-80gb", **fields)
    twin = config_of(find_model(values), NotModelledError("")).for_job(scenario.job)

    assert peaks(twin, scenario) == peaks(scenario.config, scenario)


def test_a_model_type_without_rules_is_followed_and_the_report_says_so():
    traced()
    budget = estimate(GPT_NEO, batch=2, block=32, precision="bf16", torch="2.11")

    layer = 64 * (192 + 64 + 256 + 256) + 64 + 256 + 64 + 4 * 64  # three biases, two norms
    assert budget.parameters.total == (500 + 2048) * 64 + 2 * layer + 128
    assert "gpt_neo has no rules of its own" in budget.warnings[0]
    assert not budget.not_modelled


def test_a_model_that_reads_images_too_is_trained_on_text():
    traced()
    inner = {"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 48}
    inner |= {"num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 48}
    vision = {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 24}
    vision |= {"num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    llava = {"model_type": "llava", "text_config": inner, "vision_config": vision}
    llava["architectures"] = ["LlavaForConditionalGeneration"]
    budget = estimate(llava, batch=2, precision="bf16", torch="2.11")

    assert (budget.job["task"], budget.job["block"]) == ("causal-lm", 48)
    assert budget.parameters.total == 30_288  # those of the vision tower, too


@pytest.mark.parametrize(("name", "order"), [("linalg_vector_norm", [2]), ("sum", [])])
def test_a_norm_is_split_over_the_dimensions_that_it_reduces(name, order, monkeypatch):
    traced()
    from vrambudget.ops import temporaries  # noqa: PLC0415 - patched where it is looked up
    from vrambudget.traced import kernels  # noqa: PLC0415 - it imports torch

    reduced = []
    monkeypatch.setattr(
        temporaries, "with_partial_sums", lambda _x, dims, *_, **__: reduced.append(dims)
    )
    x = torch.empty(2, 56, 56, 384, device="meta")
    result = torch.empty(2, 1, 1, 384, device="meta")
    kernels.temporaries(getattr(torch.ops.aten, name), name, (x, *order, [1, 2], True), result)

    assert reduced == [(1, 2)]


def test_layers_that_are_skipped_at_random_are_counted_as_never_skipped():
    traced()
    sizes = {"d_model": 32, "vocab_size": 100, "encoder_layers": 2, "decoder_layers": 2}
    sizes |= {f"{side}_attention_heads": 2 for side in ("encoder", "decoder")}
    sizes |= {f"{side}_ffn_dim": 64 for side in ("encoder", "decoder")}
    often, never = (
        estimate(
            {"model_type": "m2m_100", **sizes, "encoder_layerdrop": p, "decoder_layerdrop": p},
            batch=2,
            block=16,
            task="seq2seq-lm",
        )
        for p in (0.9, 0.0)
    )
    assert often.peak == never.peak
    told = "encoder_layerdrop and decoder_layerdrop: layers skipped at random"
    assert [told in warning for warning in often.warnings].count(True) == 1
    assert not any(told in warning for warning in never.warnings)


def test_a_model_type_that_nobody_knows_is_refused():
    traced()
    with pytest.raises(NotModelledError, match="'lama' is not modelled"):
        estimate({"model_type": "lama"}, batch=1, block=8)


def test_what_transformers_rejects_is_an_error_that_says_why(tmp_path, capsys):
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({**GPT_NEO, "num_heads": "four"}))
    assert main([str(tmp_path), "--batch", "1", "--block", "8"]) == 2
    error = capsys.readouterr().err
    assert "transformers rejects this configuration of gpt_neo" in error
    assert "num_heads" in error


@pytest.mark.parametrize(
    ("model_type", "door"),
    [
        ("clip", "--task image-cls and --task contrastive; or `vrambudget rehearse"),
        ("hubert", "--task audio-cls and --task ctc; or `vrambudget rehearse"),
    ],
)
def test_a_model_of_another_task_names_that_task_and_not_every_class(model_type, door):
    pytest.importorskip("transformers")
    with pytest.raises(NotModelledError) as caught:
        estimate({"model_type": model_type}, block=8, task="causal-lm")
    assert caught.value.message == f"transformers has no {model_type} for causal-lm"
    assert door in caught.value.hint


def test_without_torch_the_error_has_the_commands_that_work(tmp_path, monkeypatch, capsys):
    (tmp_path / "config.json").write_text(json.dumps(GPT_NEO))
    monkeypatch.setattr("vrambudget.traced.config.NEEDED", ("torch_that_is_not_here",))

    assert main([str(tmp_path), "--batch", "1", "--block", "8"]) == 2
    error = capsys.readouterr().err
    assert "model_type 'gpt_neo' is not modelled" in error
    assert "pip install 'vrambudget[torch]'" in error
    assert f"vrambudget rehearse --gpu GPU {tmp_path / 'config.json'}" in error


@pytest.mark.parametrize(("asked", "near"), [("lama", "'llama'"), ("gemma3", None), ("t5g", None)])
def test_a_tip_never_points_to_another_model_of_a_series(asked, near):
    hint = unknown_model_type(asked, ["gemma", "gemma2", "llama", "t5"]).hint
    assert ("did you mean" in hint) == (near is not None)
    assert near is None or near in hint


def test_an_operation_without_a_rule_is_named_with_the_line_that_called_it():
    traced()
    values = {"model_type": "mixtral", **TINY["mixtral"]}
    scenario = resolve(values, batch=1, block=8, precision="bf16", experts="eager")
    twin = traced()(find_model(values), NotModelledError("")).for_job(scenario.job)
    with pytest.raises(NotModelledError, match="nonzero has no rule") as caught:
        peaks(twin, scenario)

    assert "modeling_mixtral.py, line" in caught.value.where
    assert "vrambudget rehearse" in caught.value.hint


def test_to_know_that_a_family_is_known_imports_no_torch():
    code = "import sys, vrambudget; vrambudget.estimate('gpt2'); print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.strip() == "False"


def loss_of(logits, inputs):
    rows = logits.view(-1, logits.shape[-1])
    return torch.nn.functional.cross_entropy(rows, inputs[0].view(-1))


def test_a_hand_written_module_is_counted_and_stays_as_it_was():
    pytest.importorskip("torch")
    layers = torch.nn.Embedding(100, 32), Block(32, 4), torch.nn.Linear(32, 100)
    module = torch.nn.Sequential(*layers).eval()
    ids = torch.ones(4, 16, dtype=torch.long)
    fields = {"inputs": [ids], "loss": loss_of, "torch": "2.11", "gpu": "12GB"}
    budget = estimate(module, **fields)

    count = sum(p.numel() for p in module.parameters())
    assert budget.parameters.total == count
    assert budget.job["batch"] == 4
    assert budget.breakdown["weights"] == 4 * count
    assert not module.training
    assert all(type(p) is torch.nn.Parameter and p.grad is None for p in module.parameters())
    assert estimate(module, **fields, batch=8).peak.requested_bytes > budget.peak.requested_bytes


@pytest.mark.parametrize(("inputs", "key"), [("in order", 0), ("by name", "input")])
def test_a_loss_gets_the_inputs_as_they_were_given(inputs, key):
    pytest.importorskip("torch")
    ids = torch.ones(4, 16, dtype=torch.long)

    def loss(logits, given):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), given[key].flatten())

    fields = {"inputs": [ids] if inputs == "in order" else {"input": ids}}
    assert estimate(torch.nn.Embedding(100, 100), loss=loss, **fields).peak.allocated_bytes > 0
    with pytest.raises(NotModelledError, match="Embedding fails when it is called: "):
        estimate(torch.nn.Embedding(100, 100), loss=lambda _, given: given["no such"], **fields)


class Shifts(torch.nn.Module if torch else object):
    """Moves ids to the right as models of transformers do, and looks at what it wrote."""

    def __init__(self, writes):
        super().__init__()
        self.writes = writes
        self.embedding = torch.nn.Embedding(10, 8)

    def forward(self, ids):
        shifted = ids.new_zeros(ids.shape)
        self.writes(shifted, self.embedding.weight)
        shifted[:, 1:] = ids[:, :-1]
        shifted[:, 0] = 1
        if (shifted == 0).any():  # it has none
            raise AssertionError
        assert self.embedding.weight.new_tensor(3, device="cpu").item() == 3  # it is the host's
        return self.embedding(shifted)


def written_by_parts(x, _):
    left, right = x.view(-1).chunk(2)
    left += 1
    right.detach()[1:].fill_(5)
    assert x[0].sum() == x.shape[1]
    assert x.flatten()[-1] == right[-1] == 5
    assert right[0] == 0


WRITES = {
    "nothing": lambda *_: None,
    "a view": lambda x, _: x.view(-1).fill_(1),
    "parts of a view": written_by_parts,
}


@pytest.mark.parametrize("writes", WRITES.values(), ids=WRITES)
def test_values_written_in_place_are_read_back_as_written(writes):
    traced()
    ids = torch.ones(2, 4, dtype=torch.long)
    fields = {"inputs": [ids], "loss": lambda y, _: y.sum()}
    assert estimate(Shifts(writes), **fields).peak.allocated_bytes


def test_a_view_that_unknown_values_are_written_into_makes_its_base_unknown():
    traced()
    ids = torch.ones(2, 4, dtype=torch.long)
    fields = {"inputs": [ids], "loss": lambda y, _: y.sum()}
    unknown = Shifts(lambda x, weight: x.view(-1).copy_(weight.argmax(0)))
    with pytest.raises(NotModelledError, match="reads a value back"):
        estimate(unknown, **fields)


def test_states_are_taken_to_be_finite_and_memory_that_was_never_written_is_not_read():
    """BART's encoder asks in float16; the values of weights are nobody's."""
    traced()

    class Looks(torch.nn.Linear):
        def forward(self, x):
            y = super().forward(x) + torch.empty(4, device=x.device)
            if not torch.isfinite(y).all():
                raise AssertionError
            return y.sum() if torch.empty(1, device=x.device) > 0 else y

    with pytest.raises(NotModelledError, match="reads a value back"):
        estimate(Looks(4, 4), inputs=[torch.zeros(2, 4)], mode="eval")


def test_a_module_without_a_loss_is_told_to_bring_one():
    pytest.importorskip("torch")
    with pytest.raises(NotModelledError, match="outputs have no loss") as caught:
        estimate(torch.nn.Linear(4, 4), inputs=[torch.zeros(2, 4)])

    assert "loss=" in caught.value.hint
    assert estimate(torch.nn.Linear(4, 4), inputs=[torch.zeros(2, 4)], mode="eval").peak


def test_inputs_that_are_no_tensors_are_named():
    pytest.importorskip("torch")
    with pytest.raises(VramBudgetError, match=r"inputs\['x'\] is a int"):
        estimate(torch.nn.Linear(4, 4), inputs={"x": 4})


def test_a_sweep_by_requested_bytes_is_refused_in_words():
    traced()
    pytest.importorskip("numpy")
    with pytest.raises(NotModelledError, match="one size at a time"):
        sweep(GPT_NEO, batch=[1, 2], block=8, by="requested")
