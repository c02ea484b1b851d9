"""What a server's own log says of its memory, in the words of its versions.

Source: vLLM 0.11 and 0.19: v1/worker/gpu_model_runner.py, gpu_worker.py, v1/core/kv_cache_utils.py;
SGLang 0.5: srt/model_executor/model_runner.py, mem_cache/memory_pool.py.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

READY = ("Application startup complete", "The server is fired up")
# vLLM's engine holds all memory by now; what its HTTP server does then is not the GPU's.
_WARM = "init engine (profile, create kv cache, warmup model) took"
_GIB, _GB = 2**30, 2**30  # SGLang's "GB" are GiB
_NUMBER = r"(-?[\d,]+(?:\.\d+)?)"


def _bytes(text: str) -> int:
    return round(_count(text) * _GIB)


def _count(text: str) -> float:
    return float(text.replace(",", ""))


def _tokens(text: str) -> int:
    return int(_count(text))


# What a line says, how it is read, and of several ranks which counts.
_LINES: tuple[tuple[str, str, Callable[[str], Any], Callable[[Any, Any], Any]], ...] = (
    ("weights_bytes", rf"Model loading took {_NUMBER} Gi?B", _bytes, max),
    ("cache_bytes", rf"Available KV cache memory: {_NUMBER} Gi?B", _bytes, min),
    ("tokens", rf"GPU KV cache size: {_NUMBER} tokens", _tokens, min),
    ("graphs_bytes", rf"Graph capturing finished in .*? took {_NUMBER} Gi?B", _bytes, max),
    ("weights_bytes", rf"Load weight end\..*?mem usage={_NUMBER} GB", _bytes, max),
    ("tokens", rf"KV Cache is allocated\..*?#tokens: {_NUMBER}", _tokens, min),
    ("tokens", rf"max_total_num_tokens={_NUMBER}", _tokens, min),
)
_CONCURRENCY = re.compile(
    rf"Maximum concurrency for {_NUMBER} tokens per request: {_NUMBER}x", re.IGNORECASE
)
_ENGINES = re.compile(r"V1 LLM engine \(v([\w.+]+)\)|vLLM.*? version v?([\w.+]*\d[\w.+]*)")
_PATTERNS = [(name, re.compile(text), read, join) for name, text, read, join in _LINES]
_SHOWN = re.compile("|".join([text for _, text, _, _ in _LINES] + [_CONCURRENCY.pattern]))
_ERROR = re.compile(r"^(?:.*\s)?((?:torch\.)?[\w.]*(?:Error|Exception): .+)|^(\w*Error)$")
_USAGE = re.compile(r"^\S+.*: error: ((.+))$")
_GENERIC = ("Engine core initialization failed", "WorkerProc initialization failed")
_PREFIX = re.compile(r"^(\([^)]*\)\s*)?(?:(?:INFO|WARNING|ERROR|DEBUG) \S+ \S+ \[[^\]]*\]\s*)?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class ServerLog:
    """Reads a server's lines as they come; `values` is what they said so far."""

    def __init__(self, engines: int = 1) -> None:
        self.engines = engines  # that have to be warm: those of data parallelism
        self.values: dict[str, Any] = {}
        self.lines: list[str] = []  # those that say something of memory
        self.errors: list[str] = []
        self.version: str | None = None
        self.ready = False

    def read(self, line: str) -> bool:
        """Take a line; return whether the server is ready."""
        line = _COLOUR.sub("", line.rstrip())
        for name, pattern, read, join in _PATTERNS:
            if found := pattern.search(line):
                value = read(found[1])
                self.values[name] = join(self.values.get(name, value), value)
        if found := _CONCURRENCY.search(line):
            self.values["max_model_len"] = _tokens(found[1])
            self.values["concurrency"] = _count(found[2])
        if self.version is None and (found := _ENGINES.search(line)):
            self.version = found[1] or found[2]
        text = _PREFIX.sub("", line)
        if _SHOWN.search(line) and text not in self.lines:
            self.lines.append(text)
        self._read_error(text)
        self.engines -= _WARM in line
        self.ready = self.ready or not self.engines or any(word in line for word in READY)
        return self.ready

    def _read_error(self, text: str) -> None:
        found = _ERROR.search(text) or _USAGE.match(text)
        text = (found[1] or found[2]) if found else ""
        if text and not self.ready and text not in self.errors:
            self.errors.append(text)

    @property
    def error(self) -> str | None:
        """The engine's own error: the first that says more than that the engine ended."""
        specific = [e for e in self.errors if not any(word in e for word in _GENERIC)]
        return next(iter(specific or self.errors), None)

    def to_dict(self) -> Mapping[str, Any]:
        """Return what was read, as plain data."""
        return {**self.values, "version": self.version, "lines": self.lines}
