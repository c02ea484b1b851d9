"""The options of a job, made from the fields of `Job`: same names, same choices, same defaults.

An option that is not given is absent from the result, so that a model card's default can fill it.
"""

import argparse
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from vrambudget.config.fields.batches import lengths_of
from vrambudget.config.fields.generation import modelled_backend
from vrambudget.config.fields.training import modelled_loop
from vrambudget.config.job import GROUPS, Job
from vrambudget.config.options import EITHER, option_of
from vrambudget.config.settings import Settings
from vrambudget.config.source import ModelWithFiles
from vrambudget.declared import Declared

_NO_LIMIT = 2**62
_REFUSING = {"loop": modelled_loop, "cache_backend": modelled_backend}
SWITCHES = {
    "sample": "sample tokens: do_sample=True",
    "keep_outputs": "the loop drops its outputs before the next forward pass",
    "cudnn_attention": "PyTorch does not ask cuDNN's attention kernel first on compute capability 9"
    " and 10, as with TORCH_CUDNN_SDPA_DEPRIORITIZED=1",
    "eval_first": "evaluate before the first step, too",
    "eval_gather": "the evaluation keeps the logits of all batches on the GPU and concatenates"
    " them",
    "compile": "the model runs under torch.compile; needs torch: pip install 'vrambudget[torch]'",
    "contiguous_gradients": "DeepSpeed: reduce gradients without copying them",
    "reduce_scatter": "DeepSpeed: reduce the whole buffer at once",
    "double_quant": "keep the scales of 4-bit blocks in float32",
    "expandable_segments": "PyTorch runs with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    " (Linux)",
}
"""What a switch does, where its field's description says what it is. It flips the default."""


def add_job_options(
    parser: argparse.ArgumentParser,
    reads: Callable[[dict[str, Any]], dict[str, Any]] = dict,
    *,
    without: type[Settings] | None = None,
) -> None:
    """Add an option for every field of `Job`; `reads` may change how argparse reads a value.

    `without`: a group of fields that the command has no options for.
    """
    parser.add_argument(
        "--config",
        action="append",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="a file that says how the model is trained: YAML, JSON or TOML; may be repeated",
    )
    for fields in GROUPS:
        if fields is without:
            continue
        group = parser.add_argument_group(fields.heading)
        for name, field in fields.model_fields.items():
            if field.annotation is bool:
                does = SWITCHES.get(name, field.description)
                action: Any = "store_false" if field.default else "store_true"
                if name in EITHER:
                    action = argparse.BooleanOptionalAction
                option = option_of(name)
                group.add_argument(
                    option, dest=name, action=action, default=argparse.SUPPRESS, help=does
                )
            else:
                how = reads(_reading(field))
                if name in _REFUSING and "type" not in how:
                    how["type"] = partial(_modelled, name)
                elif name == "block" and how["type"] is int:
                    how["type"] = _one_or_two
                group.add_argument(*_spellings(name), dest=name, default=argparse.SUPPRESS, **how)


_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def readable(text: str) -> int:
    """Return a number as vLLM reads it: 16k is 16,000 and 16K 16,384 (human_readable_int)."""
    unit = _UNITS.get(text[-1:], 1)
    try:
        return int(float(text[:-1]) * unit) if unit > 1 else int(text)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None


def add_options(
    parser: argparse.ArgumentParser,
    settings: type[Settings],
    *,
    without: Container[str] = (),
    choices: Mapping[str, Collection[str]] = MappingProxyType({}),
    short: Mapping[str, Sequence[str]] = MappingProxyType({}),
    bare: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Add an option for every field of some settings, but for those `without`.

    `choices`: of options that have others elsewhere, all; `short`: further spellings; `bare`: what
    an option means without a value.
    """
    group = parser.add_argument_group(settings.heading)
    for name, field in settings.model_fields.items():
        if name in without:
            continue
        option = f"--{name.replace('_', '-')}"
        switch: dict[str, Any] = {"action": "store_true", "help": field.description}
        how: dict[str, Any] = switch if field.annotation is bool else _reading(field)
        if name in choices:
            how["choices"] = choices[name]
        if name in bare:
            how |= {"nargs": "?", "const": bare[name]}
        spellings = (option, *short.get(name, ()))
        group.add_argument(*spellings, dest=name, default=argparse.SUPPRESS, **how)


def job_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that were given."""
    return {name: value for name, value in vars(args).items() if name in Job.model_fields}


def with_files(args: argparse.Namespace) -> argparse.Namespace:
    """Return the arguments with their model and the files of --config as one."""
    if "model" in args and (files := vars(args).get("config")):
        args.model = ModelWithFiles(args.model, tuple(files))
    return args


def _modelled(name: str, word: str) -> Any:
    """Return a field's value; say of one that is refused by name what to do."""
    try:
        return _REFUSING[name](word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _one_or_two(word: str) -> Any:
    """Return a length, or the text of two: 128:1024."""
    try:
        return word if lengths_of(word) else int(word)
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"invalid int value: {word!r}") from None


def _spellings(name: str) -> list[str]:
    aliases = [alias for alias, field in Job.aliases.items() if field == name]
    return [f"--{spelling.replace('_', '-')}" for spelling in (name, *aliases)]


def _reading(field: Declared) -> dict[str, Any]:
    """Return how argparse reads the field: its choices, or int, float or text."""
    help_text = (field.description or "").replace("%", "%%")
    default = field.get_default()
    is_said = default in (None, ()) or "default" in help_text
    if not is_said and (not isinstance(default, int) or default < _NO_LIMIT):
        help_text += f" (default: {default})"
    kinds = list(kinds_of(field.annotation))
    choices = [choice for kind in kinds if isinstance(kind, tuple) for choice in kind]
    if choices and str not in kinds:
        how: dict[str, Any] = {"choices": choices, "help": help_text}
        if all(isinstance(choice, int) for choice in choices):
            how["type"] = int
        return how
    number = None if str in kinds else next((k for k in kinds if k in (int, float)), None)
    metavar = {"int": "N", "float": "X"}.get(getattr(number, "__name__", ""), "TEXT")
    reading: dict[str, Any] = {"help": help_text, "metavar": metavar}
    return reading | ({"type": number} if number else {})


def kinds_of(annotation: Any) -> Any:
    """Yield the types in an annotation; a Literal is yielded as the tuple of its choices."""
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from kinds_of(get_args(annotation)[0])
    elif origin in (Union, UnionType):
        for part in get_args(annotation):
            yield from kinds_of(part)
    elif origin is Literal:
        yield get_args(annotation)
    elif origin is tuple:
        yield str  # names, separated by commas
    else:
        yield annotation
