"""What comes by other doors: run files, GGUF, programs, logs as bytes, requests to a server.

Each is drawn nearly right, then broken: cut off, spliced, with other bytes, with too much of it.
"""

import atexit
import contextlib
import io
import json
import socket
import struct
import tempfile
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from test_laws import TINY

import vrambudget
from fuzz import cases
from fuzz.checks import is_text, strict, told
from vrambudget import VramBudgetError
from vrambudget.cli import main
from vrambudget.cli.magic import load_ipython_extension
from vrambudget.config.foreign.formats import FORMATS, Format
from vrambudget.config.foreign.run_file import is_run_file, read_run_file
from vrambudget.config.foreign.trainers import trainers
from vrambudget.config.job import Job
from vrambudget.config.source import find_model
from vrambudget.pictures.trainers import in_options
from vrambudget.planner.server import serving
from vrambudget.program.catalog import RECORDED
from vrambudget.serving.gguf_types import NUMBERS

_USUAL = ("1", "2", "8", "true", "false", "null")
_VALUES = (
    *("0.1", "auto", "bf16", "gpt2", "[1, 2]", "{a: 1}", "[]", "{}", '""', "''", "~", "on", "0o7"),
    *("-1", ".nan", ".inf", "1e400", "9" * 600, "1:59:59", "2026-13-41", "'\\0'", '"\\u202e"', "|"),
    *("!!int x", "!!bool x", "!!float ''", "!!python/name:os.system", "!!binary a", "!!set {a}"),
    *("&a [*a]", "*a", "&a 1", "&b {<<: *b}", "{<<: [{a: 1}]}", "? [a]"),
)
_TEXTS = (
    b"\x1b]0;a\x07",
    b"\x9b",
    b"\0",
    b"\r",
    b"\n",
    b"- " * 40,
    b"[" * 70,
    b"{" * 70,
    b"a." * 30,
)
_PATHS = (
    "",
    "index.html",
    "%00",
    "a%00b",
    "..",
    "../x",
    "%2e%2e/x",
    "evil",
    "//e/..",
    "\x80",
    "?#y",
)
_HEADERS = (
    "Host: a",
    "Range: bytes=0-1",
    "If-Modified-Since: x",
    "Content-Length: -1",
    ":",
    "a" * 70_000,
)
_SIZES = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 50, "num_hidden_layers": 3}
_SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2}
_FACTS = (
    *(
        0,
        1,
        -1,
        10**17,
        10**30,
        None,
        True,
        0.5,
        "",
        "t1",
        "t999",
        "@x",
        "=",
        "=-1",
        "=batch*10**17",
    ),
    *("~", "~bfloat16", "~x", "^", "^like x9", "^drop x0 9", "a" * 2000, "\x1b[2J"),
    *("linear.linear", "length", "batch", "new"),
    *([], {}, [[]], {"slice": [0, 1, 0]}, {"slice": None}, {"each": "t1"}),
)
_MODELS = ("gpt2", "llama-3.1-8b", "org/none", "./x.json", "", "gp\0t2", 7, None, ["gpt2"])


def run_file(rng: Random, formats: Sequence[Format] = FORMATS) -> tuple[str, bytes]:
    """Return the suffix and the bytes of a file that describes a run."""
    known = rng.choice(formats)
    count = min(len(known.table), rng.randrange(6))
    keys = [*rng.sample(sorted(known.table), count), *rng.sample(sorted(known.marks), 1)]
    keys += rng.sample(sorted(Job.model_fields), rng.choice((0, 0, 0, 1)))
    keys = [key for key in dict.fromkeys(keys) if key != known.model_key]
    suffix = rng.choice((".yaml", ".yaml", ".toml", ".json"))
    model = rng.choice(_MODELS[:2] if rng.random() < 0.8 else _MODELS)
    if suffix == ".json":
        values = {key: json.loads(rng.choice(_USUAL)) for key in keys}
        values |= {rng.choice([*keys, "x"]): cases.anything(rng)} if rng.random() < 0.5 else {}
        data = json.dumps({known.model_key or "model": model, **values}).encode()
    else:
        sign = " = " if suffix == ".toml" else ": "
        usual = _USUAL[:-1] if suffix == ".toml" else _USUAL
        lines = [f"{known.model_key or 'model'}{sign}{json.dumps(model)}"]
        lines += [f"{key}{sign}{rng.choice(usual)}" for key in keys]
        if rng.random() < 0.5:
            at = rng.randrange(len(lines))
            lines[at] = f"{lines[at].split(sign)[0]}{sign}{rng.choice(_VALUES)}"
        data = "\n".join(lines).encode()
    return suffix, broken(rng, data)


def broken(rng: Random, data: bytes) -> bytes:
    """Return the bytes, or at times something made of them."""
    at, how = rng.randrange(len(data) + 1), rng.randrange(12)
    if how == 0:
        return data[:at]
    if how == 1:
        return data[:at] + rng.choice(_TEXTS) + data[at:]
    return data[:at] + data[at // 2 :] if how == 2 else data


def gguf(rng: Random) -> bytes:
    """Return a GGUF file's header, with some of its counts wrong."""

    rate = rng.choice((0, 0.01, 0.05))

    def any_of(right: int, wrong: Sequence[int]) -> int:
        return rng.choice(wrong) if rng.random() < rate else right

    def count(n: int) -> bytes:
        wrong = (n + 1, 0, 2**24, 2**31, 2**63, 2**64 - 1)
        return struct.pack("<Q", rng.choice(wrong) if rng.random() < rate else n)

    def text(word: str) -> bytes:
        return count(len(word)) + word.encode()

    sizes = {"block_count": 2, "embedding_length": 64, "context_length": 128}
    sizes |= {"attention.head_count": 2, "attention.head_count_kv": 2, "feed_forward_length": 96}
    values = [text("general.architecture") + struct.pack("<I", 8) + text("llama")]
    for name, size in sizes.items():
        kind = any_of(4, (5, 7, 8, 9, 12, 99))
        size = any_of(size, (0, 1, 7, 2**31, 2**32 - 1))  # noqa: PLW2901 - or another one
        values.append(text(f"llama.{name}") + struct.pack("<II", kind, size))
    tokens = struct.pack("<I", any_of(8, (4, 9, 77))) + count(3)
    values.append(text("tokenizer.ggml.tokens") + struct.pack("<I", 9) + tokens + text("a") * 3)
    tensors = []
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"):
        dimensions = any_of(2, (0, 1, 5, 2**32 - 1))
        shape = [any_of(64, (96, 0, 2**40, 2**64 - 1)) for _ in range(min(dimensions, 5))]
        kind = any_of(rng.choice([*NUMBERS]), (999, 2**32 - 1))
        packed = struct.pack(f"<I{len(shape)}QIQ", dimensions, *shape, kind, 0)
        tensors.append(text(name) + packed)
    rng.shuffle(values)
    head = b"GGUF" + struct.pack("<I", any_of(3, (2, 1, 2**31)))
    return broken(rng, head + count(3) + count(len(values)) + b"".join([*values, *tensors]))


def program(rng: Random) -> bytes:
    """Return a program's file with some of its facts changed, or lines gone, moved or twice."""
    first, *lines, _ = rng.choice(_programs())
    for _ in range(rng.choice((1, 1, 2, 5))):
        i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
        how = rng.randrange(12)
        if how == 0:
            del lines[i]
        elif how == 1:
            lines.insert(i, lines[j])
        elif how == 2:
            lines[i], lines[j] = lines[j], lines[i]
        else:
            word, _, fact = lines[i if rng.random() < 0.6 else i % 60].partition(" ")
            lines[i] = f"{word} {json.dumps(changed(rng, json.loads(fact)))}"
    text = "\n".join([first, *lines, f"end {len(lines) + 1}", ""])
    return broken(rng, text.encode()) if rng.random() < 0.1 else text.encode()


@cache
def _programs() -> list[list[str]]:
    texts = [(RECORDED / f"{name}.program").read_text() for name in ("bloom", "ernie", "nemotron")]
    sizes = f'"sizes": {json.dumps(_SIZES)}'
    return [text.replace("{", "{" + sizes + ", ", 1).splitlines() for text in texts]


def changed(rng: Random, fact: Any) -> Any:
    """Return a value with one part of it another."""
    parts = (
        [*range(len(fact))] if isinstance(fact, list) else [*fact] if fact.__class__ is dict else []
    )
    if not parts or rng.random() < 0.2:
        return rng.choice(_FACTS)
    inner = fact.copy()
    at = rng.choice(parts)
    inner[at] = changed(rng, fact[at])
    return inner


def request(rng: Random, token: str) -> bytes:
    """Return a request to the page's server."""
    path = "/".join(rng.sample(_PATHS, rng.randrange(3)))
    start = rng.choice((f"/{token}/", f"/{token}/", f"/{token}", "/", "//evil/", "http://evil/"))
    method = rng.choice((*["GET"] * 7, "HEAD", "POST", "\x1b", ""))
    lines = [f"{method} {start}{path} HTTP/{rng.choice(('1.0', '1.0', '1.0', '1.1', '9', 'x'))}"]
    lines += rng.sample(_HEADERS, rng.choice((0, 0, 1, 2)))
    data = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    return broken(rng, data) + (b"\r\n\r\n" if rng.random() < 0.9 else b"")


def read(rng: Random) -> str:
    """Hold a run's file against its reader, and what it says against an estimate's."""
    suffix, data = run_file(rng)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"run{suffix}"
        file.write_bytes(data)
        try:
            if is_run_file(file):
                read_run_file(file).on(rng.choice((1, 2)))
            found = find_model(file).on(rng.choice((None, 1, 2)), parallel=None)
        except VramBudgetError as error:
            told(error)
            return "names no model" if "names no model" in error.message else "refused"
    assert is_text(found.name)
    return "read"


def trained(rng: Random) -> str:
    """Hold a file or a command of a trainer of pictures against what it is in options."""
    known = [trainer.known for trainer in trainers() if trainer.known.marks]
    suffix, data = run_file(rng, known)
    scripts = [name for trainer in trainers() for name in trainer.own.get("scripts", ())]
    keys = rng.sample(sorted(rng.choice(known).table), 3)
    values = rng.choices((*_USUAL, *_VALUES, *_MODELS[:4], "a" * 400), k=len(keys))
    words = [word for pair in zip(keys, values, strict=True) for word in (f"--{pair[0]}", pair[1])]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"run{suffix}"
        file.write_bytes(data)
        named = [str(file)] if rng.random() < 0.5 else [rng.choice(scripts), *words]
        try:
            found = in_options([*rng.sample(("flux-dev", "--gpu=24GB", "é"), 1), *named])
        except VramBudgetError as error:
            told(error)
            return "refused"
    assert all(isinstance(word, str) for word in found)
    return "in options"


def served(rng: Random) -> str:
    """Hold a GGUF header against what llama.cpp would load."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.gguf"
        file.write_bytes(gguf(rng))
        try:
            found = vrambudget.serve(file, gpu="12GB")
        except VramBudgetError as error:
            told(error)
            return "refused"
    json.loads(found.to_json())
    assert is_text(found.text)
    return "answered"


def played(rng: Random) -> str:
    """Hold a program's file against an estimate of what it says."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.program"
        file.write_bytes(program(rng))
        mode = rng.choice(({}, {"mode": "eval"}, {"checkpointing": "full"}, {"lora_rank": 4}))
        try:
            found = vrambudget.estimate(
                file, batch=2, block=16, gpu="24GB", use_cache=False, **mode
            )
        except VramBudgetError as error:
            told(error)
            return "refused"
    found.check()
    strict(found.to_json())
    assert is_text(str(found))
    return "answered"


def logged(rng: Random) -> str:
    """Hold a log, as bytes of a file, against the command line."""
    data = broken(rng, cases.log(rng).encode(errors="surrogatepass"))
    out, err = io.StringIO(), io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.log"
        file.write_bytes(data)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(["explain", str(file), "--format", rng.choice(("text", "json"))])
    assert code in {0, 2}
    assert is_text(out.getvalue())
    assert is_text(err.getvalue())
    assert err.getvalue().startswith("error: ") == (code == 2)
    return f"exit code {code}"


@cache
def _budget() -> str:
    tiny = {"model_type": "gpt2", **TINY["gpt2"]}
    return vrambudget.estimate(tiny, block=8, gpu="12GB").to_json()


def saved(rng: Random) -> str:
    """Hold a saved budget, parts of it changed, against its reader and the reports."""
    values = json.loads(_budget())
    part = rng.choice(("job", "job", *values))
    values[part] = changed(rng, values[part])
    try:
        found = vrambudget.Budget.from_json(cases.text_of(rng, values))
    except VramBudgetError as error:
        told(error)
        return "refused"
    strict(found.to_json())
    assert is_text(f"{found}{found!r}{found._repr_html_()}")
    return "read"


class _Shell:
    """Notes the magics that are registered; `config` is a variable of the notebook."""

    def __init__(self, rng: Random) -> None:
        self.user_ns = {"config": cases.model(rng), "In": [""]}
        self.magics = dict[str, Any]()

    def register_magic_function(self, magic: Any, _: str, name: str) -> None:
        self.magics[name] = magic


def noted(rng: Random) -> str:
    """Hold a line of a notebook against `%vram`: a budget, or what a terminal would show."""
    shell = _Shell(rng)
    load_ipython_extension(shell)
    line = rng.choice((" ", " ", " '", ' "', " \\")).join([*cases.words(rng), "--block", "8"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = shell.magics["vram"](line)
    assert is_text(out.getvalue() + err.getvalue())
    return "said" if found is None else "answered"


# A forked process drops what its parent registered to run at exit. The page stays: what ends it
# waits for a thread that only the parent has, as sweeps of later tests did on Python 3.13.
_PAGE = contextlib.ExitStack()
atexit.register(_PAGE.close)


@cache
def _page() -> str:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-page-"))
    (folder / "index.html").write_text("<p>page</p>")
    (folder / "evil").mkdir()
    return _PAGE.enter_context(serving(folder))


def asked(rng: Random) -> str:
    """Hold a request against the page's server: an answer, no redirect, and nothing on stderr."""
    address = _page()
    host, _, token = address.removeprefix("http://").rstrip("/").partition("/")
    name, port = host.split(":")
    err = io.StringIO()
    with contextlib.redirect_stderr(err), socket.create_connection((name, int(port)), 20) as client:
        with contextlib.suppress(OSError):  # it may answer, and close, before it has read all
            client.sendall(request(rng, token))
            client.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(ConnectionError):
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert b"\nLocation" not in answer
    assert not err.getvalue(), err.getvalue()
    assert threading.active_count() < 50
    words = answer.split(maxsplit=2)
    return f"status {words[1].decode()}" if answer.startswith(b"HTTP/") else "no status"


DOORS = {
    "run files": read,
    "trainers": trained,
    "GGUF": served,
    "programs": played,
    "logs": logged,
    "saved budgets": saved,
    "notebooks": noted,
    "HTTP": asked,
}
