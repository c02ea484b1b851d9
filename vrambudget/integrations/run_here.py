"""What runs on this machine, from Python: `vrambudget.run`.

    run = vrambudget.run("qwen3-8b:Q4_K_M", gpu="12GB", context=16384)
    run.starts, run.values["longest_context"]

A model is a name with a quantisation ("qwen3-8b:Q4_K_M"), a name alone (a table of quantisations,
and the best that runs), a GGUF file, or a hub's repository of GGUF files ("org/name:Q5_K_M").
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vrambudget.config.cards import card_name, card_names, gguf_names
from vrambudget.config.gpus import SOLD_AS, Gpu, count_of_gpus, find_gpu
from vrambudget.config.model_config import load_config
from vrambudget.config.other_gpus import other_gpu
from vrambudget.config.source import FoundModel, ModelSource, find_model
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.integrations.answer import Server
from vrambudget.models import config_class
from vrambudget.report.run_here import run_report, run_values
from vrambudget.serving.beside import projector, with_adapter
from vrambudget.serving.gguf_cards import family_of, header_of, parsed, table_of
from vrambudget.serving.gguf_known import card_of, known
from vrambudget.serving.gguf_model import GgufModel, of_file, of_header
from vrambudget.serving.gguf_quants import named
from vrambudget.serving.ollama import USUAL_KIND, started
from vrambudget.serving.options import LlamaCppOptions
from vrambudget.serving.run_here import KINDS, LOWER, Machine, RunChoice, best_of
from vrambudget.units import parse_bytes

GGUF = ".gguf"
_MXFP4 = "MXFP4_MOE"
_KIND = re.compile(
    r"(?:^|[-_:.])((?:ud[-_])?(?:i?q\d|tq\d|mxfp|nvfp|b?f16|fp16|f32)\w*)$", re.IGNORECASE
)
_SOLD = re.compile(r"\s*(\d+)\s*gb?\s*", re.IGNORECASE)
_SITE = re.compile(
    r"(?:https?://)?(?:ollama(?:\.com/library)?[:/]|(?:hf|huggingface)\.co/)", re.IGNORECASE
)


def gpus_of(names: str | Gpu) -> list[Gpu]:
    """Return the GPUs that a text means: "2x24GB", "rtx-4090,rx-7900-xtx", "m3-max", "none"."""
    if isinstance(names, Gpu):
        return [names]
    if names.strip().lower() in {"none", "cpu"}:
        return []
    found: list[Gpu] = []
    for part in re.split(r"[,+]", names):
        many, kind = count_of_gpus(part)
        size = _SOLD.fullmatch(kind)  # of a size that no GPU of NVIDIA's has, so much exactly
        text = f"{size[1]}GiB" if size and int(size[1]) not in SOLD_AS else kind.strip()
        found += [other_gpu(kind) or find_gpu(text)] * many
    if len(found) > 16:  # noqa: PLR2004 - GGML_CUDA_MAX_DEVICES
        raise VramBudgetError(f"gpu names {len(found)} GPUs; llama.cpp takes 16")
    return found


def run(
    model: ModelSource,
    *,
    gpu: str | Gpu,
    ram: str | int | None = None,
    context: int | None = None,
    ollama: bool = False,
    **options: Any,
) -> Server:
    """Return what of `model` runs on GPUs and main memory, and how. Raises VramBudgetError.

    `ram`: main memory that is free; `context`: tokens of all slots together, by default as many as
    fit, 0 for the model's own limit; `ollama`: as `ollama run` starts it, `context` is its num_ctx;
    `options`: llama.cpp's own.
    """
    if context is not None and context < 0:
        raise VramBudgetError(f"context is {context}; it should be 1 token or more, or 0")
    parsed = LlamaCppOptions.parse(options)
    rows, best = choices(model, gpu=gpu, ram=ram, context=context, options=parsed, as_ollama=ollama)
    text = run_report(best, _on(gpu), rows)
    return Server("llama.cpp", best.fits, run_values(best, rows), text)


def _on(gpu: str | Gpu) -> str:
    names = [found.name for found in gpus_of(gpu)]
    counts = ((names.count(name), name) for name in dict.fromkeys(names))
    return " and ".join(f"{n} x {name}" if n > 1 else name for n, name in counts) or "no GPU"


def choices(
    model: ModelSource,
    *,
    gpu: str | Gpu,
    ram: str | int | None = None,
    context: int | None = None,
    options: LlamaCppOptions,
    as_ollama: bool = False,
) -> tuple[list[RunChoice], RunChoice]:
    """Return a choice for each file that the model may mean, and the best. Raises VramBudgetError.

    `ram`: main memory; `context`: tokens, by default as many as fit.
    """
    gpus = gpus_of(gpu)
    draft, *others = models_of(options.model_draft) if options.model_draft else [None]
    if others:
        raise VramBudgetError(f"model_draft is {options.model_draft!r}; add a type, as :Q8_0")
    images = projector(Path(options.mmproj)) if options.mmproj else ()
    machine = Machine(gpus, _ram(ram, gpus), draft, images)
    if "ctx_size" in options.model_fields_set and context is None:
        context = options.ctx_size
    models = models_of(model, (USUAL_KIND,) if as_ollama else KINDS + LOWER)
    if options.lora:
        models = (with_adapter(found, Path(options.lora)) for found in models)
    rows: list[RunChoice] = []
    for found in models:
        if len(rows) < len(KINDS) or not any(row.fits for row in rows):
            on, own, tokens = machine, options, found.positions if context == 0 else context
            if as_ollama:
                used, own = started(found, gpus, options, context)
                on, tokens = Machine(used, machine.ram_bytes, draft, images), own.ctx_size
            rows.append(on.choice(found, own, tokens))
    return rows, best_of(rows)


def _ram(ram: str | int | None, gpus: list[Gpu]) -> int | None:
    """Return the bytes of main memory: 64GB are 64 GiB; a Mac has what its GPU leaves."""
    if ram is None and gpus and gpus[0].key == "apple":
        return (gpus[0].sold_gb or 0) * 2**30 - gpus[0].capacity_bytes
    if not isinstance(ram, str):
        return ram
    return parse_bytes(re.sub(r"(?i)(?<=[\d\s])([kmgt])b?\s*$", r"\1iB", ram))


def models_of(model: ModelSource, kinds: Sequence[str] = KINDS + LOWER) -> Iterator[GgufModel]:
    """Yield the models that the text may mean: one, or each of `kinds`, if it names no type."""
    if isinstance(model, str | Path) and str(model).endswith(GGUF):
        try:
            yield of_file(Path(model))
        except VramBudgetError as error:
            error.hint = error.hint or (None if Path(model).exists() else _by_name(str(model)))
            raise
        return
    name, kind = _with_kind(model)
    card = card_of(name) if isinstance(name, str) else {}
    found = None if "gguf" in card else _found(name, kind)
    if isinstance(found, GgufModel):
        yield found
        return
    card = card_of(found.name) if found else card
    title = card["name"] if found is None else found.name
    table = card["gguf"] if found is None or "gguf" in card else _table_of(found)
    is_oss = table["architecture"] == "gpt-oss"
    if is_oss and kind is not None and named(kind) not in {_MXFP4, "F16", "BF16"}:
        raise VramBudgetError(
            f"gpt-oss is published with its experts in MXFP4; {kind} is a recipe of its publisher",
            hint=f"{name}:MXFP4, or hand in the file: vrambudget run model.gguf --gpu GPU",
        )
    for each in map(named, (kind,) if kind else (_MXFP4,) if is_oss else kinds):
        yield of_header(header_of(table, title, each), f"{title}:{each}")


def _with_kind(model: ModelSource) -> tuple[ModelSource, str | None]:
    """Return the model without its quantisation, and the quantisation.

    A tag of Ollama's may name a size, and a quantisation after it: "llama3.1:8b-q4_K_M".
    """
    if not isinstance(model, str):
        return model, None
    text = _SITE.sub("", model)
    name, colon, tag = text.rpartition(":")
    if "/" in tag or "\\" in tag or (colon and "/" in name):  # no tag, or a repository's file
        return (name, tag) if colon and "/" in name else (text, None)
    match = _KIND.search(text)
    if not match or not match.start() or Path(text).exists():
        return text.removesuffix(":latest").replace(":", "-"), None
    return text[: match.start()], match[1]


def _by_name(file: str) -> str | None:
    """Return what estimates a file or a repository that is not here, where its name is known."""
    stem = re.sub(rf"(?i)[-.]{GGUF[1:]}\b", "", re.split(r"[/\\]", file)[-1])
    name, kind = _with_kind(stem)
    known_as = card_of(str(name)).get("name") or card_name(str(name))
    if known_as is None:
        return None
    return f"by its name: vrambudget run {known_as}{f':{kind}' if kind else ''} --gpu GPU"


def _table_of(found: FoundModel) -> Mapping[str, Any]:
    """Return the header's table of a configuration, whose class may say what it leaves out."""
    if not family_of(found.values).get("parsed"):
        return table_of(found.values, found.where)
    from vrambudget.models.parts.decoder import DecoderConfig  # noqa: PLC0415 - of these alone

    config = load_config(found.values, config_class, where=found.where)
    assert isinstance(config, DecoderConfig)  # noqa: S101 - all of these are decoders
    return table_of(parsed(config), found.where)


def _found(name: ModelSource, kind: str | None) -> FoundModel | GgufModel:
    """Return a configuration, or a repository's file of that quantisation."""
    from vrambudget.serving.gguf_hub import hub_header, is_of_files  # noqa: PLC0415

    if isinstance(name, str) and is_of_files(name, kind):
        try:
            header, file = hub_header(name, kind)
        except VramBudgetError as error:
            near = _by_name(f"{name}-{kind}" if kind else name)
            error.hint = "; ".join(filter(None, (near, error.hint)))
            raise
        return of_header(header, f"{name}:{kind}" if kind else name, file)
    found = known(name) if isinstance(name, str) else name
    try:
        return found if isinstance(found, FoundModel) else find_model(found)
    except VramBudgetError as error:
        if not error.message.startswith("there is no model"):
            raise
        near = did_you_mean(str(name), [*gguf_names(), *card_names()])
        raise VramBudgetError(
            error.message,
            hint=f"{near or '`vrambudget models` lists names;'} a file says all itself: vrambudget"
            " run model.gguf --gpu GPU, and so do org/name-GGUF:Q4_K_M and a config.json",
        ) from None
