"""A repository of the Hugging Face hub: its `config.json`, from the local cache or downloaded.

The cache is read without importing anything: HUB/models--ORG--NAME/refs/main names the commit, and
snapshots/COMMIT/ holds the files. Only what is not there is downloaded by `huggingface_hub`.

Source: huggingface_hub's guide "Understand caching", and its environment variables.
Not modelled: revisions other than main.
"""

import os
import re
from importlib import import_module
from pathlib import Path

from vrambudget.config.config_file import CONFIG_NAME
from vrambudget.config.settings import show
from vrambudget.errors import VramBudgetError
from vrambudget.files import home_of, named_by, read_file

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")

_LONGEST_COMMIT = 1000

_FAILURES = {
    # An exception's class in huggingface_hub: what happened, what to do. The special ones first.
    "GatedRepoError": (
        "its publisher gives access on request",
        "accept its licence on its page, then log in with `hf auth login`",
    ),
    "RepositoryNotFoundError": (
        "the hub has no such repository, or it is private",
        "check the spelling; for a private one, log in with `hf auth login`",
    ),
    "LocalEntryNotFoundError": (
        "it is not in the local cache and the hub is out of reach",
        f"go online once, or copy its {CONFIG_NAME} here and give the path",
    ),
    "OfflineModeIsEnabled": (
        "it is not in the local cache and HF_HUB_OFFLINE is set",
        f"unset HF_HUB_OFFLINE, or copy its {CONFIG_NAME} here and give the path",
    ),
    "EntryNotFoundError": (
        f"it holds no {CONFIG_NAME}",
        "only models of transformers carry one",
    ),
}


_CACHES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
}
"""Variables that name a folder, the first that is set counts: where the cache lies in it."""


def hub_config(repository: str) -> Path:
    """Return the path of a repository's configuration. Raises VramBudgetError if there is none."""
    return _cached(repository) or _downloaded(repository)


def hub_cache() -> Path:
    """Return the folder of the local cache, from the variables that huggingface_hub reads."""
    for variable, below in _CACHES.items():
        if folder := os.environ.get(variable):
            return named_by(variable, folder) / below
    return home_of(Path("~/.cache")) / "huggingface" / "hub"


def _cached(repository: str) -> Path | None:
    folder = hub_cache() / f"models--{repository.replace('/', '--')}"
    try:
        commit = read_file(folder / "refs" / "main", "cache", _LONGEST_COMMIT).decode().strip()
        config = folder / "snapshots" / Path(commit).name / CONFIG_NAME
        return config if config.is_file() else None
    except (OSError, ValueError):  # not there, not ours to read, or no text
        return None


def _downloaded(repository: str) -> Path:
    try:
        hub = import_module("huggingface_hub")
    except ValueError as error:  # it reads its variables as it is imported
        raise _failure(repository, error) from None
    except ImportError:
        raise VramBudgetError(
            f"{repository} is not in the local cache, and huggingface_hub is not installed",
            hint=f"pip install huggingface_hub, or copy its {CONFIG_NAME} here and give the path",
        ) from None
    if not _within_reach():
        what, hint = _FAILURES["LocalEntryNotFoundError"]
        raise VramBudgetError(f"{repository} could not be downloaded: {what}", hint=hint)
    try:
        return Path(hub.hf_hub_download(repository, CONFIG_NAME))
    except Exception as error:  # noqa: BLE001 - whatever a download raises, a sentence comes out
        raise _failure(repository, error) from None


def is_offline() -> bool:
    """Return whether HF_HUB_OFFLINE is set, as huggingface_hub reads it: "0" is not."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def _within_reach() -> bool:
    """Check within seconds whether the hub answers: huggingface_hub retries for half a minute."""
    import socket  # noqa: PLC0415 - slow to import, and rarely needed
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import getproxies  # noqa: PLC0415

    if is_offline() or getproxies():
        return True  # it says so itself; a proxy is its own matter
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    try:
        address = urlsplit(endpoint)
        port = address.port or (443 if address.scheme == "https" else 80)
    except ValueError as error:
        raise VramBudgetError(
            f"HF_ENDPOINT is {show(endpoint)}, which is no address: {error}",
            hint="it should be like https://huggingface.co",
        ) from None
    try:
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except (OSError, ValueError):  # a host's name that cannot be one is a ValueError
        return False
    return True


def _failure(repository: str, error: Exception) -> VramBudgetError:
    classes = {each.__name__ for each in type(error).__mro__}
    for name, (what, hint) in _FAILURES.items():
        if name in classes:
            return VramBudgetError(f"{repository} could not be downloaded: {what}", hint=hint)
    lines = str(error).splitlines() or [type(error).__name__]
    return VramBudgetError(
        f"{repository} could not be downloaded: {lines[0]}",
        hint=f"copy its {CONFIG_NAME} here and give the path",
    )
