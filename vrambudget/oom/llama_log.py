"""What a log of llama.cpp or Ollama says that it holds: buffers of each device, in a table.

    load_tensors:        CUDA0 model buffer size =  4403.49 MiB
    llama_kv_cache:      CUDA0 KV buffer size =  1024.00 MiB       (RS: recurrent states)
    sched_reserve:      CUDA0 compute buffer size =   304.00 MiB
    msg="model weights" device=CUDA0 size="4.1 GiB"                Ollama's own, and "kv cache",
                                                                   "compute graph"; until August
                                                                   2025 buffer=, and backend=

Of several starts in a log it is the last. Sources: llama.cpp, src/llama-model.cpp (load_tensors),
src/llama-context.cpp (sched_reserve); ollama, ml/device.go (Log).
"""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_LINE = re.compile(
    r"(?P<device>[A-Za-z][\w\[\].:-]{0,40}) (?P<part>model |KV |RS |compute |output |)buffer size"
    r" {0,4}= {1,9}(?P<mib>\d{1,9}(?:\.\d{1,4})?) MiB"
)
_OLLAMA = re.compile(
    r'msg="(?P<part>model weights|kv cache|compute graph)" (?:device|buffer|backend)='
    r"(?P<device>\w{1,40})(?: buffer_type=\w{1,40})?"
    r' size="(?P<size>\d{1,9}(?:\.\d{1,4})?) (?P<unit>[KMGT]iB|B)"'
)
_OFFLOADED = re.compile(r"offloaded (\d{1,4})/(\d{1,4}) layers to GPU")
_PARTS = {"": "model", "RS": "KV", "model weights": "model", "kv cache": "KV"} | {
    "compute graph": "compute",
    "output": "compute",
}
_COLUMNS = ("model", "KV", "compute")
_MIB = {"B": 2**-20, "KiB": 2**-10, "MiB": 1.0, "GiB": 2.0**10, "TiB": 2.0**20}
_LONGEST_LINE = 2000


@dataclass(frozen=True, slots=True)
class Start:
    """MiB of each device by part, and how many layers of how many are on GPUs."""

    held: Mapping[str, Mapping[str, float]]
    offloaded: tuple[str, str] | None


def start_of(text: str) -> Start | None:
    """Return what the last start in a log holds, None where no line says it."""
    held = _held(_lines(text, "buffer size"), _LINE) or _held(_lines(text, 'msg="'), _OLLAMA)
    if not held:
        return None
    hits = filter(None, map(_OFFLOADED.search, _lines(text, "offloaded ")))
    last = deque(((hit[1], hit[2]) for hit in hits), maxlen=1)
    return Start(held, last[0] if last else None)


def _lines(text: str, word: str) -> Iterator[str]:
    """Yield the beginnings of the lines that have a word; others are not looked at."""
    at = text.find(word)
    while at >= 0:
        begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        yield text[begin : end if end >= 0 else None][:_LONGEST_LINE]
        at = text.find(word, end) if end >= 0 else -1


def render_start(start: Start) -> str:
    """Return the table."""
    return "\n".join(_table(start))


def _held(lines: Iterator[str], pattern: re.Pattern[str]) -> dict[str, dict[str, float]]:
    """Return MiB of each device by part; a model's first line begins another start."""
    found: dict[str, dict[str, float]] = {}
    loading = False
    for line in lines:
        hit = pattern.search(line)
        if hit is None:
            continue
        part = _PARTS.get(hit["part"].strip(), hit["part"].strip())
        if part == "model" and not loading:
            found = {}
        loading = part == "model"
        groups = hit.groupdict()
        size = float(groups.get("mib") or groups["size"]) * _MIB[groups.get("unit") or "MiB"]
        parts = found.setdefault(hit["device"], dict.fromkeys(_COLUMNS, 0.0))
        parts[part] += size
    return found


def _table(start: Start) -> Iterator[str]:
    yield "llama.cpp's start, as the log says it, in MiB:"
    yield ""
    yield f"{'device':<14}" + "".join(f"{name:>12}" for name in (*_COLUMNS, "all"))
    for device, parts in start.held.items():
        sizes = [parts[name] for name in _COLUMNS]
        yield f"{device:<14}" + "".join(f"{size:12.2f}" for size in (*sizes, sum(sizes)))
    if start.offloaded:
        on_gpus, layers = start.offloaded
        yield ""
        yield f"{on_gpus} of {layers} layers are on GPUs"
        if on_gpus != layers:
            yield "  the others are computed from main memory: fewer bytes there are faster"
    yield ""
    yield "another split, context or file: vrambudget run MODEL:Q4_K_M --gpu GPU --context N"
