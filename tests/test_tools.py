"""Recipes in other tools' words: what is written is read back as the same job, and runs."""

import ast
import importlib.machinery
import sys
import types

import pytest

from vrambudget.cli import main
from vrambudget.config.job import Job
from vrambudget.report.tools import TOOLS
from vrambudget.scenario import resolve

FILES = ["trl", "axolotl", "llamafactory"]
SAID = {
    *("batch", "block", "grad_accum", "precision", "weights", "quant", "double_quant", "loop"),
    *("lora_rank", "lora_targets", "lora_dropout", "checkpointing", "attention", "clip"),
    *("optimizer", "optimizer_impl"),
}
FULL = {"optimizer_impl": "fused", "batch": 3}
LORA = {"lora_rank": 8, "batch": 2, "grad_accum": 4, "optimizer_impl": "fused"}
JOBS = {
    "full": FULL,
    "full, 16 bit": {**FULL, "precision": "bf16", "checkpointing": "full"},
    "full, mixed": {**FULL, "precision": "amp-bf16", "weights": "bf16"},
    "full, float32": {**FULL, "precision": "fp32", "attention": "eager"},
    "full, float16": {**FULL, "precision": "amp-fp16"},
    "lora": {**LORA, "precision": "bf16", "checkpointing": "full"},
    "lora, mixed": {**LORA, "precision": "amp-bf16", "weights": "bf16", "lora_dropout": 0.1},
    "lora, float16": {**LORA, "precision": "amp-fp16", "weights": "fp16"},
    "lora, named": {**LORA, "precision": "bf16", "lora_targets": ("q_proj", "v_proj")},
    "qlora": {**LORA, "precision": "bf16", "quant": "nf4", "double_quant": False},
    "8 bit, mixed": {**LORA, "precision": "amp-bf16", "quant": "int8", "checkpointing": "full"},
    "qlora, mixed": {**LORA, "precision": "amp-bf16", "quant": "nf4", "checkpointing": "full"},
    "qlora, 8 bit": {
        **LORA,
        "precision": "amp-bf16",
        "quant": "nf4",
        "optimizer": "paged-adamw-8bit",
        "optimizer_impl": None,
    },
}
MEANT = {  # (tool, job) that the tool has no words for
    ("axolotl", "full"),
    ("axolotl", "full, 16 bit"),
    ("axolotl", "full, float16"),
    ("axolotl", "lora"),
    ("axolotl", "lora, named"),
    ("axolotl", "qlora"),
    ("llamafactory", "full, mixed"),
}


def scenario_of(job, tool="trainer"):
    return resolve("llama-3.2-1b", block=512, loop=TOOLS[tool].job["loop"], gpu="24GB", **job)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("tool", FILES)
def test_a_file_is_read_back_as_the_job_that_it_was_written_for(tool, name, tmp_path):
    pytest.importorskip("yaml")
    scenario = scenario_of(JOBS[name], tool)
    if not TOOLS[tool].suits(scenario.job):
        assert (tool, name) in MEANT
        return
    assert (tool, name) not in MEANT
    file = tmp_path / "recipe.yaml"
    file.write_text(TOOLS[tool].write(scenario, scenario.job, "a\nhead"))
    assert file.read_text().startswith("# a\n# head\n")
    again = resolve(file)
    job, read = scenario.job.model_dump(include=SAID), again.job.model_dump(include=SAID)
    loop = "sft" if tool == "trl" else "trainer"  # TRL's own loop needs less
    assert read == {**job, "loop": loop}
    assert again.model == "llama-3.2-1b"
    assert not [note for note in again.run.notes if "not known here" in note]


@pytest.mark.parametrize("name", JOBS)
def test_a_script_has_arguments_that_its_libraries_have(name):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    scenario = scenario_of(JOBS[name])
    tree = ast.parse(TOOLS["trainer"].write(scenario, scenario.job, "head"))
    known = {
        "TrainingArguments": set(transformers.TrainingArguments.__dataclass_fields__),
        "LoraConfig": set(peft.LoraConfig.__dataclass_fields__),
    }
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if isinstance(call.func, ast.Name) and call.func.id in known:
            assert {word.arg for word in call.keywords} <= known[call.func.id]


@pytest.mark.parametrize("name", ["full, float32", "lora"])
@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_a_script_trains(name, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    pytest.importorskip("peft")
    pytest.importorskip("accelerate")
    values = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 20}
    scenario = resolve(values, block=8, loop="trainer", **JOBS[name])

    def from_pretrained(_, **options):
        config = transformers.AutoConfig.for_model(**values)
        return transformers.GPT2LMHeadModel._from_config(config, **options)  # noqa: SLF001

    rows = [{"input_ids": [1] * 8, "labels": [1] * 8}] * 2
    datasets = types.ModuleType("datasets")
    datasets.Dataset, datasets.IterableDataset = type("Rows", (), {}), type("Stream", (), {})
    datasets.load_from_disk = lambda _: rows
    datasets.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
    monkeypatch.setitem(sys.modules, "datasets", datasets)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", from_pretrained)
    monkeypatch.setattr(sys, "argv", ["train.py", "rows"])
    monkeypatch.chdir(tmp_path)
    text = TOOLS["trainer"].write(scenario, scenario.job, "head")
    names = {}
    exec(compile(text, "train.py", "exec"), names)  # noqa: S102 - our own text
    trained = [p for p in names["model"].parameters() if p.requires_grad]
    assert all(torch.isfinite(p).all() for p in trained)
    assert (len(trained) < len(list(names["model"].parameters()))) is (name == "lora")


def test_what_no_tool_trains_is_refused_by_name(capsys):
    assert main(["plan", "nanogpt", "--gpu", "12GB", "--block", "64", "--as", "trainer"]) == 2
    assert "nanoGPT's own train.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--choice", "9"], "there are 6 recipes"),
        (["--format", "json"], "cannot be combined"),
        (["--goal", "full", "--freeze", "lm_head"], "no recipe that trl has words for"),
    ],
)
def test_a_recipe_that_is_none_is_an_error(words, told, capsys):
    line = ["plan", "distilgpt2", "--gpu", "12GB", "--block", "64", "--batch", "1", "--as", "trl"]
    assert main([*line, *words]) == 2
    assert told in capsys.readouterr().err


def test_the_chosen_recipe_is_written_with_its_command(tmp_path, capsys):
    file = tmp_path / "recipe.yaml"
    line = ["plan", "distilgpt2", "--gpu", "12GB", "--block", "64", "--batch", "1"]
    assert main([*line, "--as", "llamafactory", "--choice", "3", "-o", str(file)]) == 0
    text = file.read_text()
    assert "# vrambudget distilgpt2 --gpu rtx-3060" in text
    assert 'finetuning_type: "lora"' in text
    capsys.readouterr()


def test_a_recipe_has_the_length_that_a_plan_has(capsys):
    line = ["plan", "smollm2-135m", "--gpu", "80GB", "--batch", "1", "--goal", "qlora"]
    assert main([*line, "--as", "trl"]) == 0
    assert "max_length: 4096" in capsys.readouterr().out


def test_a_task_that_a_tool_does_not_train_suits_it_not():
    job = Job.parse({"task": "masked-lm", "optimizer_impl": "fused"})
    assert [TOOLS[tool].suits(job) for tool in ("trainer", *FILES)] == [True, False, False, False]


def test_a_job_that_is_compiled_suits_trainer_alone_and_is_said():
    job = Job.parse({"task": "causal-lm", "compile": True, "optimizer_impl": "fused"})
    assert [TOOLS[tool].suits(job) for tool in ("trainer", *FILES)] == [True, False, False, False]
    scenario = resolve("distilgpt2", block=64, gpu="12GB")
    for compiles in (True, False):
        job = scenario.job.model_copy(update={"compile": compiles})
        text = TOOLS["trainer"].write(scenario, job, "a script")
        assert ("torch_compile=True," in text) == compiles
