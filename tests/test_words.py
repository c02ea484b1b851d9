"""The reader's words: what is printed, and the pages that readers start with, keep to the glossary.

docs/glossary.md has the words; those that are retired here are a workshop's, which no reader knows.
"""

import ast
import contextlib
import io
import re
import tokenize

import pages
import pytest
from test_tips import texts

from vrambudget.cli import main
from vrambudget.cli.examples import COMMON

RETIRED = re.compile(
    r"(?<!model )\bcards?\b|\b(told|walked|laid down|births|unasked|ways out|at first sight"
    r"|stand-ins?|barely|doubts?|surroundings|no known change"
    r"|(is|are|was|not|how) counted|(is|are) taken (as|to be)|turn of)\b",
    re.IGNORECASE,
)
PAGES = sorted((pages.ROOT / "docs").glob("*.md"))
ANSWERS = [
    "gpt2 --batch 64 --block 1024 --gpu 12GB",
    "gpt2 --batch 2 --block 64 --parallel ddp --gpu 2xt4",
    "gpt2 --mode generate --prompt 64 --new 16 --gpu 8GB",
    "plan gpt2 --gpu 8GB --block 256 --batch 1",
    "plan gpt2-xl --gpu 1GiB --block 64 --most 2",
    "fit gpt2 --block 64 --gpu 1GiB",
    *(f"{command} --help" for command in COMMON if command not in {"serve", "rehearse"}),
]


def retired(text: str) -> list[str]:
    return [found[0] for found in RETIRED.finditer(text)]


@pytest.mark.parametrize("command", ANSWERS)
def test_what_is_printed_has_no_retired_word(command, capsys):
    with contextlib.suppress(SystemExit):  # --help ends so
        main(command.split())
    printed = capsys.readouterr()
    assert retired(printed.out + printed.err) == []


@pytest.mark.parametrize("name", ["README.md", *(f"docs/{page.name}" for page in PAGES)])
def test_a_page_has_no_retired_word(name):
    text = pages.prose(pages.ROOT / name)
    assert retired(re.sub(r"`[^`]+`|\]\([^)]+\)|<!--.*?-->", "", text)) == []


def test_no_message_has_a_retired_word():
    keys = re.compile(r"`card`|\{\"card\"|log of the card|by card|CUDA card|may follow")
    found = [
        (file.name, text)
        for file in sorted((pages.ROOT / "vrambudget").rglob("*.py"))
        for text in texts(ast.parse(file.read_text(encoding="utf-8")))
        if " " in text and retired(keys.sub("", text))
    ]
    assert found == []


def names_and_remarks(text: str) -> tuple[set[str], list[str]]:
    """Return the words of a module's names, and its comments and docstrings."""
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    names = {token.string for token in tokens if token.type == tokenize.NAME}
    words = {word.lower() for name in names for word in re.findall(r"[A-Z]*[a-z]+|[A-Z]+", name)}
    remarks = [t.string for t in tokens if t.type in {tokenize.COMMENT, tokenize.STRING}]
    return words | names, remarks


def test_code_has_no_retired_word_in_names_comments_and_docstrings():
    names = {"walked", "walker", "told", "births", "unasked", "room_bytes", "gpu_with_room"}
    names |= {"StandIn", "CountedLoop", "as_counted", "was_counted", "counted_of"}
    names |= {"follower", "Follower", "followed_in", "followed_version", "ranked", "judged"}
    names |= {"judging", "TwoPools", "is_settled", "Floor", "_Taken", "CardPeak", "on_card"}
    names |= {"is_on_card", "full_card", "card_now", "visible_cards", "CARD"}
    names |= {"ours", "theirs", "course", "around", "several", "counted", "_taken", "TAKEN"}
    names |= {"room", "rooms", "drawn", "alike"}
    names |= {"Following", "followed", "follows", "settled", "Layout", "parse_layout"}
    remark = re.compile(r"\b(walked|told|laid down|births|unasked|ways out|at first sight)\b")
    for file in sorted((pages.ROOT / "vrambudget").rglob("*.py")):
        words, remarks = names_and_remarks(file.read_text(encoding="utf-8"))
        assert not words & names, file
        assert not [found[0] for text in remarks for found in remark.finditer(text)], file


def test_a_release_is_a_screen():
    releases = pages.text_of(pages.ROOT / "CHANGELOG.md").split("\n## ")[1:]
    assert releases
    assert all(len(release.splitlines()) <= 55 for release in releases)


def test_a_class_has_its_name_alone():
    """But for mirrors of families' code, whose classes are named as the originals are."""
    homes: dict[str, list[str]] = {}
    for file in sorted((pages.ROOT / "vrambudget").rglob("*.py")):
        path = file.relative_to(pages.ROOT).as_posix()
        if not re.search(r"/models/|measure/nanogpt", path):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(path)
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_the_glossary_has_the_words_of_a_verdict():
    glossary = pages.text_of(pages.ROOT / "docs" / "glossary.md")
    for word in (
        "fits only if nothing else uses the GPU",
        "does not fit",
        "not considered",
        "tight",
    ):
        assert word in glossary
