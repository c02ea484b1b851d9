"""Recipes for several GPUs in other tools' words: read back as the same job, parsed by the tools.

The tools' own parsers run where they are installed, besides torch and transformers:

    pip install --no-deps trl==1.16.0 axolotl==0.19.0 torchtitan==0.2.2 datasets tyro ...
"""

import pytest

from vrambudget.cli import main
from vrambudget.config.foreign.torchtitan import model_of
from vrambudget.report.tools import TOOLS
from vrambudget.scenario import resolve

yaml = pytest.importorskip("yaml")

SAID = {
    *("batch", "block", "grad_accum", "precision", "weights", "quant", "lora_rank", "clip"),
    *("checkpointing", "optimizer", "optimizer_impl", "parallel", "ranks", "cpu_offload"),
    *("reshard_after_forward", "replicate", "param_dtype", "reduce_dtype", "fsdp_wrap"),
}
FSDP2 = {"parallel": "fsdp2", "reshard_after_forward": True}
LORA = {"lora_rank": 8}
JOBS = {
    "DDP": {"parallel": "ddp"},
    "DDP, lora": {"parallel": "ddp", **LORA, "precision": "bf16"},
    "FSDP2": FSDP2,
    "FSDP2, gathered once": {**FSDP2, "reshard_after_forward": False, "checkpointing": "full"},
    "FSDP2, CPU offload": {**FSDP2, "cpu_offload": True},
    "FSDP2, lora": {**FSDP2, **LORA, "precision": "bf16"},
    "FSDP2, lora, mixed": {**FSDP2, **LORA, "precision": "amp-bf16", "weights": "bf16"},
    "FSDP2, mixed": {**FSDP2, "precision": "amp-bf16", "weights": "bf16"},
    "ZeRO-2": {"parallel": "deepspeed2", "precision": "bf16", "grad_accum": 4},
    "ZeRO-3": {"parallel": "deepspeed3", "precision": "bf16", "checkpointing": "full"},
}
TITAN = {
    "precision": "fp32",
    "param_dtype": "bf16",
    "reduce_dtype": "fp32",
    "parallel": "fsdp2",
    "fsdp_wrap": "torchtitan",
    "forward_returns": "loss",
    "optimizer_impl": "fused",
    "clip": 1.0,
    "loop": "plain",
}
TITAN_JOBS = {
    "FSDP2": TITAN,
    "HSDP": {**TITAN, "replicate": 2},
    "gathered once": {**TITAN, "reshard_after_forward": False, "checkpointing": "full"},
    "CPU offload": {**TITAN, "cpu_offload": True, "checkpointing": "selective-2"},
}
FILES = ("trl", "axolotl", "llamafactory")


def written(tool, name, folder):
    """Return the job and the file that the tool reads, None where it has no words for the job."""
    titan = tool == "torchtitan"
    fields = TITAN_JOBS[name] if titan else {**TOOLS[tool].multi_gpu_job, **JOBS[name]}
    model = model_of("8B") if titan else "llama-3.2-1b"
    fields = {"optimizer_impl": "fused", **fields}
    scenario = resolve(model, gpu="4xh100", block=512, batch=2, **fields)
    if not TOOLS[tool].suits(scenario.job):
        return scenario.job, None
    file = folder / ("recipe.toml" if titan else "recipe.yaml")
    file.write_text(TOOLS[tool].write(scenario, scenario.job, "a\nhead"))
    return scenario.job, file


def said(job):
    return job.model_dump(include=SAID) | {"weights": job.weight_dtype}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("tool", FILES)
def test_a_file_is_read_back_as_the_job_that_it_was_written_for(tool, name, tmp_path):
    job, file = written(tool, name, tmp_path)
    if file is None:  # only of layouts with all in 16 bits, or with weights in 16 bits
        assert tool != "trl"
        assert job.weight_dtype == "bf16" or tool == "axolotl"
        return
    # Nothing in a file says DDP: it is what torchrun and accelerate do by themselves.
    again = resolve(file, gpu="4xh100", **({"parallel": "ddp"} if job.parallel == "ddp" else {}))
    assert said(again.job) == said(job)
    assert not again.run.uncounted


@pytest.mark.parametrize("name", JOBS)
def test_accelerates_file_says_the_layout(name, tmp_path):
    job, file = written("accelerate", name, tmp_path)
    keys = SAID & {"parallel", "ranks", "cpu_offload", "reshard_after_forward"}
    again = resolve("llama-3.2-1b", config=file, gpu="h100", block=512).job
    assert again.model_dump(include=keys) == job.model_dump(include=keys)
    assert again.autocast_dtype == job.autocast_dtype
    commands = pytest.importorskip("accelerate.commands.config.config_args")
    read = commands.load_config_from_file(str(file))  # raises for a key that it does not know
    assert read.num_processes == 4
    kinds = {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}
    assert read.distributed_type.value == kinds.get(job.parallel, "DEEPSPEED")


@pytest.mark.parametrize("name", TITAN_JOBS)
def test_torchtitans_file_is_read_back_as_the_job_that_it_was_written_for(name, tmp_path):
    job, file = written("torchtitan", name, tmp_path)
    again = resolve(file, gpu="4xh100")
    assert said(again.job) == said(job)
    assert again.config.model_type == "titan"


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_transformers_takes_the_layout(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("torch")
    job, file = written("trl", name, tmp_path)
    keys = yaml.safe_load(file.read_text())
    known = transformers.TrainingArguments.__dataclass_fields__
    arguments = {k: v for k, v in keys.items() if k in known and k != "deepspeed"}
    found = transformers.TrainingArguments(
        **{**arguments, "output_dir": str(tmp_path), "use_cpu": True, "bf16": False}
    )
    if job.parallel == "fsdp2":
        plugin = found.fsdp_plugin_args
        assert (plugin["fsdp_version"], plugin["auto_wrap_policy"]) == (2, "TRANSFORMER_BASED_WRAP")
        assert plugin["reshard_after_forward"] is job.reshard_after_forward
        assert plugin.get("cpu_offload", False) is job.cpu_offload
    else:
        assert not found.fsdp
    assert found.learning_rate == (2e-4 if job.lora_rank else 2e-5)


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.filterwarnings("ignore")
def test_trl_parses_its_file(name, tmp_path):
    trl = pytest.importorskip("trl")
    _, file = written("trl", name, tmp_path)
    line = ["--config", str(file), "--use_cpu", "--bf16", "false"]
    if "deepspeed" in file.read_text():  # its own package is asked for by TrainingArguments
        pytest.importorskip("deepspeed")
    parser = trl.TrlParser((trl.ScriptArguments, trl.SFTConfig, trl.ModelConfig))
    _, training, model = parser.parse_args_and_config(line, fail_with_unknown_args=True)
    assert training.learning_rate == pytest.approx(2e-4 if model.use_peft else 2e-5)
    assert training.per_device_train_batch_size == 2


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.filterwarnings("ignore")
def test_axolotl_takes_its_file(name, tmp_path):
    schemas = pytest.importorskip("axolotl.utils.schemas.config")
    job, file = written("axolotl", name, tmp_path)
    if file is None:
        return
    keys = yaml.safe_load(file.read_text())
    assert set(keys) <= set(schemas.AxolotlInputConfig.model_fields)
    found = schemas.AxolotlInputConfig(**keys)
    assert found.learning_rate == (2e-4 if job.lora_rank else 2e-5)
    if job.parallel == "fsdp2":
        assert found.fsdp_version == 2
        assert found.fsdp_config.reshard_after_forward is job.reshard_after_forward
        assert found.fsdp_config.offload_params is job.cpu_offload


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.filterwarnings("ignore")
def test_deepspeed_takes_what_is_written_for_it(stage, tmp_path):
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig  # noqa: PLC0415

    _, file = written("trl", f"ZeRO-{stage}", tmp_path)
    zero = yaml.safe_load(file.read_text())["deepspeed"]["zero_optimization"]
    assert DeepSpeedZeroConfig(**zero).stage == stage


@pytest.mark.parametrize("name", TITAN_JOBS)
def test_torchtitan_takes_its_file(name, tmp_path):
    manager = pytest.importorskip("torchtitan.config.manager")
    if not hasattr(manager.ConfigManager, "parse_args"):
        pytest.skip("torchtitan 0.3 reads no TOML")
    job, file = written("torchtitan", name, tmp_path)
    found = manager.ConfigManager().parse_args([f"--job.config_file={file}"])
    assert (found.model.flavor, found.training.local_batch_size) == ("8B", 2)
    assert found.optimizer.lr == 3e-4
    degrees = found.parallelism
    assert degrees.data_parallel_shard_degree * degrees.data_parallel_replicate_degree == 4
    assert found.activation_checkpoint.mode == job.checkpointing.partition("-")[0]


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (
            "llama-3.2-1b --gpu 4xh100 --block 128 --batch 1 --goal lora --as trl",
            ("# start it: trl sft --config FILE --num_processes 4", "use_peft: true"),
        ),
        (
            "llama-3.1-8b --gpu 8xh100 --block 2048 --batch 1 --as torchtitan",
            ('flavor = "8B"', "data_parallel_shard_degree = 8", "# vrambudget FILE --gpu 8xh100"),
        ),
        (
            "llama-3.2-1b --gpu 2x2xh100 --block 128 --batch 1 --goal lora --as accelerate",
            ("num_processes: 4", "--config_file FILE train.py (on each of 2 machines)"),
        ),
    ],
)
def test_a_plan_of_several_gpus_is_written(words, lines, capsys):
    assert main(["plan", *words.split()]) == 0
    out = capsys.readouterr().out
    for line in lines:
        assert line in out


def test_torchtitan_has_no_other_models(capsys):
    assert main(["plan", "gpt2", "--gpu", "4xh100", "--as", "torchtitan"]) == 2
    assert "torchtitan's Llama 3 has no flavor like gpt2" in capsys.readouterr().err
