"""Commands that start an inference server: `vllm serve MODEL ...`, and what is added to them.

The command keeps all its options. Added are dummy weights, a free port, and where the model has no
tokenizer's files, that none is read. A model that is not a folder here is found as estimates find
it (a name of ours, a config.json, a hub id), and its configuration is written to a folder.

Source: vllm/engine/arg_utils.py (EngineArgs), 0.11 to 0.19; sglang/srt/server_args.py, 0.5.
"""

import json
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import dropwhile
from math import prod
from pathlib import Path
from typing import Any

from vrambudget.config.config_file import read_config
from vrambudget.config.gpus import Gpu
from vrambudget.errors import VramBudgetError
from vrambudget.rehearse.servers.architectures import of_checkpoint, with_architecture
from vrambudget.serving.gguf_known import find_served
from vrambudget.serving.outside import environment as outside_of
from vrambudget.serving.sglang import total_mib
from vrambudget.units import whole_number

_PYTHON_S = ("-u", "-O", "-B", "-s", "-I")
_TOKENIZERS = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json")


@dataclass(frozen=True, slots=True)
class _Engine:
    """How an engine's command is written."""

    name: str
    module: tuple[str, ...]
    model: tuple[str, ...]  # its option, besides the first word
    devices: Mapping[str, str]  # options whose product is the number of GPUs, short to long


_SHARED = {
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-dp": "--data-parallel-size",
}
_VLLM = _Engine("vllm", ("vllm.entrypoints.openai.api_server",), ("--model",), _SHARED)
_SGLANG = _Engine(
    "sglang",
    ("sglang.launch_server",),
    ("--model-path", "--model"),
    {"--tp": "--tp-size", "--tensor-parallel-size": "--tp-size", "--pp-size": "--pp-size"},
)


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A server's command: the words before its options, the model, and the options."""

    engine: str
    before: tuple[str, ...]
    model: str
    at: str | None  # the option that names the model; None: the first word
    options: tuple[str, ...]  # without the model

    def devices(self) -> int:
        """Return how many GPUs its ranks take. Raises VramBudgetError for what is no number."""
        kinds = _VLLM if self.engine == "vllm" else _SGLANG
        found: dict[str, int] = {}
        for name, value in _pairs(self.options):
            long = kinds.devices.get(name, name)
            if long in kinds.devices.values():
                found[long] = _number(name, value)
        return prod(found.values())

    def engines(self) -> int:
        """Return how many engines share requests."""
        names = ("--data-parallel-size", "-dp")
        return next((_number(n, value) for n, value in _pairs(self.options) if n in names), 1)

    def value(self, *names: str) -> str | None:
        """Return the value of the first of these options that is given."""
        return next((value for name, value in _pairs(self.options) if name in names), None)

    def has(self, *names: str) -> bool:
        """Return whether one of these options is given."""
        return any(name in names for name, _ in _pairs(self.options))


def server_of(command: Sequence[str]) -> ServerCommand | None:
    """Return the server that a command starts, None for any other command."""
    words = tuple(command)
    program = Path(words[0]).name if words else ""
    if program == "vllm" and words[1:2] == ("serve",):
        return _read(_VLLM, words[:2], words[2:])
    if program.startswith("python"):
        rest = tuple(dropwhile(lambda word: word in _PYTHON_S, words[1:]))
        if rest and Path(rest[0]).name == "vllm" and rest[1:2] == ("serve",):
            return _read(_VLLM, words[: len(words) - len(rest) + 2], rest[2:])
        for engine in (_VLLM, _SGLANG):
            if rest[:1] == ("-m",) and rest[1:2] and rest[1] in engine.module:
                return _read(engine, words[: len(words) - len(rest) + 2], rest[2:])
    return None


def beside_python(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command whose program is that of VRAMBUDGET_PYTHON where PATH has none.

    Raises VramBudgetError where neither has it.
    """
    own = os.environ.get("VRAMBUDGET_PYTHON")
    if shutil.which(command[0]) is not None:
        return command
    if own is not None and command[0] == "python":
        return (own, *command[1:])
    beside = Path(shutil.which(own) or own).with_name(command[0]) if own else None
    if beside is None or not beside.is_file():
        raise VramBudgetError(
            f"no such command: {command[0]!r}",
            hint="install the engine (pip install vllm), or name the Python that has it with"
            " VRAMBUDGET_PYTHON",
        )
    return (str(beside), *command[1:])


def _read(engine: _Engine, before: tuple[str, ...], options: tuple[str, ...]) -> ServerCommand:
    if options and not options[0].startswith("-"):
        return ServerCommand(engine.name, before, options[0], None, options[1:])
    for i, word in enumerate(options):
        name, equals, value = word.partition("=")
        if name in engine.model:
            width = 1 if equals else 2
            model = value if equals else (*options, "")[i + 1]
            rest = options[:i] + options[i + width :]
            return ServerCommand(engine.name, before, model, name, rest)
    raise VramBudgetError(
        f"this {engine.name} command names no model",
        hint="vrambudget rehearse --gpu h100 -- vllm serve llama-3.1-8b --max-model-len 8192",
    )


def _pairs(options: Sequence[str]) -> list[tuple[str, str]]:
    """Return each option with its value; underscores are dashes."""
    found = []
    for word, following in zip(options, (*options[1:], ""), strict=False):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            found.append((name.replace("_", "-"), value if equals else following))
    return found


def _number(name: str, value: str) -> int:
    if not whole_number(value):
        raise VramBudgetError(f"{name} is {value!r}: a number of GPUs was expected")
    return int(value)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What is run: the command with what was added, and the variables that go with it."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    devices: int
    notes: tuple[str, ...]  # what was added, for the report


def prepared(server: ServerCommand, folder: Path, gpu: Gpu, torch: str) -> Prepared:
    """Return the command to run; `folder` takes a model's configuration. `torch`: its version."""
    model, tokenizer, made = _model(server, folder)
    added = []
    if not server.has("--load-format"):
        added += ["--load-format", "dummy"]
    if not tokenizer and not server.has("--tokenizer", "--tokenizer-path", "--skip-tokenizer-init"):
        added.append("--skip-tokenizer-init")
    words = (model,) if server.at is None else (server.at, model)
    options = _without(server.options, ("--port", "--host", "--uds"))
    where = ("--host", "127.0.0.1", "--port", str(_free_port()))
    if server.engine == "sglang" and not server.has("--skip-server-warmup"):
        added.append("--skip-server-warmup")
    said = [made] if made else []
    said.append(f"added to the command: {' '.join(added)}" if added else "nothing was added")
    devices = server.devices()
    return Prepared(
        (*server.before, *words, *options, *added, *where),
        {**_variables(folder), **_tools(folder, gpu, devices), **outside_of(gpu, torch, devices)},
        devices,
        tuple(said),
    )


def _without(options: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    kept, skip = [], False
    for word in options:
        if skip:
            skip = False
            continue
        name, equals, _ = word.partition("=")
        if name in names:
            skip = not equals
            continue
        kept.append(word)
    return tuple(kept)


def _variables(folder: Path) -> dict[str, str]:
    """Return what a server's environment needs here; sockets and caches lie in the folder.

    spawn: a child of fork could not begin with CUDA anew. DeepGEMM's warm-up compiles thousands of
    kernels with nvcc, which nobody runs.
    """
    places = {name: folder / name for name in ("rpc", "vllm", "tmp", "bin")}
    for place in places.values():
        place.mkdir(exist_ok=True)
    return {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_DEEP_GEMM_WARMUP": "skip",
        "VLLM_RPC_BASE_PATH": str(places["rpc"]),
        "VLLM_CACHE_ROOT": str(places["vllm"]),
        "TMPDIR": str(places["tmp"]),
    }


def _tools(folder: Path, gpu: Gpu, devices: int) -> dict[str, str]:
    """Return a PATH with an nvidia-smi that says the GPUs' memory, which SGLang asks it for."""
    tool = folder / "bin" / "nvidia-smi"
    tool.write_text("#!/bin/sh\n" + f"echo {total_mib(gpu)}\n" * devices)
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}{os.pathsep}{os.environ.get('PATH', '')}"}


def _free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _model(server: ServerCommand, folder: Path) -> tuple[str, bool, str | None]:
    """Return where the model is, whether with a tokenizer, and what was made of it."""
    place = Path(server.model)
    if (place / "config.json").is_file():
        has_tokenizer = any((place / name).is_file() for name in _TOKENIZERS)
        own, _ = read_config(place)
        values = of_checkpoint(own, None)
        if values == own or next(place.glob("*.safetensors*"), None):
            return server.model, has_tokenizer, None
        made = _folder(folder, place.resolve().name, values)
        for file in place.iterdir():
            if file.name != "config.json":
                (made / file.name).symlink_to(file.resolve())
        return str(made), has_tokenizer, "the model is a copy that says what GPTQ quantised"
    found = find_served(server.model)
    values = of_checkpoint(dict(found.values), server.value("--quantization", "-q"))
    values = with_architecture(values, found.where)
    made = _folder(folder, found.name, values)
    return str(made), False, f"the model is the configuration of {found.where}, without weights"


def _folder(folder: Path, name: str, values: Mapping[str, Any]) -> Path:
    """Return a folder with a model's configuration."""
    made = folder / "model" / (name.replace("/", "--") or "model")
    made.mkdir(parents=True)
    (made / "config.json").write_text(json.dumps(values, indent=1))
    return made
