"""A live model is read as its configuration says, and refused where it says something else."""

import builtins
import logging
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import vrambudget
from vrambudget.auto_classes import class_for
from vrambudget.config.gpus import find_gpu
from vrambudget.errors import DoesNotFit, NotModelledError, VramBudgetError
from vrambudget.integrations import live_gpu
from vrambudget.integrations.live_optimizer import read_optimizer
from vrambudget.integrations.preflight import predict
from vrambudget.integrations.rehearsal import rehearsal_command
from vrambudget.models import config_class, model_types
from vrambudget.training.freeze import shortest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

TINY = {
    "gpt2": {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 512, "n_positions": 64},
    "llama": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
    "gemma3": {
        "text_config": {"num_hidden_layers": 2},
        "vision_config": {"num_hidden_layers": 2},
    },
    "deepseek_v2": {"num_hidden_layers": 2, "num_experts_per_tok": 2},
    "glm4_moe": {"num_hidden_layers": 2, "head_dim": 128},
    "hunyuan_v1_dense": {"num_hidden_layers": 2, "head_dim": 128},
    "ministral": {"num_hidden_layers": 2, "head_dim": 128},
}
WITHOUT_SDPA = {"gpt_oss"}
SIZES = {"batch": 4, "block": 32}
VERSIONS = {"torch": torch.__version__, "transformers": transformers.__version__}


def live(model_type="gpt2", task="causal-lm", dtype=torch.float32, attention=None):
    """Return a model without data: it is only looked at."""
    config = transformers.AutoConfig.for_model(
        model_type, **TINY.get(model_type, {"num_hidden_layers": 2})
    )
    with torch.device("meta"):
        return class_for(transformers, task, config).from_config(
            config, dtype=dtype, attn_implementation=attention
        )


def expected(model_type="gpt2", **fields):
    values = {"model_type": model_type, **TINY.get(model_type, {"num_hidden_layers": 2})}
    return vrambudget.estimate(values, **SIZES, **VERSIONS, gpu="24GB", **fields)


def looked_at(model, **fields):
    return predict(model, **SIZES, gpu="24GB", **fields)


FAMILIES = [
    (family, task)
    for family in model_types()
    if family not in {"nanogpt", "titan", "hunyuan_v1_moe"}  # whose routers stay in float32
    for task in config_class(family).tasks
]


@pytest.mark.parametrize(("family", "task"), FAMILIES)
def test_a_live_model_is_its_configuration(family, task):
    attention = "eager" if family in WITHOUT_SDPA else "sdpa"
    found = looked_at(live(family, task, torch.bfloat16, attention))
    assert found == expected(family, task=task, precision="bf16", attention=attention)


def test_a_configuration_and_a_name_do_too():
    config = transformers.AutoConfig.for_model("gpt2", **TINY["gpt2"])
    assert looked_at(config) == expected()
    assert looked_at("gpt2") == vrambudget.estimate("gpt2", **SIZES, **VERSIONS, gpu="24GB")


def test_attention_and_checkpointing_are_seen():
    model = live(attention="eager")
    model.gradient_checkpointing_enable()
    found = looked_at(model)
    assert found == expected(precision="fp32", attention="eager", checkpointing="full")


def test_frozen_parts_are_seen():
    model = live("llama")
    model.model.embed_tokens.requires_grad_(False)
    model.model.layers[0].requires_grad_(False)
    model.model.layers[1].mlp.up_proj.requires_grad_(False)
    names = ("model.embed_tokens", "model.layers.0", "model.layers.1.mlp.up_proj")
    found = looked_at(model, precision="amp-bf16")
    assert found == expected("llama", precision="amp-bf16", freeze=names)
    assert found.parameters.trainable < found.parameters.total
    assert found.peak.allocated_bytes < expected("llama").peak.allocated_bytes


def test_frozen_parts_of_a_head_are_found():
    model = live("bert", "masked-lm")
    model.cls.predictions.transform.requires_grad_(False)
    assert looked_at(model).job["freeze"] == ["cls.predictions.transform"]


def test_lora_is_seen():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(live("llama", dtype=torch.bfloat16), config)
    found = looked_at(model)
    assert found == expected(
        "llama", precision="bf16", lora_rank=4, lora_targets=("q_proj", "v_proj")
    )


class Params4bit(torch.nn.Parameter):
    """A weight as bitsandbytes keeps it: a column of packed bytes, and what it was."""


def in_4bit(model, computed=torch.bfloat16, **state):
    """Put packed weights in place of those of a model's layers, and the rest in float32."""
    for layer in [*model.model.modules()]:
        if not isinstance(layer, torch.nn.Linear):
            if not [*layer.children()]:
                layer.to(torch.float32)
            continue
        packed = torch.empty(layer.weight.numel() // 2, 1, dtype=torch.uint8, device="meta")
        shape = layer.weight.shape
        layer.weight = Params4bit(packed, requires_grad=False)
        known = {"quant_type": "nf4", "blocksize": 64, "nested": True, "dtype": torch.bfloat16}
        layer.weight.quant_state = SimpleNamespace(**{**known, "shape": shape, **state})
        layer.compute_dtype = computed
    model.lm_head.to(torch.float32)
    return model


def test_weights_in_4_bit_are_seen():
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(in_4bit(live("llama", dtype=torch.bfloat16)), config)
    found = looked_at(model, precision="amp-bf16")
    assert found == expected(
        "llama", precision="amp-bf16", quant="nf4", lora_rank=4, lora_targets=("q_proj", "v_proj")
    )
    with pytest.raises(NotModelledError, match="of bf16 in precision 'fp32'"):
        looked_at(model)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"quant_type": "fp4"}, "fp4 in blocks of 64"),
        ({"blocksize": 128}, "nf4 in blocks of 128"),
        ({"computed": torch.float32}, "products are in torch.float32"),
    ],
)
def test_weights_in_4_bit_of_other_kinds_are_refused(told, words):
    with pytest.raises(NotModelledError, match=words):
        vrambudget.preflight(
            in_4bit(live("llama", dtype=torch.bfloat16), **told), strict=True, gpu="24GB", **SIZES
        )


@pytest.mark.parametrize(
    ("name", "bits", "paged", "expected_name"),
    [
        ("adam", 8, True, "paged-adamw-8bit"),
        ("adam", 8, False, "adamw-8bit"),
        ("lion", 32, False, "lion"),
        ("adam", 32, False, None),
    ],
)
def test_an_optimizer_of_bitsandbytes_is_seen(name, bits, paged, expected_name):
    kind = type("AdamW", (), {"__module__": "bitsandbytes.optim.adamw"})
    optimizer, model = kind(), live()
    optimizer.args = SimpleNamespace(optim_bits=bits, min_8bit_size=4096)
    optimizer.optimizer_name, optimizer.is_paged = name, paged
    optimizer.param_groups = [{"params": list(model.parameters())}]
    if expected_name is None:
        with pytest.raises(NotModelledError, match="states of 32 bits"):
            read_optimizer(optimizer, model)
        return
    assert read_optimizer(optimizer, model) == {"optimizer": expected_name}


def test_lora_on_a_classifier_trains_its_head():
    peft = pytest.importorskip("peft")
    targets = ["query", "value"]
    config = peft.LoraConfig(r=4, target_modules=targets, task_type="SEQ_CLS")
    found = looked_at(peft.get_peft_model(live("bert", "seq-cls"), config))
    assert found == expected(
        "bert", task="seq-cls", precision="fp32", lora_rank=4, lora_targets=tuple(targets)
    )

    frozen_head = peft.get_peft_model(
        live("bert", "seq-cls"), peft.LoraConfig(r=4, target_modules=targets)
    )
    assert looked_at(frozen_head).parameters.trainable == trained(frozen_head)


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 2}},
    ],
)
def test_other_adapters_are_followed(options):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], **options)
    model = peft.get_peft_model(live("llama"), config)
    budget = looked_at(model)
    assert budget.parameters.trainable == trained(model)
    assert "its code was traced" in budget.warnings[0]


OPTIMIZERS = [
    (lambda p: torch.optim.AdamW(p, fused=True), {"optimizer": "adamw", "optimizer_impl": "fused"}),
    (torch.optim.AdamW, {"optimizer": "adamw"}),
    (
        lambda p: torch.optim.Adam(p, foreach=False),
        {"optimizer": "adam", "optimizer_impl": "for-loop"},
    ),
    (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), {"optimizer": "sgd-momentum"}),
    (
        lambda p: torch.optim.SGD(p, lr=1.0, foreach=True),
        {"optimizer": "sgd", "optimizer_impl": "foreach"},
    ),
    (torch.optim.Adafactor, {"optimizer": "adafactor"}),
]


@pytest.mark.parametrize(("make", "fields"), OPTIMIZERS, ids=[str(f) for _, f in OPTIMIZERS])
def test_the_optimizer_is_seen(make, fields):
    model = live()
    wrapped = SimpleNamespace(optimizer=make(model.parameters()))  # as accelerate wraps it
    assert looked_at(model, optimizer=wrapped.optimizer) == looked_at(model, optimizer=wrapped)
    assert looked_at(model, optimizer=wrapped) == expected(precision="fp32", **fields)


def test_adafactor_of_transformers_is_known_where_trainer_steps_it():
    model = live()
    own = {"lr": 1e-3, "scale_parameter": False, "relative_step": False}
    adafactor = transformers.optimization.Adafactor(model.parameters(), **own)
    assert read_optimizer(adafactor, model, "trainer") == {"optimizer": "adafactor"}
    with pytest.raises(NotModelledError, match=r"transformers\.optimization\.Adafactor"):
        read_optimizer(adafactor, model)  # in a loop of one's own, groups may be in another order
    reads = transformers.optimization.Adafactor(model.parameters())
    with pytest.raises(NotModelledError, match="scale_parameter=True"):
        read_optimizer(reads, model, "trainer")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (torch.optim.RMSprop, "torch.optim.rmsprop.RMSprop"),
        (lambda p: torch.optim.AdamW(p, amsgrad=True), "amsgrad"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay"),
        (lambda p: torch.optim.AdamW(list(p)[1:]), "not in the optimizer"),
    ],
)
def test_an_optimizer_without_rules_is_refused(make, words):
    model = live()
    with pytest.raises(NotModelledError, match=words):
        looked_at(model, optimizer=make(model.parameters()))


def _changed_by_hand():
    model = live()
    width, inner = model.transformer.h[0].mlp.c_fc.weight.shape
    model.transformer.h[0].mlp.c_fc = torch.nn.Linear(width, inner)
    return model


def _reentrant():
    model = live()
    model.gradient_checkpointing_enable({"use_reentrant": True})
    return model


def test_a_model_that_was_changed_by_hand_is_followed():
    changed, whole = looked_at(_changed_by_hand()), looked_at(live())
    assert changed.parameters == whole.parameters
    assert "its code was traced" in changed.warnings[0]
    # A linear layer is a product and a bias as Conv1D is, with a weight that lies the other way.
    assert changed.peak.allocated_bytes == whole.peak.allocated_bytes


@pytest.mark.parametrize(
    ("model", "fields", "is_told"),
    [
        (live, {}, True),
        (_changed_by_hand, {}, True),
        (live, {"model_mode": "eval"}, False),
        (live, {"mode": "eval"}, False),
        (live, {"loop": "trainer"}, False),
        (lambda: live("llama"), {}, False),  # it has no dropout
    ],
)
def test_a_model_in_eval_mode_is_told_that_its_dropout_is_counted(model, fields, is_told):
    found = looked_at(model().eval(), **fields)
    assert any("model_mode='eval' has none" in text for text in found.warnings) is is_told


def trained(model):
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (_reentrant, "use_reentrant=True"),
        (lambda: torch.nn.Linear(2, 2), "Linear fails when it is called"),
        (lambda: live().transformer, "outputs have no loss"),
        (lambda: torch.compile(live(), backend="eager"), "torch.compile"),
    ],
    ids=["reentrant", "linear", "headless", "compiled"],
)
def test_what_is_not_modelled_gets_a_clear_answer(make, words):
    with pytest.raises(NotModelledError, match=words):
        looked_at(make())


def test_what_contradicts_the_model_is_said():
    with pytest.raises(VramBudgetError, match="checkpointing is given as 'full'"):
        looked_at(live(), checkpointing="full")


def test_a_cache_that_training_fills_is_seen():
    model = live()
    assert looked_at(model) == expected(precision="fp32", use_cache=True)
    model.config.use_cache = False
    assert looked_at(model) == expected(precision="fp32", use_cache=False)


def test_autocast_that_is_on_is_seen():
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", enabled=True)
    try:
        assert looked_at(live()) == expected(precision="amp-bf16")
        found = looked_at(live(dtype=torch.bfloat16))
        assert found == expected(precision="amp-bf16", weights="bf16")
    finally:
        torch.set_autocast_enabled("cuda", enabled=False)
        torch.set_autocast_dtype("cuda", before)


def test_a_training_goes_on_where_nothing_can_be_predicted(caplog):
    with caplog.at_level(logging.WARNING, "vrambudget"):
        assert vrambudget.preflight(_reentrant(), gpu="24GB") is None
    assert "use_reentrant=True" in caplog.text
    assert "vrambudget rehearse --gpu 24GB --steps 3 -- " in caplog.text


def test_what_is_typed_wrong_is_an_error_all_the_same():
    with pytest.raises(VramBudgetError, match="bacth is not known"):
        vrambudget.preflight(live(), gpu="24GB", bacth=8)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["/usr/bin/python", "train.py", "--lr", "1e-3 "], "python train.py --lr '1e-3 '"),
        (["python3", "-m", "my.train"], "python3 -m my.train"),
        (["python", "-c", "..."], "python train.py"),
        (["python"], "python train.py"),
        (["python", "-m", "ipykernel_launcher", "-f", "x.json"], "python train.py"),
    ],
)
def test_the_rehearsals_command_is_that_of_the_running_script(words, command):
    gpu = find_gpu("RTX 3060")
    found = rehearsal_command(gpu, words)
    assert found == f"vrambudget rehearse --gpu rtx-3060 --steps 3 -- {command}"
    assert rehearsal_command("a b", words).startswith("vrambudget rehearse --gpu 'a b' ")


def test_autocast_by_accelerate_is_seen():
    accelerate = pytest.importorskip("accelerate")
    model = live()
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - of a test before
    try:
        accelerator = accelerate.Accelerator(mixed_precision="bf16", cpu=True)
        prepared = accelerator.prepare_model(model, device_placement=False)
        assert looked_at(prepared) == expected(precision="amp-bf16", loop="accelerate")
        assert looked_at(prepared, loop="plain") == expected(precision="amp-bf16")
    finally:
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # noqa: SLF001 - of this process


def test_strict_raises_with_the_budget():
    with pytest.raises(DoesNotFit, match=r"DOES NOT FIT: .* short") as caught:
        vrambudget.preflight(live(), batch=4, block=32, gpu="40MiB", strict=True)
    assert not caught.value.budget.fits
    assert vrambudget.preflight(live(), gpu="24GB", strict=True).fits
    with pytest.raises(NotModelledError):
        vrambudget.preflight(_reentrant(), gpu="24GB", strict=True)


def test_strict_needs_a_card(monkeypatch):
    monkeypatch.setattr("vrambudget.integrations.preflight.gpu_now", lambda *_: (None, ()))
    with pytest.raises(VramBudgetError, match="needs a GPU"):
        vrambudget.preflight(live(), strict=True)
    assert vrambudget.preflight(live(), block=8).device is None


class _OnCard:
    """A tensor of 1,000 bytes on the GPU."""

    is_cuda = True
    grad = None

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: id(self), nbytes=lambda: 1000)


def test_the_card_gives_what_is_free_and_what_the_job_has_there_already(monkeypatch):
    cuda = SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda: (10 * 2**30, 12 * 2**30),
        memory_reserved=lambda: 2**30,
        memory_allocated=lambda: 2**29,
        get_device_name=lambda: "NVIDIA GeForce RTX 3060",
        get_device_capability=lambda: (8, 6),
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    model = SimpleNamespace(parameters=lambda: [_OnCard()], buffers=list)
    card, notes = live_gpu.gpu_now(model)
    others = 2**29 - 1024
    room = 10 * 2**30 + 2**30 - others
    assert card.capacity_bytes - card.context_bytes == room
    assert card.compute_capability == (8, 6)
    assert notes == ("512.00 MiB of other tensors are on the GPU",)


def test_shortest_names_freeze_all_and_nothing_else():
    frozen = ["a.b.w", "a.b.v", "a.c.w"]
    assert shortest(frozen, ["a.d.w"]) == ("a.b", "a.c")
    assert shortest(frozen, ["a.b.u"]) == ("a.b.w", "a.b.v", "a.c")
    assert shortest([], ["a"]) == ()


def test_a_preflight_of_a_configuration_imports_no_torch():
    code = (
        "import sys, vrambudget;"
        "b = vrambudget.preflight({'model_type': 'gpt2'}, block=8, gpu='12GB');"
        "assert 'torch' not in sys.modules and b.fits"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def shell(monkeypatch):
    interactive = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.setattr(builtins, "__IPYTHON__", True, raising=False)  # gone afterwards
    made = interactive.InteractiveShell()
    made.run_line_magic("load_ext", "vrambudget")
    return made


def test_the_magic_estimates_by_name_and_looks_at_models(shell):
    by_name = shell.run_line_magic("vram", "gpt2 --batch 8 --block 64 --gpu 12GB")
    assert by_name == vrambudget.estimate("gpt2", batch=8, block=64, gpu="12GB")
    shell.user_ns["net"] = live()
    found = shell.run_line_magic("vram", "net --batch 4 --block 32 --gpu 24GB")
    assert found == expected(precision="fp32")
    shown, _ = shell.display_formatter.format(found)
    assert "FITS" in shown["text/html"]
    assert shown["text/plain"].startswith("FITS")


def test_the_cells_so_far_are_rehearsed_as_a_script(shell, monkeypatch):
    seen = []

    def command(words):
        seen.extend([words[:-2], Path(words[-1]).read_text()])

    monkeypatch.setattr("vrambudget.cli.magic.main", command)
    for cell in ("x = 1\n%pwd\n!true", "1 +", "y = 2"):
        shell.run_cell(cell, store_history=True)
    shell.run_cell("%%rehearse --gpu t4 --steps 3\nz = x + y\n%time", store_history=True)
    assert seen[0] == ["rehearse", "--gpu", "t4", "--steps", "3", "--"]
    assert seen[1] == "x = 1\ny = 2\nz = x + y"


def test_a_tip_in_a_notebook_can_be_run_there(shell, capsys):
    shell.run_line_magic("vram", "no-such-model --gpu t4")
    shell.run_line_magic("vram", "gpt2 --gpu 2xt4 --parallel zero3 --loop trainer --mode eval")
    shown = capsys.readouterr().err
    assert "`%%rehearse --gpu GPU --ranks N`" in shown
    assert "train.py" not in shown


def test_the_magics_mistakes_are_two_lines(shell, capsys):
    assert shell.run_line_magic("vram", "gpt3 --batch 8") is None
    assert "there is no model 'gpt3'" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["gpt2 --gpu '12GB", 'plan "gpt2', "\\"])
def test_a_line_that_is_no_line_of_a_shell_is_said_in_two_lines(shell, capsys, line):
    assert shell.run_line_magic("vram", line) is None
    shell.run_cell_magic("rehearse", line, "x = 1")
    assert capsys.readouterr().err.count("error: ") == 2
