"""Files of other tools mean here what they mean there; what is not read is listed."""

import json

import pytest

import vrambudget
from vrambudget.cli import main
from vrambudget.config.foreign.formats import FORMATS, format_of
from vrambudget.config.foreign.meanings import OneOf, Same, Switch
from vrambudget.config.foreign.run_file import is_run_file, read_run_file
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError

AXOLOTL = """
base_model: NousResearch/Llama-3.2-1B
load_in_4bit: true
datasets:
  - path: teknium/GPT4-LLM-Cleaned
adapter: qlora
sequence_len: 2048
sample_packing: true
lora_r: 32
lora_alpha: 16
lora_dropout: 0.05
lora_target_modules:
  - q_proj
  - v_proj
gradient_accumulation_steps: 4
micro_batch_size: 2
optimizer: adamw_bnb_8bit
learning_rate: 0.0002
bf16: auto
gradient_checkpointing: true
attn_implementation: flash_attention_2
wandb_project:
my_own_key: 1
"""
LLAMA_FACTORY = """
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: full
template: llama3
cutoff_len: 1024
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
val_size: 0.1
"""
TRL = """
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: trl-lib/Capybara
use_peft: true
lora_r: 8
max_length: 512
per_device_train_batch_size: 2
"""
TORCHTUNE = """
model:
  _component_: torchtune.models.llama3_1.lora_llama3_1_8b
  lora_attn_modules: ['q_proj', 'v_proj', 'output_proj']
  apply_lora_to_mlp: True
  lora_rank: 16
  lora_alpha: 32
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
  path: /tmp/tokenizer.model
  max_seq_len: 512
checkpointer:
  checkpoint_files: [a, b]
batch_size: 2
optimizer:
  _component_: torch.optim.AdamW
  fused: True
  lr: 3e-4
loss:
  _component_: torchtune.modules.loss.CEWithChunkedOutputLoss
gradient_accumulation_steps: 8
clip_grad_norm: null
compile: False
dtype: bf16
enable_activation_checkpointing: True
"""
DEEPSPEED = {
    "train_micro_batch_size_per_gpu": 4,
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2, "overlap_comm": True},
    "fp16": {"enabled": False, "loss_scale": 0},
}
ACCELERATE = """
compute_environment: LOCAL_MACHINE
distributed_type: 'NO'
mixed_precision: bf16
num_processes: 1
dynamo_config: {}
"""
ARGUMENTS = {
    "output_dir": "out",
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "bf16": True,
    "optim": "adamw_torch",
    "learning_rate": 5e-5,
    "label_names": None,
}


def written(path, content):
    text = content if isinstance(content, str) else json.dumps(content)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def file(tmp_path):
    """Write a file; without PyYAML, those in YAML are skipped."""

    def write(name, content):
        if name.endswith((".yaml", ".yml")):
            pytest.importorskip("yaml")
        return written(tmp_path / name, content)

    return write


def job_of(run):
    return Job.parse({**run.assumed, **run.fields}).model_dump(exclude_unset=True)


def test_axolotls_file(file):
    run = read_run_file(file("a.yaml", AXOLOTL))
    assert run.model == "NousResearch/Llama-3.2-1B"
    job = job_of(run)
    assert (job["batch"], job["block"], job["grad_accum"]) == (2, 2048, 4)
    assert (job["lora_rank"], job["lora_targets"]) == (32, ("q_proj", "v_proj"))
    assert (job["quant"], job["optimizer"]) == ("nf4", "adamw-8bit")
    assert "double_quant" not in job  # the default: axolotl's loader quantises the scales, too
    assert (job["checkpointing"], job["precision"]) == ("full", "amp-bf16")
    assert job["clip"] == 1.0  # TrainingArguments' default
    assert run.uncounted == ("packed rows",)
    assert any("modelled as PyTorch's flash kernel" in note for note in run.notes)
    assert any("not known here, ignored: my_own_key" in note for note in run.notes)


def test_llama_factorys_file(file):
    run = read_run_file(file("l.yaml", LLAMA_FACTORY))
    job = job_of(run)
    assert (job["batch"], job["block"], job["grad_accum"]) == (1, 1024, 8)
    assert "lora_rank" not in job
    assert (job["checkpointing"], job["precision"]) == ("full", "amp-bf16")
    assert run.uncounted == ()
    assert "eval_batches" not in job  # val_size alone evaluates nothing


def test_llama_factorys_adapters_lie_on_bf16_weights(file):
    lora = LLAMA_FACTORY.replace("finetuning_type: full", "lora_rank: 4")
    job = job_of(read_run_file(file("l.yaml", lora)))
    assert (job["lora_rank"], job["lora_targets"]) == (4, "all-linear")
    assert (job["precision"], job["weights"]) == ("amp-bf16", "bf16")


def test_trls_file_has_trls_defaults(file):
    budget = vrambudget.estimate(file("t.yaml", TRL), gpu="12GB")
    job = budget.job
    assert (job["batch"], job["block"], job["checkpointing"]) == (2, 512, "full")
    assert (job["lora_rank"], job["lora_dropout"]) == (8, 0.05)
    assert job["lora_targets"] == ["q_proj", "v_proj"]  # PEFT's own for this family
    assert job["loop"] == "sft"
    assert any("the one of TRL 1.16" in w for w in budget.warnings)
    assert budget.not_modelled == ()
    packed = "packing: true\n"
    assert job_of(read_run_file(file("p.yaml", TRL + packed)))["rows"] == "packed"
    wrapped = read_run_file(file("w.yaml", f"{TRL}{packed}packing_strategy: wrapped\n"))
    assert "rows" not in job_of(wrapped)
    pairs = read_run_file(file("d.yaml", f"{TRL}beta: 0.1\nload_in_4bit: true\n"))
    assert (job_of(pairs)["loop"], job_of(pairs)["quant"]) == ("dpo", "nf4")


def test_torchtunes_file(file):
    run = read_run_file(file("tune.yaml", TORCHTUNE))
    assert run.model == "llama3_1_8b"
    job = job_of(run)
    assert (job["batch"], job["block"], job["grad_accum"]) == (2, 512, 8)
    assert job["lora_targets"] == (
        "q_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    assert (job["precision"], job["optimizer_impl"]) == ("bf16", "fused")
    assert any("a loss that makes the logits in parts" in note for note in run.notes)
    assert not any("not known" in note for note in run.notes)


def test_deepspeeds_file_says_what_is_of_several_gpus(file):
    run = read_run_file(file("ds.json", DEEPSPEED))
    assert run.model is None
    assert run.fields == {"batch": 4, "clip": 1.0}
    (told,) = (
        note for note in run.on(1).notes if "of several GPUs, without meaning for one" in note
    )
    assert "zero_optimization.stage" in told
    assert "zero_optimization.overlap_comm" in told


def test_accelerates_file(file):
    run = read_run_file(file("acc.yaml", ACCELERATE))
    assert run.fields == {"precision": "amp-bf16"}
    assert run.uncounted == ()


def test_an_evaluation_and_its_batch_are_read_together(file):
    silent = job_of(read_run_file(file("a.json", {**ARGUMENTS, "per_device_eval_batch_size": 2})))
    assert "eval_batch" not in silent
    evaluates = {**ARGUMENTS, "eval_strategy": "steps", "per_device_eval_batch_size": 2}
    job = job_of(read_run_file(file("a.json", evaluates)))
    assert (job["eval_batches"], job["eval_batch"], job["loop"]) == (2, 2, "trainer")
    smooth = {**ARGUMENTS, "label_smoothing_factor": 0.1}
    assert job_of(read_run_file(file("a.json", smooth)))["label_smoothing"] == 0.1


def test_training_arguments_bring_their_own_defaults(file):
    path = file("args.json", ARGUMENTS)
    budget = vrambudget.estimate("gpt2", config=path, block=64)
    assert budget == vrambudget.estimate("gpt2", config=[path], block=64)
    job = budget.job
    assert (job["batch"], job["grad_accum"], job["precision"]) == (4, 2, "amp-bf16")
    assert (job["clip"], job["optimizer_impl"]) == (1.0, None)
    assert any("args.json (TrainingArguments): read: per_device" in w for w in budget.warnings)


def test_a_later_file_goes_before_an_earlier_one_and_an_option_before_both(file):
    files = [file("args.json", ARGUMENTS), file("ds.json", DEEPSPEED)]
    for order in (files, files[::-1]):
        job = vrambudget.estimate("gpt2", config=order, block=64).job
        assert job["clip"] == 1.0
    assert vrambudget.estimate("gpt2", config=files, block=64).job["batch"] == 4
    assert vrambudget.estimate("gpt2", config=files, block=64, batch=1).job["batch"] == 1


def test_what_a_librarys_loop_is_not_modelled_with_has_a_way_out(file):
    whole = {**ARGUMENTS, "optim": "adamw_bnb_8bit"}
    path = file("args.json", whole)
    with pytest.raises(VramBudgetError, match="loop 'plain' keeps them in 8"):
        vrambudget.estimate("gpt2", config=path, block=64)
    job = vrambudget.estimate("gpt2", config=path, block=64, loop="plain").job
    assert (job["optimizer"], job["clip"]) == ("adamw-8bit", 1.0)


def test_this_tools_own_file(file, capsys):
    path = file("job.toml", 'model = "gpt2"\ngpu = "12GB"\nbatch = 2\nblock = 64\n')
    assert main([str(path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["device"]["name"]) == ("gpt2", "NVIDIA GeForce RTX 3060")
    assert found["job"]["batch"] == 2
    assert main(["--config", str(path), "--batch", "3", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["job"]["batch"] == 3


def test_a_file_that_is_read_is_not_overwritten(file, capsys):
    path = file("job.toml", 'model = "gpt2"\nblock = 64\n')
    for words in (["--config", str(path)], [str(path)]):
        assert main([*words, "--format", "json", "-o", str(path)]) == 2
        assert "would overwrite what it is made of" in capsys.readouterr().err


def test_a_file_without_a_model_needs_one(file):
    path = file("args.json", ARGUMENTS)
    with pytest.raises(VramBudgetError, match=r"args\.json names no model") as error:
        vrambudget.estimate(path)
    assert "vrambudget MODEL --config" in error.value.hint


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("job.toml", "batch = 2\nbacth = 3", "bacth is no field of a job"),
        ("job.toml", "batch = ", "this is not TOML"),
        ("job.toml", "model = 3", "model is 3; it should be text"),
        ("x.yaml", "a: 1\nb: 2", "no tool's file has these keys"),
        ("x.yaml", "a: [1", "this is no YAML"),
        ("x.yaml", "optim: a\noptim: b", "the key 'optim' stands twice"),
        ("x.yaml", "- 1\n- 2", "this holds a list; it should be an object with keys"),
        ("x.yaml", "", "this holds a NoneType"),
        ("x.yaml", "output_dir: " + "{a: " * 30 + "1" + "}" * 30, "nested too deep"),
        ("x.json", '{"optim": 1', "this is no JSON"),
        ("x.yaml", "per_device_train_batch_size: many", "batch is 'many'"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(name, content, words, file):
    path = file(name, content)
    with pytest.raises(VramBudgetError) as error:
        vrambudget.estimate("gpt2", config=path, block=64)
    assert words in error.value.message
    assert name in str(error.value.where)


def test_without_pyyaml_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    path = written(tmp_path / "a.yaml", TRL)
    with pytest.raises(VramBudgetError, match="needs PyYAML") as error:
        vrambudget.estimate(path)
    assert "vrambudget[yaml]" in error.value.hint


def test_a_models_configuration_is_no_file_of_a_run(file):
    assert not is_run_file(file("config.json", {"model_type": "gpt2", "torch_dtype": "float32"}))
    assert not is_run_file("gpt2")
    assert not is_run_file("no.yaml")


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: known.name)
def test_every_key_stands_for_fields_that_there_are(known):
    for key, meaning in known.table.items():
        if isinstance(meaning, Same):
            assert meaning.field in Job.model_fields, key
        if isinstance(meaning, Switch):
            Job.parse({"lora_rank": 1, "clip": 1.0, **meaning.assumed, **meaning.on})
        if isinstance(meaning, OneOf):
            assert all(set(fields) <= set(Job.model_fields) for fields in meaning.of.values())
    assert set(known.defaults) <= set(Job.model_fields)
    assert known.marks <= set(known.table)


def test_each_format_is_told_by_each_of_its_own_keys():
    for known in FORMATS:
        assert format_of(dict.fromkeys(known.marks)) is known
