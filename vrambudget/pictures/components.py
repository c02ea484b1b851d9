"""A pipeline of diffusers whose components have their real sizes and no weights.

Each is made by its own class from its card's configuration, on the meta device. A prompt is as long
as its tokenizer pads it, whatever it says, so no tokenizer's files are needed.
"""

from typing import Any

import torch

from vrambudget.errors import NotModelledError
from vrambudget.pictures.job import PictureJob

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
_KEPT_IN_FLOAT32 = "_keep_in_fp32_modules"


def libraries() -> tuple[Any, Any]:
    """Return diffusers and transformers. Raises NotModelledError where they are missing."""
    try:
        import diffusers  # noqa: PLC0415 - an extra
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise NotModelledError(
            f"pipelines are traced by diffusers' own code, which is not installed ({error})",
            hint="pip install torch diffusers transformers peft",
        ) from error
    diffusers.utils.logging.set_verbosity_error()
    transformers.logging.set_verbosity_error()
    return diffusers, transformers


def component(job: PictureJob, name: str) -> Any:
    """Return one component by its class, on the meta device."""
    return built(job.card["components"][name], where=f"{job.name}: {name}", dtype=job.precision)


def built(keys: dict[str, Any], *, where: str, dtype: str) -> Any:
    """Return what a component's keys make: `class` and its configuration.

    Raises NotModelledError for a class that the libraries have not.
    """
    diffusers, transformers = libraries()
    config: dict[str, Any] = {
        key: None if value == "null" else value for key, value in keys.items()
    }
    library, _, word = str(config.pop("class", "")).partition(".")
    dtype = str(config.pop("precision", dtype))
    found = getattr({"diffusers": diffusers, "transformers": transformers}.get(library), word, None)
    if found is None:
        raise NotModelledError(
            f"no class {word or 'at all'} of {library or 'a library'} makes this component",
            where=where,
            hint='a component names its class: "_class_name" in its config.json',
        )
    if not issubclass(found, torch.nn.Module):
        return found.from_config(config)
    with torch.device("meta"):
        if library == "transformers":
            module = found(found.config_class(**config))
        else:
            module = found.from_config(config)
    return _cast(module.eval(), TYPES[dtype])


def _cast(module: Any, dtype: torch.dtype) -> Any:
    """Cast weights as from_pretrained(torch_dtype=) does: some modules stay in float32."""
    kept = getattr(module, _KEPT_IN_FLOAT32, None) or () if dtype is torch.float16 else ()
    kept = kept or (getattr(module, _KEPT_IN_FLOAT32, None) or () if _is_diffusers(module) else ())
    for name, x in (*module.named_parameters(), *module.named_buffers()):
        if x.is_floating_point() and not any(part in name.split(".") for part in kept):
            x.data = x.data.to(dtype)
    return module


def _is_diffusers(module: Any) -> bool:
    return type(module).__module__.startswith("diffusers.")


class Tokenizer:
    """Makes as many tokens as a prompt is padded to."""

    added_tokens_encoder: dict[str, int] = {}  # noqa: RUF012 - never written

    def __init__(self, tokens: int) -> None:
        self.model_max_length = tokens

    def tokenize(self, text: str) -> list[str]:
        """Return the text as one token: it has no embedding of its own."""
        return [text]

    def __call__(self, text: str | list[str], *_: Any, **options: Any) -> Any:
        """Return token ids and their mask."""
        _, transformers = libraries()
        rows = 1 if isinstance(text, str) else len(text)
        padded = options.get("padding") == "max_length" or options.get("padding") is True
        tokens = options.get("max_length") or self.model_max_length
        shape = (rows, tokens if padded else min(tokens, self.model_max_length))
        ids = torch.ones(shape, dtype=torch.long)
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": ids.clone()})

    def batch_decode(self, ids: torch.Tensor, *_: Any, **__: Any) -> list[str]:
        """Return empty texts."""
        return [""] * len(ids)


def pipeline(job: PictureJob) -> Any:
    """Return the pipeline of a job."""
    diffusers, _ = libraries()
    own = job.card
    made = {name: component(job, name) for name in own["components"]}
    names = ("tokenizer", "tokenizer_2", "tokenizer_3")
    empty = dict.fromkeys(names[: len(own["tokens"])])
    pipe = getattr(diffusers, own["pipeline"])(**_taken(diffusers, own, {**made, **empty}))
    for name, tokens in zip(names, own["tokens"], strict=False):
        setattr(pipe, name, Tokenizer(tokens))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _taken(diffusers: Any, own: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments for the pipeline's class, with those that have no default as None."""
    import inspect  # noqa: PLC0415

    asked = inspect.signature(getattr(diffusers, own["pipeline"]).__init__).parameters
    needed = {
        name: None
        for name, one in asked.items()
        if one.default is inspect.Parameter.empty and name != "self"
    }
    return {**needed, **given, **own["options"]}
