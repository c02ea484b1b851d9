"""A pipeline of diffusers whose components have their real sizes, few layers and no weights.

A prompt is as long as its tokenizer pads it, whatever it says, so no tokenizer's files are needed.
"""

import re
from typing import Any

import torch

from vrambudget.recording.diffusers import accepted, built, libraries


class Tokenizer:
    """Makes as many tokens as a prompt is padded to."""

    added_tokens_encoder: dict[str, int] = {}  # noqa: RUF012 - never written

    def __init__(self, tokens: int) -> None:
        self.model_max_length = tokens

    def tokenize(self, text: str) -> list[str]:
        """Return the text as one token: it has no embedding of its own."""
        return [text]

    def apply_chat_template(self, messages: list[Any], *, tokenize: bool, **options: Any) -> Any:
        """Return the text of each conversation, or its tokens."""
        rows = ["a prompt" for _ in messages] if isinstance(messages[0], list) else "a prompt"
        return self(rows, **options) if tokenize else rows

    def __call__(self, text: str | list[str], *_: Any, **options: Any) -> Any:
        """Return token ids and their mask."""
        _, transformers = libraries()
        rows = 1 if isinstance(text, str) else len(text)
        padded = options.get("padding") == "max_length"
        tokens = options.get("max_length") or self.model_max_length
        shape = (rows, tokens if padded else min(tokens, self.model_max_length))
        ids = torch.ones(shape, dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": ids.clone()})


DEPTHS = ("num_layers", "num_single_layers", "num_hidden_layers", "num_refiner_layers", "n_layers")
"""Keys that say how often a layer recurs: recorded at a few, played at any."""


def shortened(keys: dict[str, Any]) -> tuple[dict[str, Any], dict[str, int]]:
    """Return a component's keys with few layers, and the depths that it has then.

    All its layers stay where some are named, which are unlike the others (SD 3.5 medium's).
    """
    if any(key.endswith("_layers") and isinstance(n, list) for key, n in keys.items()):
        return keys, {}
    found = {
        key: 5 + 2 * place
        for place, key in enumerate(DEPTHS)
        if type(keys.get(key)) is int and keys[key] > 5 + 2 * place
    }
    return {**keys, **found}, found


def _short_for_schedule(keys: dict[str, Any]) -> dict[str, Any]:
    """Return keys with few layers, but of models whose states of all layers a pipeline holds."""
    return keys if re.search("CLIP|Llama|Mistral|Qwen", keys["class"]) else shortened(keys)[0]


def pipeline(card: dict[str, Any], precision: str, length: int | None = None) -> Any:
    """Return the pipeline of a card, its components with few layers."""
    diffusers, _ = libraries()
    made = {
        name: built(_short_for_schedule(keys), where=f"{card['name']}: {name}", dtype=precision)
        for name, keys in card["components"].items()
    }
    names = ("tokenizer", "tokenizer_2", "tokenizer_3")
    empty = dict.fromkeys(names[: len(card["tokens"])])
    pipe = getattr(diffusers, card["pipeline"])(**accepted(diffusers, card, {**made, **empty}))
    for name, tokens in zip(names, card["tokens"], strict=False):
        setattr(pipe, name, Tokenizer(tokens if length is None else length))
    pipe.set_progress_bar_config(disable=True)
    return pipe


class on_the_gpu:  # noqa: N801 - a context
    """The device of a pipeline whose components are on none."""

    def __init__(self, kind: type) -> None:
        self._kind = kind

    def __enter__(self) -> None:
        self._own = self._kind.__dict__.get("_execution_device")
        self._kind._execution_device = property(lambda _: torch.device("cuda"))  # type: ignore[attr-defined] # noqa: SLF001

    def __exit__(self, *_: object) -> None:
        if self._own is None:
            del self._kind._execution_device  # type: ignore[attr-defined] # noqa: SLF001
        else:
            self._kind._execution_device = self._own  # type: ignore[attr-defined] # noqa: SLF001
