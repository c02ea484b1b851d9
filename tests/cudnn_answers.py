"""Ask cuDNN for the answers that the package keeps: `PYTHONPATH=. python tests/cudnn_answers.py`.

With `pictures` as its argument it asks for pipelines and classifiers alone, and keeps the rest;
with names (`flux2 sdxl`), for those that begin with them.

It needs a CUDA build of torch with its cuDNN (VRAMBUDGET_PYTHON), and torch and transformers for
followed models.
"""

import json
import sys
from itertools import product
from pathlib import Path

from vrambudget.cli import main as main_of
from vrambudget.config.record import job_of_record, read_records
from vrambudget.cudnn import answers, apart
from vrambudget.cudnn.library import installed
from vrambudget.cudnn.question import Convolution, Direction
from vrambudget.scenario import resolve
from vrambudget.simulate import simulate

RECORDS = Path(__file__).parent / "records"
FILES = ("encoders.jsonl", "drawn.jsonl", "traced/model_types.jsonl", "traced/classes.jsonl")

PATCHES = [(768, 16, 224), (768, 32, 224), (768, 16, 384), (1024, 16, 224)]
"""Hidden size, patch and image of ViT: base, base of large patches, base of large images, large."""
BATCHES = (8, 16, 32, 64, 128)
CARDS = [((7, 5), 40), ((8, 0), 108), ((8, 6), 28), ((8, 9), 128), ((9, 0), 132), ((12, 0), 170)]
DTYPES = ("float32", "float16", "bfloat16")


def ask_of_patches() -> None:
    for (hidden, patch, image), batch, card, dtype in product(PATCHES, BATCHES, CARDS, DTYPES):
        if dtype == "bfloat16" and card[0] < (8, 0):
            continue
        side = image // patch
        shapes = (batch, 3, image, image), (hidden, 3, patch, patch), (batch, hidden, side, side)
        geometry = (patch, patch), (0, 0), (1, 1)
        for direction in (Direction.FORWARD, Direction.WEIGHT):
            what = Convolution(direction, dtype, *shapes, *geometry, channels_last=False)
            answers.workspace_bytes(what, *card)


def ask_of_records() -> None:
    for file in FILES:
        for record in read_records(RECORDS / file):
            job = job_of_record(record)
            fields = {"task": job.task, "batch": job.batch, "block": job.block}
            scenario = resolve(record["model"], gpu=record["card"], torch="2.11", **fields)
            simulate(scenario.config, job.resolve(scenario.config), scenario.platform)


GPUS = ("a100-80gb", "RTX 3060", "RTX 4090", "h100")
PICTURES = (
    *(f"{name} --only {phase} --resolution {r}" for name in ("flux-dev", "flux2-klein-4b")
      for phase in ("decode", "encode-images") for r in (512, 768, 1024)),
    "flux-dev --only decode --resolution 832x1216",
    "flux2-klein-4b --only decode --resolution 832x1216",
    "flux2-klein-4b --only decode --batch 2 --resolution 768x1024",
    *(f"sdxl --precision fp16 --only {phase} --resolution {r} --batch {b}"
      for phase in ("decode", "denoise") for r in (512, 768, 1024) for b in (1, 2, 4)),
    "sdxl", "sdxl --batch 4", "sdxl --train lora", "sdxl --train lora --batch 2 --checkpointing",
    "sdxl --train lora --batch 4 --checkpointing",
    "sdxl --train lora --precision bf16 --checkpointing",
    "sdxl --train lora --precision bf16 --checkpointing --latents encoded",
    "sd-1.5 --batch 3 --resolution 512x768",
    *(f"qwen-image --only {phase} --precision fp16 --resolution {r}"
      for phase in ("decode", "encode-images")
      for r in (512, 768, "832x1248", 1024, "1088x1920", 1280, "1536x1024", 1536, 1792, 2048)),
    *(f"qwen-image --only decode --resolution {r}" for r in (512, 768, 1024, "928x1664")),
    *(f"wan2.1-1.3b --only decode --resolution {r}" for r in ("480x832", "832x480", "720x1280")),
    "wan2.1-1.3b --train lora --checkpointing --latents encoded", "cogvideox-5b --only decode",
    "ltx-video --only decode",
    *(f"resnet50 --batch {b} --precision {p}{order}" for b in (32, 64, 128, 256)
      for p in ("amp-fp16", "fp32") for order in ("", " --channels-last")),
)  # fmt: skip


def ask_of_pictures(names: tuple[str, ...]) -> None:
    asked = [words for words in PICTURES if words.startswith(names or "")]
    for words, gpu in product(asked, GPUS):
        print(words, gpu, flush=True)  # noqa: T201
        main_of([*words.split(), "--gpu", gpu, "-o", "/dev/null", "--format", "json"])


def main() -> None:
    cudnn = installed()
    assert cudnn is not None
    only_pictures = bool(sys.argv[1:])
    asked: dict[str, int] = dict(answers._kept()["answers"]) if only_pictures else {}  # noqa: SLF001
    answers._kept = lambda: {"version": "", "answers": {}}  # noqa: SLF001 - all is asked anew
    ask = apart.ask_apart

    def noted(what, compute_capability, multiprocessors):
        found, drives = ask(what, compute_capability, multiprocessors)
        assert drives
        if found is not None:
            asked[answers.key_of(what, compute_capability)] = found
        return found, drives

    apart.ask_apart = noted
    ask_of_pictures(tuple(name for name in sys.argv[1:] if name != "pictures"))
    if not only_pictures:
        ask_of_patches()
        ask_of_records()
    lines = ",\n".join(f"{json.dumps(key)}: {asked[key]}" for key in sorted(asked))
    text = f'{{"version": "{cudnn.version}", "answers": {{\n{lines}\n}}}}\n'
    Path(answers.__file__).with_name("answers.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
