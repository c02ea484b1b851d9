"""Files and commands of trainers of pipelines mean here what they mean there."""

import json
import tomllib

import pytest

from vrambudget.cli import main
from vrambudget.cli.parser import parse
from vrambudget.cli.picture import job_of
from vrambudget.config.cards import picture_names
from vrambudget.config.foreign.meanings import Ignored, OneOf, Same, SizesInText, Switch
from vrambudget.config.foreign.tables import TABLES
from vrambudget.config.foreign.trainers import trainers
from vrambudget.errors import VramBudgetError
from vrambudget.pictures.job import PictureJob
from vrambudget.pictures.trainers import in_options

KOHYA = """
[models]
pretrained_model_name_or_path = "/models/flux1-dev.safetensors"
[adapters]
network_module = "networks.lora_flux"
network_dim = 8
network_train_unet_only = true
[training]
optimizer_type = "AdamW8bit"
mixed_precision = "bf16"
fp8_base = true
gradient_checkpointing = true
cache_latents = true
cache_text_encoder_outputs = true
dataset_config = "pictures.toml"
sample_prompts = "prompts.txt"
my_own_key = 1
"""
PICTURES = """
[general]
enable_bucket = true
[[datasets]]
resolution = 512
batch_size = 2
[[datasets]]
resolution = [768, 1024]
batch_size = 1
"""
AI_TOOLKIT = """
job: extension
config:
  name: mine
  process:
    - type: sd_trainer
      network: {type: lora, linear: 32, linear_alpha: 32}
      datasets:
        - {folder_path: /a, resolution: [512, 1024], cache_latents_to_disk: true}
        - {folder_path: /b, resolution: [768], cache_latents_to_disk: true}
      train: {batch_size: 2, optimizer: adamw8bit, dtype: bf16, cache_text_embeddings: true}
      model: {name_or_path: black-forest-labs/FLUX.1-schnell, is_flux: true, quantize: true}
"""
ONE_TRAINER = {
    "__version": 10,
    "model_type": "FLUX_DEV_1",
    "training_method": "LORA",
    "batch_size": 4,
    "resolution": "768",
    "train_dtype": "BFLOAT_16",
    "transformer": {"train": True, "weight_dtype": "NFLOAT_4"},
    "unet": {"weight_dtype": "FLOAT_32"},
    "text_encoder": {"train": False},
    "text_encoder_2": {"train": False, "weight_dtype": "NFLOAT_4"},
    "sample_after": 0,
}
SIMPLE_TUNER = {
    "--model_family": "flux",
    "--model_type": "lora",
    "--lora_rank": 64,
    "--train_batch_size": "3",
    "--gradient_checkpointing": "false",
    "--base_model_precision": "nf4-bnb",
    "--optimizer": "bnb-adamw8bit",
    "--resolution": 1.0,
}
MUSUBI = """
task = "t2v-14B"
dit = "/models/wan2.1_t2v_14B_bf16.safetensors"
mixed_precision = "bf16"
network_module = "networks.lora_wan"
blocks_to_swap = 20
dataset_config = "videos.toml"
"""
VIDEOS = """
[general]
resolution = [832, 480]
[[datasets]]
video_directory = "/v"
target_frames = [1, 25, 45]
"""


@pytest.fixture
def files(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.write_text(text if isinstance(text, str) else json.dumps(text))
        return str(path)

    write("pictures.toml", PICTURES)
    write("videos.toml", VIDEOS)
    return write


def asked(words):
    """Return a command's job, and what is not modelled of it."""
    args = parse(words)
    return job_of(args), args.uncounted


@pytest.mark.parametrize(
    ("name", "text", "job"),
    [
        (
            "kohya.toml",
            KOHYA,
            PictureJob(
                *("flux-dev", 1024, 768),
                batch=2,
                train="lora",
                rank=8,
                targets="blocks",
                checkpointing=True,
                optimizer="adamw-8bit",
                base="fp8",
            ),
        ),
        (
            "ai.yaml",
            AI_TOOLKIT,
            PictureJob(
                *("flux-schnell", 1024, 1024),
                batch=2,
                train="lora",
                rank=32,
                targets="blocks",
                checkpointing=True,
                optimizer="adamw-8bit",
                base="fp8",
            ),
        ),
        (
            "one.json",
            ONE_TRAINER,
            PictureJob(
                *("flux-dev", 768, 768),
                batch=4,
                train="lora",
                targets="blocks",
                checkpointing=True,
                base="nf4",
            ),
        ),
        (
            "simple.json",
            SIMPLE_TUNER,
            PictureJob(
                *("flux-dev", 1024, 1024),
                batch=3,
                train="lora",
                rank=64,
                targets="to_k,to_q,to_v,add_k_proj,add_q_proj,add_v_proj,to_out.0,to_add_out",
                optimizer="adamw-8bit",
                base="nf4",
            ),
        ),
        (
            "musubi.toml",
            MUSUBI,
            PictureJob(
                *("wan2.1-14b", 480, 832, 45), train="lora", rank=4, targets="blocks", swap=20
            ),
        ),
    ],
    ids=["kohya", "ai-toolkit", "OneTrainer", "SimpleTuner", "musubi-tuner"],
)
def test_a_trainers_file_is_its_job(name, text, job, files):
    if name.endswith(".yaml"):
        pytest.importorskip("yaml")
    assert asked([files(name, text)])[0] == job


def test_a_file_that_cannot_be_read_is_said_where_a_pipeline_stands_before_it(files):
    with pytest.raises(VramBudgetError, match="this is not TOML"):
        asked(["flux-dev", "--config", files("kohya.toml", "[")])


def test_what_is_not_modelled_and_what_is_not_known_is_listed(files, capsys):
    assert main([files("kohya.toml", KOHYA), "--targets", "to_k", "--gpu", "48GB"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "not modelled: pictures that are generated between epochs" in out
    assert "FITS: at least" in out
    assert "not known here, ignored: my_own_key" in out


def test_own_words_go_before_a_files_own(files):
    job, _ = asked([files("kohya.toml", KOHYA), "--rank", "64", "--batch", "1"])
    assert (job.rank, job.batch) == (64, 1)


def test_a_script_is_asked_for_as_it_is_launched():
    words = "accelerate launch --mixed_precision bf16 train_dreambooth_lora_flux.py --rank=16"
    words += " --pretrained_model_name_or_path=black-forest-labs/FLUX.1-dev --optimizer prodigy"
    words += " --resolution=1024 --train_batch_size 1 --gradient_accumulation_steps=4"
    words += " --instance_prompt a_dog --gradient_checkpointing --cache_latents --gpu 24GB"
    job, uncounted = asked(words.split())
    assert job == PictureJob(
        *("flux-dev", 1024, 1024),
        train="lora",
        adapters="base",
        checkpointing=True,
        grad_accum=4,
        text="kept",
    )
    assert uncounted == ["the optimizer prodigy"]


def test_a_scripts_own_defaults_hold_where_it_is_told_nothing():
    job, uncounted = asked(["train_text_to_image_lora_sdxl.py"])
    assert (job.name, job.batch, job.rank, job.precision) == ("sdxl", 16, 4, "fp32")
    assert (job.latents, uncounted) == ("encoded", [])


@pytest.mark.parametrize(
    ("words", "requested"),
    [
        pytest.param(
            "train_dreambooth.py --gradient_checkpointing --set_grads_to_none",
            17_628_056_586,
            id="the optimizer's step is the peak",
        ),
        pytest.param(
            "train_dreambooth_lora.py --mixed_precision bf16 --train_batch_size 2 --rank 16",
            4_411_579_150,
            id="the forward pass is",
        ),
        pytest.param(
            "train_text_to_image_lora.py --rank 4", 3_912_129_626, id="the cast before saving is"
        ),
    ],
)
def test_a_script_takes_what_its_rehearsal_takes(words, requested, capsys):
    # Rehearsed as launched on a virtual A100-80GB: diffusers 0.42.1, torch 2.11, SD 1.5 at 512.
    script, *own = words.split()
    usual = ["--resolution", "512", "--mixed_precision", "fp16", "--train_batch_size", "1"]
    assert main([script, *usual, *own, "--gpu", "a100-80gb", "--format", "json"]) == 0
    peak = json.loads(capsys.readouterr().out)["peak"]
    assert peak["requested_bytes"] == pytest.approx(requested, rel=5e-4)


def test_an_unnamed_checkpoint_is_taken_for_what_its_script_trains(capsys):
    words = ["sdxl_train_network.py", "--pretrained_model_name_or_path", "mine.safetensors"]
    words += ["--network_train_unet_only", "--cache_text_encoder_outputs", "--cache_latents"]
    assert main([*words, "--mixed_precision=bf16", "--gradient_checkpointing"]) == 0
    assert "mine.safetensors: taken as Stable Diffusion XL" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train_dreambooth_lora_flux.py", "--rnk", "3"], "--rank"),
        (
            ["accelerate", "launch", "--use_deepspeed", "train_dreambooth_lora_flux.py"],
            "counterpart",
        ),
        (["train_dreambooth_lora_flux.py", "--resolution", "big"], "should be pixels"),
    ],
)
def test_what_a_command_cannot_say_is_an_error_that_names_it(words, message, capsys):
    assert main(words) == 2
    assert message in capsys.readouterr().err


def test_a_file_that_names_no_pipeline_says_how_to_name_one(files, capsys):
    silent = KOHYA.replace("networks.lora_flux", "networks.lora").replace("flux1-dev", "mine")
    file = files("silent.toml", silent)
    assert main([file]) == 2
    assert "vrambudget NAME --config silent.toml" in capsys.readouterr().err
    assert asked(["sdxl", "--config", file])[0].name == "sdxl"
    wrong = files("wan.json", {**SIMPLE_TUNER, "--model_family": "longcat"})
    assert main([wrong]) == 2
    assert "a pipeline longcat" in capsys.readouterr().err


def test_a_plan_takes_the_sizes_of_a_file(files):
    words = in_options([files("kohya.toml", KOHYA)], {"--resolution"})
    assert words == ["flux-dev", "--resolution=1024x768"]


def test_files_of_others_are_left_alone(files):
    for name, text in (("a.yaml", "base_model: gpt2"), ("a.json", {"model_type": "gpt2"})):
        words = [files(name, text), "--gpu", "12GB"]
        assert in_options(words) == words


@pytest.mark.parametrize("trainer", trainers(), ids=lambda trainer: trainer.known.name)
def test_a_table_says_what_there_is(trainer):
    """Its fields are a job's, its pipelines known, and no key has two meanings."""
    of_job = {*PictureJob.__dataclass_fields__, "resolution", "model"}
    names = [name for names in trainer.own.get("targets", {}) for name in names.split()]
    fields = set()
    for meaning in trainer.known.table.values():
        if isinstance(meaning, Same | SizesInText):
            fields |= {meaning.field}
        for of in [meaning.on] if isinstance(meaning, Switch) else []:
            fields |= of.keys()
        for of in meaning.of.values() if isinstance(meaning, OneOf) else ():
            fields |= of.keys()
            names += [of["model"]] if "model" in of else []
    for of in trainer.own.get("scripts", {}).values():
        fields |= of.keys()
        names.append(of["model"])
    assert fields <= of_job
    assert {*names} <= {*picture_names()}
    assert trainer.own["silent"].keys() <= trainer.known.table.keys()
    assert not any(isinstance(trainer.known.table[key], Ignored) for key in trainer.own["silent"])


@pytest.mark.parametrize("path", sorted(TABLES.rglob("*.toml")), ids=lambda path: path.stem)
def test_no_key_stands_twice_in_a_table(path):
    own = tomllib.loads(path.read_text())
    words = [word for group in ("ignored", "flags", "ranks") for word in own.get(group, "").split()]
    groups = ("as", "same", "width_height", "largest", "switches", "choices", "uncounted", "saves")
    words += [key for group in groups for key in own.get(group, {})]
    assert sorted(words) == sorted({*words})


@pytest.mark.parametrize(
    "odd", ['dataset_config = "\\u0000x"', "resolution = []", 'resolution = "1e999"', "sdpa = [[]]"]
)
def test_odd_values_of_a_file_end_in_no_traceback(odd, files, capsys):
    text = KOHYA.replace('dataset_config = "pictures.toml"', odd)
    assert main([files("odd.toml", text), "--gpu", "24GB"]) in {0, 1, 2}
    assert "Traceback" not in capsys.readouterr().err
