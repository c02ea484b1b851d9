"""`vrambudget ghost`: folders at full size that take no disk, read by the libraries as they are."""

import json

import pytest

from vrambudget.cli import DONE, FAILED, main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

LLAMA = {
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
WEIGHTS = 2 * (32_000 * 1024 + 4 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 1024)  # bytes


@pytest.mark.parametrize("shard_bytes", [2**40, 30 * 2**20], ids=["one file", "several"])
def test_a_model_is_read_whole_from_files_that_take_no_disk(tmp_path, monkeypatch, shard_bytes):
    monkeypatch.setattr("vrambudget.recording.ghost._FILE_BYTES", shard_bytes)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    folder = tmp_path / "ghost"
    assert main(["ghost", str(tmp_path / "config.json"), str(folder)]) == DONE
    files = [path.stat() for path in folder.glob("*.safetensors")]
    assert (len(files) > 1) == (shard_bytes < WEIGHTS)
    assert sum(file.st_size for file in files) > WEIGHTS
    assert sum(file.st_blocks * 512 for file in files) < WEIGHTS / 1000
    model, read = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True
    )
    assert not any(read.values())
    assert sum(p.nbytes for p in model.parameters()) == WEIGHTS


def test_a_pipeline_is_read_by_diffusers(tmp_path):
    diffusers = pytest.importorskip("diffusers")
    assert main(["ghost", "sd-1.5", str(tmp_path), "--precision", "fp32"]) == DONE
    pipe = diffusers.StableDiffusionPipeline.from_pretrained(tmp_path)
    assert sum(p.numel() for p in pipe.unet.parameters()) == 859_520_964
    assert pipe.unet.dtype is torch.float32
    assert pipe.tokenizer(["a prompt"], padding="max_length")["input_ids"][0][-1]


def test_a_folder_that_holds_something_is_left_alone(tmp_path, capsys):
    (tmp_path / "kept").touch()
    assert main(["ghost", "gpt2", str(tmp_path)]) == FAILED
    assert "holds something already" in capsys.readouterr().err
