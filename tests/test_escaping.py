"""Names, keys, paths, tracebacks and GPU names of other people reach every format as text.

OSC (a title, a link, the clipboard), C1 controls, bidirectional marks, HTML and Markdown.
"""

import contextlib
import io
import json
import re
from html.parser import HTMLParser
from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vrambudget.cli import main
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import escape, escaped, for_terminal, in_markdown, json_text
from vrambudget.estimator import estimate
from vrambudget.oom.explain import explain, render_explanation
from vrambudget.oom.message import parse_oom

HOSTILE = (
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil\x1b\\",
    "\x9b2J",
    "\x1b[31m",
    "\u202egpj.exe\u2066",
    "\x00\x08\r",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "[x](javascript:alert(1))",
    "*b* _i_ `c` | d",
    "\u2028\u200f",
    "=cmd()",
)
TINY = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 50}
FORMATS = ("txt", "md", "csv", "json", "html")
FORMATS += ("svg",) * bool(find_spec("matplotlib"))  # an extra
hostile = st.lists(st.sampled_from([*HOSTILE, "a", "/", " "]), min_size=1, max_size=4).map("".join)
few = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def is_text(text):
    """Whether nothing in an output is a terminal's to obey."""
    return all(c.isprintable() or c in "\n\t" for c in text)


class Tags(HTMLParser):
    """Collects what a browser would run or fetch."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        names = {name for name, _ in attrs}
        if tag in ("img", "iframe", "link", "a") or any(name.startswith("on") for name in names):
            self.found.append(tag)
        if tag == "script":
            self.found.append(tag)


def scripts(text):
    tags = Tags()
    tags.feed(text)
    return tags.found


def run(*words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(words)
    return code, out.getvalue(), err.getvalue()


@few
@given(word=hostile)
def test_a_folder_s_name_and_a_key_reach_every_format_as_text(tmp_path, word):
    folder = tmp_path / "models" / "".join(c for c in word if c not in "/\0")
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config.json").write_text(json.dumps({**TINY, word: 1}))
    plain = len(scripts(estimate(TINY, gpu="12GB", block=8)._repr_html_()))
    for suffix in FORMATS:
        file = tmp_path / f"out.{suffix}"
        code, out, err = run(str(folder), "--block", "8", "--gpu", "12GB", "-o", str(file))
        assert (code, is_text(out), is_text(err)) == (0, True, True), err
        text = file.read_text()
        assert is_text(text)
        if suffix == "json":
            assert json.loads(text)["model"]
        if suffix in ("html", "svg"):
            assert set(scripts(text)) <= {"script"}
            assert len(scripts(text)) == (2 if suffix == "html" else 0)
    for suffix in ("table", "json", "markdown"):
        assert is_text(run(str(folder), "--block", "8", "--format", suffix)[1])
    shown = estimate(folder, gpu="12GB", block=8)._repr_html_()
    assert (is_text(shown), len(scripts(shown))) == (True, plain)


@few
@given(word=hostile)
def test_logs_gpu_names_and_records_are_shown_as_text(tmp_path, word):
    line = word.replace("\n", "").replace('"', "")
    frame = f'Traceback (most recent call last):\n  File "{line}", line 7, in {line}\n    {line}\n'
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a"
    log = tmp_path / "train.log"
    log.write_text(frame + oom)
    for form in ("text", "json"):
        code, out, err = run("explain", str(log), "--format", form)
        assert (code, is_text(out), is_text(err)) == (0, True, True)
    assert is_text(render_explanation(explain(parse_oom(frame + oom))))
    assert is_text(run("explain", f"Free memory on device {word} is {word}")[2])
    record = {"id": word, "model": TINY, "batch": 1, "block": 8, "card": word, word: 1}
    (tmp_path / "r.jsonl").write_text(json.dumps({**record, "measured": {"peak_allocated": 1}}))
    for words in (["gpt2", "--gpu", word], ["validate", str(tmp_path / "r.jsonl")], [word]):
        _, out, err = run(*(w.replace("\0", "") for w in words))
        assert is_text(out)
        assert is_text(err)


@pytest.mark.parametrize("word", HOSTILE)
def test_each_function_leaves_nothing_to_obey(word):
    assert escaped(word).isprintable()
    assert is_text(for_terminal(word))
    assert is_text(escape(word))
    assert scripts(escape(word)) == []
    assert in_markdown(word).isprintable()
    assert not re.search(r"(?<!\\)[\[<`|*]", in_markdown(word))
    assert json.loads(json_text({word: [word]})) == {word: [word]}
    assert is_text(json_text({word: [word]}))


def test_only_our_own_colours_pass_where_there_are_colours():
    assert for_terminal("\x1b[1;32mfits\x1b[0m\x1b[2J\n", coloured=True) == (
        "\x1b[1;32mfits\x1b[0m\\x1b[2J\n"
    )
    with pytest.raises(VramBudgetError) as raised:
        raise VramBudgetError("a\x1b]0;b\x07", where="c\u202e", hint="d\x9b")
    assert is_text(raised.value.render())
