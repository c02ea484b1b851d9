"""What an inference server does with a GPU, from Python: `vrambudget.serve`.

    server = vrambudget.serve("llama-3.1-8b", gpu="h100", context=8192)
    server.starts, server.values["tokens"]

Options have the engines' own names. A server prints as the command does, and shows in notebooks.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.config.gpus import Gpu, count_of_gpus, find_gpu
from vrambudget.config.source import ModelSource
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.integrations.answer import Server
from vrambudget.report.engines import sglang_report, sglang_values
from vrambudget.report.serving import as_values, served, start_lines
from vrambudget.serving import sglang, vllm
from vrambudget.serving.gguf_known import find_served
from vrambudget.serving.options import OPTIONS, ServeOptions, SglangOptions
from vrambudget.serving.quantization_config import cache_in_fp8, quantisation_of
from vrambudget.serving.starting import alternatives, rehearsal, with_rehearsal
from vrambudget.serving.vllm_versions import KNOWN, minor_of
from vrambudget.serving.weights import load_decoder

_GGUF = ".gguf"
_SHARED_BY = "tensor_parallel_size"


def serve(
    model: ModelSource,
    *,
    gpu: str | Gpu,
    engine: str | None = None,
    context: int | None = None,
    engine_version: str | None = None,
    rehearse: bool = False,
    say: Callable[[str], None] = lambda _: None,
    **options: Any,
) -> Server:
    """Return what a server of `model` does with a GPU. Raises VramBudgetError.

    `engine`: vllm, sglang or llama.cpp, by default vllm, of a GGUF file llama.cpp; `context`:
    tokens of a request; `options`: the engine's own. "2xh100" is tensor parallelism over two.
    `engine_version`: refused where there are no rules of it; with `rehearse` the installed engine
    starts on a virtual GPU instead, once for each version, model and options.
    """
    if context is not None and context <= 0:
        raise VramBudgetError(f"context is {context}; a request has 1 token or more")
    is_file = isinstance(model, str | Path) and str(model).endswith(_GGUF)
    engine = engine or ("llama.cpp" if is_file else "vllm")
    if engine == "llama.cpp":
        from vrambudget.integrations.run_here import run  # noqa: PLC0415 - it makes a Server

        if rehearse:
            raise VramBudgetError("llama.cpp is not rehearsed", where="--rehearse")
        if engine_version is not None:
            options = {**options, "engine_version": engine_version}
        given = _options(engine, options).model_dump(exclude_unset=True)
        return run(model, gpu=gpu, context=context, **given)
    gpus, kind = count_of_gpus(gpu) if isinstance(gpu, str) else (1, gpu)
    parsed, device = _over(gpus, engine, _options(engine, options)), find_gpu(kind)
    if rehearse:
        from vrambudget.integrations.server_rehearsal import rehearsed  # noqa: PLC0415 - Linux alone

        return Server(engine, *rehearsed(model, device, engine, parsed, say))
    command = rehearsal(model, kind, engine, parsed)
    try:
        if engine_version is not None:
            parsed = _of_version(engine, engine_version, parsed)
        server = _by_rules(model, device, engine, parsed, context)
    except NotModelledError as error:
        raise with_rehearsal(error, command) from error
    if command is None or engine != "vllm":
        return server
    return replace(server, text=f"{server.text}\n\ncheck it by vLLM's own start: {command}")


def _of_version(engine: str, asked: str, options: Any) -> Any:
    """Return the options with a version's rules. Raises NotModelledError where there are none."""
    if engine == "vllm" and (minor := minor_of(asked)) is not None:
        return options.changed({"engine_version": f"0.{minor}"})
    known = KNOWN if engine == "vllm" else sglang.VERSION
    if engine == "vllm" or (asked != known and not asked.startswith(f"{known}.")):
        raise NotModelledError(
            f"the rules of {engine} are those of {known}, not of {asked}",
            where="--engine-version",
            hint=f"install {engine} {asked} in an environment of its own",
        )
    return options


def _by_rules(
    model: ModelSource, device: Gpu, engine: str, parsed: Any, context: int | None
) -> Server:
    is_file = isinstance(model, str | Path) and str(model).endswith(_GGUF)
    if is_file:
        raise VramBudgetError(
            f"{engine} is not modelled with a GGUF file", hint="--engine llama.cpp reads it"
        )
    if isinstance(parsed, SglangOptions):
        return _sglang(model, device, parsed, context)
    return _vllm(model, device, parsed, context)


def _options(engine: str, given: Mapping[str, Any]) -> Any:
    """Return the engine's options. Raises VramBudgetError for those of another engine."""
    if engine not in OPTIONS:
        raise VramBudgetError(
            f"there is no engine {engine!r}", hint=f"there is {', '.join(OPTIONS)}"
        )
    own = OPTIONS[engine].model_fields
    for name in given:
        others = [e for e, options in OPTIONS.items() if name in options.model_fields]
        if name not in own and others:
            raise VramBudgetError(
                f"--{name.replace('_', '-')} is an option of {' and '.join(others)}, not of"
                f" {engine}",
                hint=f"{engine} has {', '.join(_spelled(n) for n in own if n != 'engine')}",
            )
    return OPTIONS[engine].parse({**given, "engine": engine})


def _over(gpus: int, engine: str, options: Any) -> Any:
    """Return the options with layers shared by all GPUs. Raises VramBudgetError for other GPUs.

    The options may have said so themselves, or that stages have a part of the layers each.
    """
    if gpus == 1:
        return options
    if not hasattr(options, _SHARED_BY):
        raise NotModelledError(f"{engine} over {gpus} GPUs is not modelled", hint="name one GPU")
    stages = getattr(options, "pipeline_parallel_size", 1)
    if _SHARED_BY not in options.model_fields_set and gpus % stages == 0:
        return options.changed({_SHARED_BY: gpus // stages})
    if (asked := getattr(options, _SHARED_BY) * stages) != gpus:
        raise VramBudgetError(f"gpu has {gpus} GPUs; the engine's options share among {asked}")
    return options


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _vllm(model: ModelSource, gpu: Gpu, options: ServeOptions, context: int | None) -> Server:
    found = find_served(model)
    config = load_decoder(found.values, where=found.where, text_alone=options.language_model_only)
    quantisation = found.values.get("quantization_config")
    quantised = quantisation_of(quantisation, options.quantization, gpu, where=found.where)
    if cache_in_fp8(quantisation):
        options = options.model_copy(update={"kv_cache_dtype": "fp8"})
    serving = vllm.serve(config, gpu, options, quantised)
    _check_context(context, serving.max_model_len)
    text = served(found.name, gpu, options, serving, context, quantised=quantised)
    values = as_values(serving, options.engine_version, context)
    if serving.error is not None:
        others = list(alternatives(config, gpu, options, quantised))
        values["starts_with"] = [dict(other.change) for other in others]
        text = "\n".join([text, *start_lines(others, found.name, gpu, options)])
    return Server("vllm", serving.error is None, values, text)


def _sglang(model: ModelSource, gpu: Gpu, options: SglangOptions, context: int | None) -> Server:
    found = find_served(model)
    config = load_decoder(found.values, where=found.where)
    if options.quantization or found.values.get("quantization_config"):
        raise NotModelledError("quantised weights are not modelled as SGLang loads them")
    serving = sglang.serve(config, gpu, options)
    _check_context(context, serving.context_length)
    text = sglang_report(found.name, gpu, serving, context)
    return Server("sglang", serving.starts, sglang_values(serving, context), text)


def _check_context(context: int | None, longest: int) -> None:
    if context is not None and context > longest:
        raise VramBudgetError(f"context is {context}; a request has 1 to {longest} tokens here")
