"""A pipeline's or a model's folder at full size whose weights take no disk.

`from_pretrained` reads it as any other folder. A file of weights is that of safetensors (the length
of a JSON header in 8 bytes, the header, the tensors one after the other) with the tensors left out:
a sparse file, which reads as zeros. Tokenizers of pipelines know bytes alone; a prompt is padded.

Not made: a language model's tokenizer, image processors, safety checkers.
"""

import inspect
import json
from collections.abc import Mapping
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers.pre_tokenizers import ByteLevel

from vrambudget.auto_classes import class_for
from vrambudget.config.source import FoundModel
from vrambudget.config.unfamiliar import tasks_of
from vrambudget.errors import NotModelledError
from vrambudget.recording.diffusers import TYPES, accepted, built, libraries

_WORDS = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64"}
_FILE_BYTES = 4 << 30  # about: a file is mapped into memory whole


def write(
    own: FoundModel | dict[str, Any], folder: Path, precision: str | None = None
) -> dict[str, int]:
    """Write a model, or a card's pipeline; return the bytes of each component's weights."""
    if isinstance(own, FoundModel):
        return {"": _write(_model(own, precision), folder)}
    return _write_pipeline(own, folder, precision)


def _write_pipeline(card: dict[str, Any], folder: Path, precision: str | None) -> dict[str, int]:
    own = getattr(libraries()[0], card["pipeline"])
    dtype, cast = precision or card["precision"], precision is not None
    made = {
        name: built(keys, where=f"{card['name']}: {name}", dtype=dtype, cast=cast)
        for name, keys in card["components"].items()
    }
    kinds = inspect.signature(own.__init__).parameters
    names = sorted(name for name in kinds if name.startswith("tokenizer"))
    for name, tokens in zip(names, card["tokens"], strict=True):
        made[name] = _tokenizer(kinds[name].annotation, tokens)
    own(**accepted(libraries()[0], card, made)).save_config(folder)
    modules = {name: part for name, part in made.items() if isinstance(part, torch.nn.Module)}
    for name in made.keys() - modules.keys():
        made[name].save_pretrained(folder / name)
    return {name: _write(module, folder / name) for name, module in modules.items()}


def _model(found: FoundModel, precision: str | None) -> Any:
    word = found.values.get("model_type")
    if word not in transformers.CONFIG_MAPPING:
        raise NotModelledError(
            f"{word!r} is no model_type of transformers, and no pipeline", where=found.where
        )
    config = transformers.AutoConfig.for_model(**found.values)
    named = getattr(transformers, next(iter(config.architectures or ()), ""), None)
    task = found.job_defaults.get("task") or tasks_of(found.values)[0]
    make = named or class_for(transformers, task, config).from_config
    with torch.device("meta"):
        module = make(config).to(TYPES[precision] if precision else config.dtype or torch.bfloat16)
    module.tie_weights()
    return module


def _write(module: Any, folder: Path) -> int:
    """Write a module's configuration, and its weights, each once; return the weights' bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(module, transformers.PreTrainedModel):
        stem = "model"
        module.config.architectures = [type(module).__name__]
        module.config.dtype = module.dtype
        module.config.save_pretrained(folder)
    else:
        stem = "diffusion_pytorch_model"
        module.save_config(folder)
    named = reversed(module.state_dict(keep_vars=True).items())
    weights = [*{id(x): (name, x) for name, x in named}.values()][::-1]  # by its first name
    ends = [*accumulate(x.nbytes for _, x in weights)]
    files = groupby(zip(ends, weights, strict=True), lambda one: (one[0] - 1) // _FILE_BYTES)
    places: dict[str, str] = {}
    for number, (_, part) in enumerate(files):
        name = f"{stem}-{number}.safetensors"
        tensors = dict(weight for _, weight in part)
        _write_file(folder / name, tensors)
        places |= dict.fromkeys(tensors, name)
    index = json.dumps({"metadata": {}, "weight_map": places})
    (folder / f"{stem}.safetensors.index.json").write_text(index, encoding="utf-8")
    return int(ends[-1])


def _write_file(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write a file of safetensors without its tensors, as large as with them."""
    head: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, x in tensors.items():
        head[name] = {"dtype": _WORDS[x.dtype], "shape": [*x.shape]}
        head[name]["data_offsets"] = [at, at := at + x.nbytes]
    text = json.dumps(head).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(file.tell() + at)


def _tokenizer(kind: Any, tokens: int) -> Any:
    """Return a tokenizer of this class, or of T5's for any; it pads to so many tokens."""
    letters = sorted(ByteLevel.alphabet())
    if not {"vocab", "merges"} <= inspect.signature(kind.__init__).parameters.keys():
        words = ("<pad>", "</s>", "<unk>", "\u2581", *letters)
        scored = [(word, 0.0) for word in words]
        return transformers.T5Tokenizer(vocab=scored, extra_ids=0, model_max_length=tokens)
    ends = (f"{letter}</w>" for letter in letters)  # CLIP's words end so
    special = ("<unk>", "<s>", "</s>", "<|startoftext|>", "<|endoftext|>")
    vocab = {word: at for at, word in enumerate((*special, *letters, *ends))}
    return kind(vocab=vocab, merges=[], model_max_length=tokens)
