"""What llama.cpp puts where, which file runs here, and the commands that start it.

Sizes are exact by llama.cpp's rules; the driver's own is what was published of such GPUs.
"""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from vrambudget.config.bandwidths import MAIN_MEMORY
from vrambudget.serving.gguf_architectures import SEEN
from vrambudget.serving.llama_cpp import VERSIONS, Held, LlamaCppServing
from vrambudget.serving.options import LLAMA_CPP_SHORT, LlamaCppOptions
from vrambudget.serving.run_here import RunChoice
from vrambudget.units import gib, spread

_MIB = 2**20
_NOT_TYPED = {"engine", "engine_version", "ctx_size", "n_gpu_layers", "fit", "fit_target"}
_WHOLE = 10  # tokens/s, from which on decimals say nothing


def run_report(choice: RunChoice, gpus: str, rows: list[RunChoice]) -> str:
    """Return the report of a choice; `rows`: what it was chosen from, if more than one."""
    found = choice.found
    lines = [_verdict(choice), ""]
    if len(rows) > 1:
        lines += [*_table(rows), ""]
    version = VERSIONS[choice.options.engine_version]
    lines += [
        f"{choice.model.name} on {gpus}, by the rules of llama.cpp {version}",
        "",
        *_devices(found),
        "",
        *_said(choice),
        "",
        "start it:",
        *(f"  {line}" for line in commands(choice)),
        "",
        "llama.cpp's log will say:",
        *(f"  {line}" for line in log_lines(found, has_adapter=bool(choice.options.lora))),
    ]
    return "\n".join(lines)


def run_values(choice: RunChoice, rows: list[RunChoice]) -> dict[str, Any]:
    """Return the result for JSON, in bytes."""
    found = choice.found
    return {
        **asdict(found),
        "engine": f"llama.cpp {VERSIONS[choice.options.engine_version]}",
        "model": choice.model.name,
        "starts": choice.fits,
        "least_bytes": found.least_bytes,
        "tokens_per_second": found.tokens_per_second,
        "weights_bytes": choice.weights_bytes,
        "context": choice.options.ctx_size,
        "longest_context": choice.longest,
        "command": commands(choice)[0],
        "choices": [_row_values(row) for row in rows] if len(rows) > 1 else [],
    }


def _row_values(row: RunChoice) -> dict[str, Any]:
    return {
        "model": row.model.name,
        "weights_bytes": row.weights_bytes,
        "longest_context": row.longest,
        "ram_bytes": row.found.host_bytes,
        "starts": row.fits,
        "command": commands(row)[0],
    }


def _verdict(choice: RunChoice) -> str:
    found, tokens = choice.found, choice.options.ctx_size
    left, ram = found.left_bytes, found.ram_left_bytes
    if found.gpus and left < 0:
        return f"DOES NOT FIT: {gib(-left)} short on a GPU with a context of {tokens:,} tokens"
    if ram is not None and ram < 0:
        mapped = (
            "; llama.cpp starts all the same, and reads what is short from the file for each token"
            if found.host_bytes - found.host.model_bytes <= (found.ram_bytes or 0)
            and choice.options.is_mapped
            else ""
        )
        return (
            f"DOES NOT FIT: main memory is {gib(-ram)} short of the {gib(found.host_bytes)} that"
            f" stay there{mapped}"
        )
    gpus = "the GPUs" if len(found.gpus) > 1 else "the GPU"
    where = f"on {gpus}" if choice.is_whole else f"with {gib(found.host_bytes)} in main memory"
    if not found.gpus:
        where = f"in {gib(found.host_bytes)} of main memory"
    return f"FITS: a context of {tokens:,} tokens {where}"


def _table(rows: list[RunChoice]) -> Iterator[str]:
    yield f"{'file':<12} {'weights':>11} {'context':>9}   {'main memory':>11}"
    for row in rows:
        kind = row.model.name.rpartition(":")[2]
        longest = f"{row.longest:,}" if row.fits else "none"
        yield (
            f"{kind:<12} {gib(row.weights_bytes):>11} {longest:>9}   "
            f"{gib(row.found.host_bytes):>11}{_split_of(row)}"
        )


def _split_of(row: RunChoice) -> str:
    options, layers = row.options, row.model.layers
    if row.is_whole:
        return ""
    if options.n_gpu_layers is not None:
        of_experts = " and all experts" if options.cpu_moe else ""
        return f"   {layers + 1 - row.found.offloaded} of {layers + 1} layers{of_experts}"
    many = layers if options.cpu_moe else options.n_cpu_moe
    return f"   experts of {many} of {layers} layers" if many else "   as given"


def _devices(found: LlamaCppServing) -> Iterator[str]:
    yield f"{'':<12} {'model':>11} {'KV cache':>10} {'compute':>10}   driver's own       capacity"
    for held, context, capacity in zip(
        found.gpus, found.context_bytes, found.capacity_bytes, strict=True
    ):
        yield f"{_held(held)}   {spread(*context):<17} {gib(capacity):>9}"
    ram = "" if found.ram_bytes is None else f"   {'':<17} {gib(found.ram_bytes):>9}"
    yield f"{_held(found.host, 'main memory')}{ram}"
    for each in found.beside:
        for held in (*each.gpus, each.host):
            if held.bytes:
                yield _held(held, f"{held.name} {each.name}")


def _held(held: Held, name: str = "") -> str:
    return (
        f"{name or held.name:<12} {gib(held.model_bytes):>11} {gib(held.cache_bytes):>10}"
        f" {gib(held.compute_bytes):>10}"
    )


def _said(choice: RunChoice) -> Iterator[str]:
    found = choice.found
    window = f", {found.window_cells:,} in layers with a window" if found.window_cells else ""
    shared = f"{found.slots} slots" + (" share it" if found.streams < found.slots else "")
    slots = "1 slot has it" if found.slots == 1 else shared
    yield f"cache: {found.cells:,} cells{window}; {slots}"
    if older := _before_latent_rows(choice):
        yield (
            "a file made before April 2025 (Ollama's of DeepSeek V2) has no attn_k_b.weight, and a"
            f" cache of {gib(older)}: hand in the file itself"
        )
    if choice.longest:
        yield f"longest context with this split: {choice.longest:,} tokens"
    if (tokens := choice.options.ctx_size // found.streams) > choice.model.positions:
        key = f"{choice.model.architecture}.context_length"
        yield (
            f"a request has {choice.model.positions:,} tokens at most, which the model was made"
            f" for; longer with --rope-scaling yarn and --override-kv {key}=int:{tokens}"
        )
    on_gpus, in_ram = found.read_bytes
    places = (("GPUs", on_gpus), ("main memory", in_ram))
    read = " and ".join(f"{gib(n)} from {place}" for place, n in places if n)
    yield f"each token reads of weights {read}"
    if rough := _rough(choice):
        yield f"{rough} the compute buffer is a rough estimate"
    if speed := found.tokens_per_second:
        low, high = (f"{n:.1f}" if n < _WHOLE else f"{n:,.0f}" for n in speed)
        ram = f", main memory {MAIN_MEMORY[0]} to {MAIN_MEMORY[1]}" if in_ram else ""
        known = ", ".join(dict.fromkeys(f"GPU {each:,}" for each in found.bandwidths if each))
        yield f"an estimate: {low} to {high} tokens/s at most, by GB/s of each memory: " + (
            f"{known}{ram}".lstrip(", ") + "; the least with a full context"
        )
    if choice.options.mmproj:
        yield "the projector's compute buffer comes on top: the size of an image decides it"
    if choice.is_whole_with_q8_0:
        yield "with -ctk q8_0 -ctv q8_0 all layers are on GPUs, which is faster"
    left, kept = found.ram_left_bytes, choice.options.cache_ram * _MIB
    if left is not None and not choice.options.is_old and (kept < 0 or 0 <= left < kept):
        most = f"{gib(kept)}" if kept > 0 else "any size"
        yield f"llama-server keeps prompts in main memory in time, up to {most}: -cram 0 keeps none"
    if found.ram_bytes is None and not choice.is_whole:
        yield "whether main memory has that much is not checked: --ram 64GB says how much it has"


def _before_latent_rows(choice: RunChoice) -> int:
    """Return the cache's bytes of a DeepSeek file that keeps each head's keys and values, or 0.

    llama.cpp has latent rows since its pull request 12801 of April 2025.
    """
    model, found = choice.model, choice.found
    shapes = {tensor.name: tensor.shape for tensor in model.tensors}
    k_b, v_b = (shapes.get(f"blk.0.attn_{of}_b.weight") for of in "kv")
    if model.path or not (k_b and v_b and model.name.startswith("deepseek-")):
        return 0
    row, (nope, low, heads), values = model.keys[0], k_b, v_b[1]
    cached = found.host.cache_bytes + sum(held.cache_bytes for held in found.gpus)
    return cached * heads * (nope + row - low + values) // row


def _rough(choice: RunChoice) -> str:
    """Return of what no rule for the compute buffer was held against llama.cpp, or is 2 % off."""
    model = choice.model
    if model.architecture not in SEEN:
        return f"of {model.architecture}"
    if any(model.states) and 0 < choice.found.offloaded <= model.layers:
        return f"of {model.architecture} with layers in main memory"
    return ""


def commands(choice: RunChoice) -> list[str]:
    """Return the commands and settings that start a choice as estimated."""
    options, model = choice.options, choice.model
    file = model.path or _file_of(model.name)
    if not options.has_all_logits and not options.is_mapped and options.load_mode == "auto":
        mode = "none" if not options.mlock else "mlock" if options.no_mmap else "mmap+mlock"
        update = {"no_mmap": False, "mlock": False, "load_mode": mode}  # as these are called now
        options = options.model_copy(update=update)
    if options.model_draft and not options.spec_type and not options.has_all_logits:
        update = {"spec_type": "draft-simple"}  # without it the draft model lies there unused
        options = options.model_copy(update=update)
    layers = "99" if options.n_gpu_layers is None else str(options.n_gpu_layers)
    context = str(options.ctx_size)
    words = ["llama-server", "-m", file, "-ngl", layers, "-c", context]
    defaults = LlamaCppOptions.model_construct()
    for name in LlamaCppOptions.model_fields:
        value = getattr(options, name)
        if name not in _NOT_TYPED and value != getattr(defaults, name):
            flag = LLAMA_CPP_SHORT.get(name) or f"--{name.replace('_', '-')}"
            text = _file_of(value) if name == "model_draft" else str(value)
            words += [flag] if value is True else [flag, text]
    lines = [shlex.join(words)]
    slots = options.parallel or 1
    kinds = {options.cache_type_k, options.cache_type_v}
    set_to = f" OLLAMA_NUM_PARALLEL={slots}" * (slots > 1)
    if len(kinds) == 1 and kinds != {"f16"}:
        set_to += f" OLLAMA_KV_CACHE_TYPE={options.cache_type_k}"
    lines += [
        f"Ollama's Modelfile{', with' * bool(set_to)}{set_to}:",
        f"  FROM {file if file.startswith('/') else f'./{file}'}",
        f"  PARAMETER num_ctx {options.ctx_size // slots}",
        f"  PARAMETER num_batch {options.ubatch_size}",
    ]
    number = model.layers + 1 if options.n_gpu_layers is None else options.n_gpu_layers
    if options.n_cpu_moe or options.cpu_moe or options.override_tensor or options.tensor_split:
        lines += ["  (no num_gpu: its llama-server's own --fit shares layers and keeps experts)"]
    else:
        lines += [f"  PARAMETER num_gpu {number}"]
    experts = model.layers if options.cpu_moe else options.n_cpu_moe
    more = f", MoE layers forced onto the CPU {experts}" if experts else ""
    on = "off" if options.flash_attn == "off" else "on"
    offload = min(number, model.layers)
    lines.append(
        f"LM Studio: Context Length {context}, GPU Offload {offload}{more}, Flash Attention {on}"
    )
    return lines


def _file_of(name: str) -> str:
    return name if name.endswith(".gguf") else f"{name.replace('/', '-').replace(':', '-')}.gguf"


def log_lines(found: LlamaCppServing, *, has_adapter: bool) -> Iterator[str]:
    """Yield the lines that llama.cpp prints as it loads a model."""
    what = "model and LoRA buffers together" if has_adapter else "model buffer size"
    for held in found.gpus:
        mib = held.model_bytes / _MIB
        yield f"load_tensors: {held.name:>12} {what} = {mib:8.2f} MiB"
    for held in (*found.gpus, found.host):
        if held.cache_bytes:
            mib = held.cache_bytes / _MIB
            yield f"llama_kv_cache: {held.name:>10} KV buffer size = {mib:8.2f} MiB"
