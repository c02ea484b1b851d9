"""`vrambudget serve MODEL --gpu GPU`: how many requests an inference server holds on a card.

    vrambudget serve llama-3.1-8b --gpu h100 --context 8192
    vrambudget serve llama-3.1-8b --gpu h100 --engine sglang --mem-fraction-static 0.85
    vrambudget serve llama-3.1-8b --gpu l4 --engine tgi --max-batch-prefill-tokens 4096
    vrambudget serve llama-3.1-8b:Q4_K_M --gpu 12GB --engine llama.cpp --ctx-size 8192
    vrambudget serve model.gguf --gpu 12GB

Each engine has its own options, with its own names and defaults.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vrambudget.cli import DOES_NOT_FIT, DONE
from vrambudget.cli.job_options import add_options
from vrambudget.cli.output import add_output_options, chosen_format, emit
from vrambudget.config.gpus import Gpu, find_gpu
from vrambudget.config.model_config import load_config
from vrambudget.config.source import FoundModel, find_model
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models import config_class
from vrambudget.models.parts.decoder import DecoderConfig
from vrambudget.report.engines import (
    llama_cpp_report,
    llama_cpp_values,
    sglang_report,
    sglang_values,
    tgi_report,
    tgi_values,
)
from vrambudget.report.serving import as_values, holds_one, served
from vrambudget.serving import llama_cpp, sglang, tgi
from vrambudget.serving.gguf_model import GgufModel, of_file, of_name
from vrambudget.serving.options import (
    CACHE_DTYPES,
    OPTIONS,
    LlamaCppOptions,
    ServeOptions,
    SglangOptions,
    TgiOptions,
)
from vrambudget.serving.quantization_config import cache_in_fp8, quantisation_of
from vrambudget.serving.sglang_quantised import sglang_quantisation
from vrambudget.serving.vllm import serve
from vrambudget.serving.weights import load_decoder

_GGUF = ".gguf"


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "serve",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", help="a model's name, a config.json, a hub id, or a GGUF file; name:Q4_K_M"
    )
    parser.add_argument("--gpu", required=True, metavar="GPU", help="a name, a size, or auto")
    parser.add_argument(
        "--context", type=int, metavar="N", help="tokens of a request (default: the longest)"
    )
    known: set[str] = set()
    for options in OPTIONS.values():
        add_options(parser, options, without=known, choices={"kv_cache_dtype": CACHE_DTYPES})
        known |= set(options.model_fields)
    add_output_options(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print what the server holds. Returns 1 if it would not start."""
    output = chosen_format(args)
    if output not in {"json", "table"}:
        raise VramBudgetError(f"serve has no format {output}", hint="table and json are there")
    if args.context is not None and args.context <= 0:
        raise VramBudgetError(f"context is {args.context}; a request has 1 token or more")
    is_file = args.model.endswith(_GGUF)
    engine = vars(args).get("engine", "llama.cpp" if is_file else "vllm")
    options, gpu = _options(engine, args), find_gpu(args.gpu)
    if isinstance(options, LlamaCppOptions):
        values, text, starts = _llama_cpp(args, gpu, options)
    elif is_file:
        raise VramBudgetError(
            f"{engine} is not counted with a GGUF file", hint="--engine llama.cpp reads it"
        )
    elif isinstance(options, SglangOptions):
        values, text, starts = _sglang(args, gpu, options)
    elif isinstance(options, TgiOptions):
        values, text, starts = _tgi(args, gpu, options)
    else:
        values, text, starts = _vllm(args, gpu, options)
    emit(json.dumps(values, indent=2) if output == "json" else text, args)
    return DONE if starts else DOES_NOT_FIT


def _options(engine: str, args: argparse.Namespace) -> Any:
    """Return the engine's options. Raises VramBudgetError for those of another engine."""
    fields = {name for options in OPTIONS.values() for name in options.model_fields}
    given = {name: value for name, value in vars(args).items() if name in fields}
    own = OPTIONS[engine].model_fields
    for name in given:
        if name not in own:
            others = [e for e, options in OPTIONS.items() if name in options.model_fields]
            raise VramBudgetError(
                f"--{name.replace('_', '-')} is an option of {' and '.join(others)}, not of"
                f" {engine}",
                hint=f"{engine} has {', '.join(_spelled(n) for n in own if n != 'engine')}",
            )
    return OPTIONS[engine].parse({**given, "engine": engine})


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


Result = tuple[Mapping[str, Any], str, bool]


def _vllm(args: argparse.Namespace, gpu: Gpu, options: ServeOptions) -> Result:
    found = find_model(args.model)
    config = load_decoder(found.values, where=found.where)
    quantisation = found.values.get("quantization_config")
    quantised = quantisation_of(quantisation, options.quantization, gpu, where=found.where)
    if cache_in_fp8(quantisation):
        options = options.model_copy(update={"kv_cache_dtype": "fp8"})
    serving = serve(config, gpu, options, quantised)
    _check_context(args.context, serving.max_model_len)
    starts = serving.cache_bytes[0] > 0 and holds_one(serving)
    text = served(found.name, gpu, options, serving, args.context, quantised=quantised)
    return as_values(serving, args.context), text, starts


def _sglang(args: argparse.Namespace, gpu: Gpu, options: SglangOptions) -> Result:
    found = find_model(args.model)
    config = load_decoder(found.values, where=found.where)
    quantised = sglang_quantisation(
        found.values.get("quantization_config"),
        options.quantization,
        gpu,
        config,
        where=found.where,
    )
    serving = sglang.serve(config, gpu, options, quantised)
    _check_context(args.context, serving.context_length)
    text = sglang_report(found.name, gpu, serving, args.context, quantised)
    return sglang_values(serving, args.context), text, serving.starts


def _tgi(args: argparse.Namespace, gpu: Gpu, options: TgiOptions) -> Result:
    found = find_model(args.model)
    serving = tgi.serve(_not_quantised(found), gpu, options)
    _check_context(args.context, serving.max_total_tokens)
    text = tgi_report(found.name, gpu, options, serving, args.context)
    return tgi_values(serving, args.context), text, serving.starts


def _not_quantised(found: FoundModel) -> DecoderConfig:
    if found.values.get("quantization_config"):
        raise NotModelledError(
            "quantised weights are not modelled as this engine loads them",
            where=found.where,
            hint="--engine vllm has rules for them; a configuration without quantization_config"
            " is that of 16-bit weights",
        )
    return load_decoder(found.values, where=found.where)


def _llama_cpp(args: argparse.Namespace, gpu: Gpu, options: LlamaCppOptions) -> Result:
    model = _gguf(args.model)
    serving = llama_cpp.serve(model, gpu, options)
    _check_context(args.context, model.positions)
    context = args.context or serving.cells
    text = llama_cpp_report(model, gpu, options, serving, context)
    slots = llama_cpp.most_slots(model, gpu, options, context)
    return llama_cpp_values(serving, slots, context), text, serving.fits


def _gguf(name: str) -> GgufModel:
    """Return the model of a local file, or of a name with a kind: llama-3.1-8b:Q4_K_M."""
    if name.endswith(_GGUF):
        return of_file(Path(name))
    model, _, kind = name.rpartition(":")
    if not model:
        raise VramBudgetError(
            f"{name!r} does not say how its tensors are quantised",
            hint=f"write {name}:Q4_K_M, or name a local file: model.gguf",
        )
    found = find_model(model)
    return of_name(load_config(found.values, config_class, where=found.where), found.name, kind)


def _check_context(context: int | None, longest: int) -> None:
    if context is not None and context > longest:
        raise VramBudgetError(f"context is {context}; a request has 1 to {longest} tokens here")
