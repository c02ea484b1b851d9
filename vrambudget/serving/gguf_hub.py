"""The header of a GGUF file on the Hugging Face hub: its first bytes alone, by range requests.

    api/models/ORG/NAME/tree/main      which files the repository has
    ORG/NAME/resolve/main/FILE         a mebibyte at a time, until the header ends

Source: the hub's API (huggingface.co/docs/hub/api), and RFC 9110, section 14 (range requests).
Not modelled: revisions other than main; a token is read from HF_TOKEN alone.
"""

import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from vrambudget.config.cards import card_of_repository
from vrambudget.config.hub import REPOSITORY, is_offline
from vrambudget.errors import VramBudgetError
from vrambudget.serving.gguf import PART, Gguf, joined, read_header

_BLOCK = 2**20
_MOST_BYTES = 2**26  # of a header, and of a list of files
_TIMEOUT = 5  # seconds


def is_of_files(name: str, kind: str | None) -> bool:
    """Return whether a name is that of a repository whose GGUF files say what they hold.

    One with a model card has a configuration here, and a path that exists is no repository.
    """
    if not REPOSITORY.fullmatch(name) or card_of_repository(name) or Path(name).exists():
        return False
    return kind is not None or "gguf" in name.lower()


def hub_header(repository: str, kind: str | None) -> tuple[Gguf, str]:
    """Return the header of a repository's file of this kind, and the file's name."""
    files = _files(repository)
    chosen = _of_kind(repository, sorted(files), kind)
    parts = [
        read_header(_Remote(_address(repository, name), files[name]), files[name], name)
        for name in chosen
    ]
    return joined(parts), chosen[0]


def _of_kind(repository: str, names: Sequence[str], kind: str | None) -> list[str]:
    """Return the files of a quantisation, all parts of a model."""
    models = [name for name in names if "mmproj" not in name.lower() and "imatrix" not in name]
    wanted = (kind or "Q4_K_M").lower()
    word = re.compile(rf"(^|[-._/]){re.escape(wanted)}([-./]|$)")
    found = [name for name in models if word.search(name.lower())]
    first = next(iter(found), None)
    if first is None:
        raise VramBudgetError(
            f"{repository} has no file of {kind or 'Q4_K_M'}",
            hint=f"it has {', '.join(models[:20]) or 'no GGUF file'}",
        )
    match = PART.fullmatch(first)
    return [name for name in found if match and name.startswith(match[1])] or [first]


def _files(repository: str) -> dict[str, int]:
    """Return the GGUF files of a repository, with their bytes."""
    address = f"{_endpoint()}/api/models/{repository}/tree/main?recursive=1"
    answer = _read(address, repository)
    try:
        listed = json.loads(answer)
        return {
            str(entry["path"]): int(entry["size"])
            for entry in listed
            if entry.get("type") == "file" and str(entry["path"]).endswith(".gguf")
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise VramBudgetError("the hub's answer is no list of files", where=address) from None


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _address(repository: str, name: str) -> str:
    return f"{_endpoint()}/{repository}/resolve/main/{quote(name)}"


def _read(address: str, what: str, *, span: tuple[int, int] | None = None) -> bytes:
    """Return what an address answers, or a span of it. Raises VramBudgetError."""
    from urllib.error import HTTPError  # noqa: PLC0415 - slow to import, and rarely needed
    from urllib.request import Request, urlopen  # noqa: PLC0415

    hint = "with a network, or hand in the file: vrambudget run model.gguf --gpu GPU"
    if is_offline() or not address.startswith(("https://", "http://")):
        raise VramBudgetError(f"{what} is on the hub, and HF_HUB_OFFLINE is set", hint=hint)
    headers = {"User-Agent": "vrambudget"}
    if token := os.environ.get("HF_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    if span:
        headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
    try:
        with urlopen(Request(address, headers=headers), timeout=_TIMEOUT) as answer:  # noqa: S310
            is_part = answer.status == 206  # noqa: PLR2004 - Partial Content
            found: bytes = answer.read(span[1] - span[0] if span else _MOST_BYTES)
    except HTTPError as error:
        error.close()
        raise VramBudgetError(
            f"the hub answers {error.code} for {what}",
            hint="check its spelling; a private or gated one needs HF_TOKEN",
        ) from None
    except (OSError, ValueError) as error:
        raise VramBudgetError(
            f"{what} could not be read from the hub: {error}", hint=hint
        ) from None
    if span and span[0] and not is_part:
        raise VramBudgetError("the hub does not answer range requests", where=address)
    return found


class _Remote(io.BytesIO):
    """The first bytes of a file on the hub, of which blocks are fetched as they are read."""

    def __init__(self, address: str, size: int) -> None:
        super().__init__()
        self.address, self.size, self.fetched = address, size, 0

    def read(self, count: int | None = -1) -> bytes:
        """Return so many bytes, fewer at the end."""
        at = self.tell()
        end = self.size if count is None or count < 0 else min(at + count, self.size)
        while self.fetched < end:
            if self.fetched >= _MOST_BYTES:
                raise VramBudgetError("its header is larger than 64 MiB", where=self.address)
            span = (self.fetched, min(self.fetched + _BLOCK, self.size))
            block = _read(self.address, self.address, span=span)
            if len(block) < span[1] - span[0]:
                raise VramBudgetError("the hub's answer is too short", where=self.address)
            self.seek(self.fetched)
            self.write(block)
            self.fetched += len(block)
            self.seek(at)
        return super().read(end - at)
