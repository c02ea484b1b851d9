"""A training log as lines: cleaned, sorted by rank, with tracebacks and progress read from it.

A launcher mixes the ranks' lines; `streams` separates them by their prefix, so that a traceback
stays with its rank. A line without a prefix belongs to the rank that wrote last.

Not modelled: `rich` tracebacks in boxes, and IPython's before version 8.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK = re.compile(
    r"^\W{0,3}(?:\[?\b(?:default|rank)\s?[:=]?\s?(\d{1,6})\]?:\s?"
    r"|\([^)\n]{0,200}\brank=(\d{1,6})\b[^)\n]{0,200}\)\s?)"
)
_MARGIN = re.compile(r"^(?:\s*[>#│┃|]+)+\s?")  # quotes, comments, boxes
_BARS = "│┃|"
_PROGRESS_BAR = re.compile(r"^[^|]*\d%\|[^|]*\|\s*(\d{1,15})/\d+ \[[^\]]*\]")
_STEP = re.compile(
    r"\b(?:iter|iteration|step|global_step)s?\b\W{0,3}(\d{1,15})(?!\d)", re.IGNORECASE
)
_NOT_STEPS = re.compile(r"load|shard|fetch|map|token|file", re.IGNORECASE)
_FRAME = re.compile(
    r'File "(?P<file>[^"]+)", line (?P<line>\d{1,9}), in (?P<function>\S+)'
    r"|File (?P<file8>\S+?):(?P<line8>\d{1,9}), in (?P<function8>[\w.<>]+)\("  # IPython
)
_MOST_LINES, _MOST_CHARACTERS = 300_000, 2**23
_LINES_BEFORE, _LINES_AFTER = 1000, 200  # of a message: its traceback, and its wrapped lines
_CHARACTERS_NEARBY = 2**17
_MESSAGES = (
    *("out of memory", "Out of memory", "OutOfMemory", "OUT_OF_MEMORY", "Tried to allocate"),
    *("memory allocation", "No available memory", "ot enough memory", "EXHAUSTED", "ALLOC_FAILED"),
    *("OOM when allocating", "cudaSuccess. 2 vs 0", "CUDA error", "more system memory"),
)
_WORDS = (
    *("memory", "Memory", "MEMORY", "alloc", "Alloc", "ALLOC", "CUBLAS", "CUDNN", "seq len"),
    *("max_model_len", "tokens"),
)
_SHOWN_BY_IPYTHON = 40  # lines of a frame, at most
_LIBRARY = re.compile(r"site-packages|dist-packages|[\\/]lib[\\/]python|torchinductor|^<")


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log, without colours, prefix and margin; `number` counts from 1."""

    number: int
    text: str


@dataclass(frozen=True, slots=True)
class TracebackFrame:
    """One frame of a traceback."""

    file: str
    line: int
    function: str
    code: str

    @property
    def is_library(self) -> bool:
        """Return whether the file is installed code and not the user's own."""
        return _LIBRARY.search(self.file) is not None


def streams(text: str) -> dict[int | None, list[LogLine]]:
    """Return the log's lines by rank (None: no rank is named)."""
    by_rank: dict[int | None, list[LogLine]] = {}
    rank: int | None = None
    for number, raw in _numbered(_ANSI.sub("", text).replace("\r\n", "\n")):
        for part in _parts(raw):
            if _progress_bar(part):  # one rank draws it, every rank is as far
                for lines in by_rank.values() or [by_rank.setdefault(None, [])]:
                    lines.append(LogLine(number, part))
                continue
            prefix = _RANK.match(part)
            if prefix:
                rank = int(prefix[1] or prefix[2])
            bare = part[prefix.end() :] if prefix else part
            by_rank.setdefault(rank, []).append(LogLine(number, _without_margins(bare)))
    return by_rank


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines, with their numbers."""
    for first, part in excerpts(text):
        yield from enumerate(part.split("\n"), first)


def excerpts(text: str) -> list[tuple[int, str]]:
    """Return the parts of a log that are read, with the number of each one's first line.

    That is all of it, but for a log that takes seconds to read: there it is what stands around the
    words of messages, or around weaker ones, as much as takes a second, from its beginning, and
    around the last.
    """
    lines = text.count("\n") + text.count("\r")
    if lines < _MOST_LINES and len(text) < _MOST_CHARACTERS:
        return [(1, text)]
    text = text.replace("\r", "\n")
    return _excerpts(text, _MESSAGES) or _excerpts(text, _WORDS)


def _excerpts(text: str, words: Sequence[str]) -> list[tuple[int, str]]:
    found = []
    lines, characters, end, number = _MOST_LINES, _MOST_CHARACTERS, 0, 1
    places = {word: text.find(word) for word in words}
    while places := {word: at for word, at in places.items() if at >= 0}:
        start, stop = _nearby(text, min(places.values()), end)
        number += text.count("\n", end, start)
        found.append((number, text[start:stop]))
        here = text.count("\n", start, stop)
        lines, characters = lines - here - 1, characters - (stop - start)
        number, end = number + here, stop
        if min(lines, characters) < 0:
            if (last := max(text.rfind(word) for word in words)) >= end:
                start, stop = _nearby(text, last, end)
                found.append((number + text.count("\n", end, start), text[start:stop]))
            break
        places = {w: at if at >= end else text.find(w, end) for w, at in places.items()}
    return found


def _nearby(text: str, at: int, earliest: int) -> tuple[int, int]:
    """Return where the lines around a place begin and end; none begins before `earliest`."""
    earliest = max(earliest, at - _CHARACTERS_NEARBY)
    latest = min(len(text), at + _CHARACTERS_NEARBY)
    start, stop = at, at
    for _ in range(_LINES_BEFORE):
        if (start := text.rfind("\n", earliest, start)) < 0:
            break
    for _ in range(_LINES_AFTER):
        if (stop := text.find("\n", stop + 1, latest)) < 0:
            break
    return max(start, earliest), latest if stop < 0 else stop


def _without_margins(text: str) -> str:
    """Return a line without the bars of a box at its ends, quotes and comments before it."""
    whole = text.rstrip()
    core = whole.rstrip(_BARS)
    return _MARGIN.sub("", text if core == whole else core.rstrip())


def _parts(raw: str) -> Iterator[str]:
    """Yield one line of a file as it looked on the screen: progress bars, then what followed."""
    for part in raw.split("\r"):  # a progress bar writes over itself
        bar = _progress_bar(part)
        if bar:
            yield bar[0]
        if not bar or bar.end() < len(part):
            yield part[bar.end() :] if bar else part


def _progress_bar(text: str) -> re.Match[str] | None:
    return _PROGRESS_BAR.match(text) if "%|" in text else None


def frames_before(lines: list[LogLine]) -> tuple[TracebackFrame, ...]:
    """Return the frames of the last traceback in `lines`, outermost first."""
    headers = [
        i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line.text
    ]
    block = [line.text for line in lines[headers[-1] if headers else 0 :]]
    found = [(i, match) for i, text in enumerate(block) if (match := _FRAME.search(text))]
    return tuple(
        TracebackFrame(
            file=match["file"] or match["file8"],
            line=int(match["line"] or match["line8"]),
            function=match["function"] or match["function8"],
            code=_code_after(block, i, match),
        )
        for i, match in found
    )


def _code_after(block: list[str], i: int, match: re.Match[str]) -> str:
    """Return the source line of the frame at `i`: the next line, less the logger's prefix."""
    if match["file8"]:
        arrow = re.compile(rf"(?<!-)-+> {match['line8']} (.*)")
        shown = block[i + 1 : i + 1 + _SHOWN_BY_IPYTHON]
        return next((hit[1].strip() for text in shown if (hit := arrow.search(text))), "")
    prefix = match.string[: match.start()].rstrip()
    code = block[i + 1].removeprefix(prefix).strip() if i + 1 < len(block) else ""
    return "" if _FRAME.search(code) else code


def without_progress(text: str) -> str:
    """Return the line without the progress bar that stands at its start."""
    bar = _progress_bar(text)
    return text[bar.end() :] if bar else text


def progress_before(lines: list[LogLine]) -> int | None:
    """Return the number of the last training step that `lines` show, or None."""
    for line in reversed(lines):
        bar = _progress_bar(line.text)
        for hits in ([bar] if bar else [], [*_STEP.finditer(line.text)]):
            if hits and not _NOT_STEPS.search(line.text[: hits[-1].start(1)]):
                return int(hits[-1][1])
    return None
