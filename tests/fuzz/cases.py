"""Hostile input, drawn from a `random.Random`: half of it nearly right, half of it anything."""

import json
import math
from random import Random
from typing import Any, get_args

from test_laws import TINY

from vrambudget.config.fields.training import LoopName
from vrambudget.config.job import Job
from vrambudget.models import config_class

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB. GPU {} has a total"
    " capacity of {} GiB of which {} GiB is free. Including non-PyTorch memory, this process has"
    " {} GiB memory in use. Of the allocated memory {} GiB is allocated by PyTorch, and {} MiB is"
    " reserved by PyTorch but unallocated."
)
_WORDS = ("", "gpt2", "12GB", "\x1b[2J", "é", "\ud800", "=1+1", "a" * 300, "0", "-1", "nan", "\0")
_NUMBERS = (0, 1, -1, 2, 3, 7, 64, 1000, 2**31, 2**63, 10**400, 0.5, 1e308, math.nan, math.inf)
_PIECES = (" ", "\n", "\r", "1", "9" * 400, "|", "%|", "\x1b[", "GiB", "rank=1", "(", "[", "File ")
_CHOICES: dict[str, tuple[Any, ...]] = {
    "mode": ("train", "train", "eval", "generate", "forward"),
    "precision": ("fp32", "bf16", "fp16", "amp-bf16", "amp-fp16"),
    "optimizer": ("adamw", "sgd", "sgd-momentum", "adafactor", "muon", "lion", "none"),
    "loop": get_args(LoopName),
    "attention": ("sdpa", "eager"),
    "checkpointing": ("none", "full"),
    "grad_accum": (1, 2, 5),
    "steps": (1, 2, 3, 6),
    "clip": (None, 1.0),
    "dropout": (None, 0.0, 0.1),
    "keep_outputs": (True, False),
    "forward_returns": ("outputs", "loss"),
    "zero_grad": ("none", "zeros", "late"),
    "weights": (None, "fp32", "bf16"),
    "model_mode": ("train", "eval"),
    "eval_batches": (None, None, 2),
    "eval_batch": (None, 3),
    "eval_gather": (False, True),
    "lora_rank": (None, 4),
    "expandable_segments": (True, False),
    "attention_mask": ("none", "padding"),
    "experts": ("grouped_mm", "eager"),
    "torch": ("2.6", "2.8", "2.11", "2.13", "2.99"),
    "transformers": ("4.57", "5.17"),
    "image_size": (8, 16, 32),
    "target_len": (None, 3),
    "label_smoothing": (0.0, 0.1),
    "quant": (None, "nf4", "int8"),
    "parallel": (
        None,
        "ddp",
        "zero1",
        "fsdp2",
        "fsdp1",
        "deepspeed2",
        "deepspeed3",
        "tp=2",
        "pp=2",
    ),
}


def anything(rng: Random, depth: int = 2) -> Any:
    """Return a value of any kind that JSON has."""
    kinds = ["word", "number", "constant", "bytes"] + ["list", "dict"] * (depth > 0)
    kind = rng.choice(kinds)
    if kind == "list":
        return [anything(rng, depth - 1) for _ in range(rng.randrange(3))]
    if kind == "dict":
        return {rng.choice(_WORDS): anything(rng, depth - 1) for _ in range(rng.randrange(3))}
    if kind == "number":
        return rng.choice(_NUMBERS)
    return rng.choice(_WORDS) if kind == "word" else rng.choice((None, True, False))


def model(rng: Random) -> dict[str, Any]:
    """Return a configuration of any family, tiny, with some of its values changed."""
    name = rng.choice(sorted(TINY))
    values = {"model_type": name, **TINY[name]}
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        key = rng.choice(sorted(config_class(name).known_keys()))
        values[key] = rng.choice((rng.randrange(1, 70), anything(rng, 1)))
    if rng.random() < 0.05:
        values[rng.choice(_WORDS)] = anything(rng)
    return values


def fields(rng: Random) -> dict[str, Any]:
    """Return a job's fields, small ones, some of them nonsense."""
    names = rng.sample(sorted(_CHOICES), rng.randrange(5))
    found = {name: rng.choice(_CHOICES[name]) for name in names}
    found |= {"ranks": 2} if found.get("parallel") else {}
    found |= {"batch": rng.choice((1, 2, 3)), "block": rng.choice((1, 2, 7, 16))}
    if rng.random() < 0.2:
        found[rng.choice([*Job.model_fields, "bacth"])] = anything(rng, 1)
    return found


def card(rng: Random) -> Any:
    """Return a card, a size, or nonsense."""
    cards = (None, "t4", "12GB", "h100", "600MiB", "RTX 4090", "1B", "0GB", "9" * 30 + "GB")
    return rng.choice(cards) if rng.random() < 0.9 else anything(rng, 1)


def log(rng: Random) -> str:
    """Return a training log around an out-of-memory message, or what looks like one."""
    numbers = [rng.choice(("1.50", "0.00", "11.69", "9" * 40, "17179869184.00")) for _ in range(7)]
    message = OOM.format(*numbers)
    if rng.random() < 0.3:
        at = rng.randrange(len(message))
        message = message[:at] + rng.choice(_PIECES) + message[at + rng.randrange(9) :]
    noise = ["".join(rng.choices(_PIECES, k=rng.randrange(12))) for _ in range(rng.randrange(4))]
    frame = 'Traceback (most recent call last):\n  File "train.py", line 7, in train\n    loss()'
    lines = [*noise, frame, message] if rng.random() < 0.7 else [*noise, message, *noise]
    return "\n".join(lines)


def record(rng: Random) -> dict[str, Any]:
    """Return a record of a job, measured to be anything."""
    measured: Any = {
        key: rng.choice((10**6, 0, -1, "100", None, math.nan, 2**70, 1.5))
        for key in rng.sample(("peak_allocated", "peak_reserved", "weights", "after_forward_0"), 2)
    }
    found = {"id": rng.choice(_WORDS), "model": model(rng), **fields(rng), "card": card(rng)}
    found |= {"source": rng.choice(("real", "virtual")), "measured": measured}
    if rng.random() < 0.3:
        found[rng.choice(("parallel", "kind", "versions", "id", "model", "source"))] = anything(rng)
    return found


def text_of(rng: Random, value: Any) -> bytes:
    """Return a value as JSON, at times cut off, with a part twice, or with other bytes in it."""
    data = json.dumps(value).encode()
    how = rng.randrange(6)
    at = rng.randrange(len(data) + 1)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in range(3)) + data[at:]
    if how == 2:
        return data[:at] + data[at // 2 :]
    return data


def words(rng: Random) -> list[str]:
    """Return arguments of the command line."""
    found = [rng.choice(("gpt2", "gtp2", "", "./x.json", "--", "-", "é", "explain", "validate"))]
    for name, value in fields(rng).items():
        found += [f"--{name.replace('_', '-')}", str(value)]
    if rng.random() < 0.5:
        found += ["--gpu", str(card(rng))]
    if rng.random() < 0.2:
        found += [rng.choice(("--format", "-o", "--advise", "--by", "-h")), rng.choice(_WORDS)]
    return [word.replace("\0", "") for word in found]
