"""Model cards: one TOML file for each well-known model, found by name or by its hub repository.

    name = "gpt2"                               how a user asks for it; the file's name too
    title = "GPT-2 124M"
    source = "https://..."                      where the numbers were published
    parameters = 124439808                      sum(p.numel()); shared ones count once
    repositories = ["openai-community/gpt2"]    hub ids that are this model

    [config]                                    the configuration, with its publisher's names
    model_type = "gpt2"

    [job]                                       how it is usually trained: a job's defaults

TOML has no null: in [config] it is written "null". `parameters` includes the head of the
job's task.

Not modelled: revisions of a repository; a model card describes its main branch.
"""

import re
import tomllib
from collections.abc import Iterable
from functools import cache
from math import log
from pathlib import Path
from typing import Annotated, Any

from vrambudget.config.job import Job
from vrambudget.config.settings import Field, Names, Settings
from vrambudget.declared import Before
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.files import read_file

_PACKAGE = Path(__file__).parents[1]
_TUNED = re.compile("(instruct|chat|it|hf|base)$")
_SIZE = r"((\.|(?<!\d))(\d+x)?\d[\d.]*[bmk]|a\d[\d.]*b|patch\d.*)"
"""What a name may leave out: "12b", "8x7b"; of a mixture what is active, "a3b"; "patch16-224"."""
_MOST_BYTES = 2**20
_SHOWN = 16  # names in a hint
_FAMILY = re.compile(r"^([^\d]*)(?:(\d+)(?![\d.]*[bmkx]))?")
"""Of "llama-3.1-8b" the name and its version, 3; what counts parameters is no version."""
_SIMILAR = 0.8  # of two names' letters: "lama" and "llama", not "albert" and "bert"


def _nulls(table: Any) -> Any:
    if not isinstance(table, dict):
        return table
    return {key: None if value == "null" else value for key, value in table.items()}


class ModelCard(Settings):
    """A well-known model: its configuration, where that was published, how it is trained."""

    name: str
    title: str
    source: Annotated[str, Field(pattern="^https://")]
    parameters: Annotated[int, Field(ge=1)]
    repositories: Names = ()
    config: Annotated[dict[str, Any], Before(_nulls)]
    job: dict[str, Any] = Field(default_factory=dict)

    def problems(self) -> Iterable[str]:
        """Yield what is wrong inside the tables."""
        if not isinstance(self.config.get("model_type"), str):
            yield "config.model_type is missing"
        try:
            Job.parse(self.job)
        except VramBudgetError as error:
            yield f"[job]: {error.message}"


@cache
def cards_folder() -> Path:
    """Return the folder of the model cards: in the installed package, next to it in a checkout."""
    inside = _PACKAGE / "model_cards"
    return inside if inside.is_dir() else _PACKAGE.parent / "model_cards"


@cache
def card_names() -> tuple[str, ...]:
    """Return the names of all model cards, sorted."""
    return tuple(sorted(path.stem for path in cards_folder().glob("*.toml")))


@cache
def _by_plain_name() -> dict[str, str]:
    return {plain_name(known): known for known in card_names()}


def card_name(name: str) -> str | None:
    """Return the name of the model card that a name means, or None.

    Case and separators do not matter ("Llama3.1_8B", "llama3_1_8b"), but "1.3b" is not "13b"; a
    name without its version is the first version's ("mistral-7b"), one without its size that of the
    only size ("mistral-nemo"); a chat or instruct model without a card of its own is as large as
    its base model.
    """
    if name.lower() in card_names():  # timm's vit_base_patch16_224 is not transformers'
        return name.lower()
    names, wanted = _by_plain_name(), plain_name(name)
    for plain in (wanted, _TUNED.sub("", wanted)):
        if plain in names:
            return names[plain]
        versions = sorted(
            known for known in names if re.fullmatch(rf"{re.escape(plain)}v[\d.]+", known)
        )
        if plain and versions:
            return names[versions[0]]
        size = re.compile(re.escape(plain) + _SIZE)
        sizes = [known for known in card_names() if size.fullmatch(plain_name(known))]
        if plain and len(sizes) == 1:
            return sizes[0]
    return _by_last_part().get(wanted) if wanted else None


@cache
def _repositories(folder: str = "") -> dict[str, str]:
    """Return the name of the model card that lists each hub id, "org/name" in small letters."""
    found: dict[str, str] = {}
    for path in sorted((cards_folder() / folder).glob("*.toml")):
        listed = re.search(r"^repositories = \[(.*?)\]", card_text(path), re.DOTALL | re.MULTILINE)
        for known in re.findall(r'"([^"]+)"', listed[1] if listed else ""):
            found.setdefault(known.lower(), path.stem)
    return found


@cache
def _by_last_part(folder: str = "") -> dict[str, str]:
    """Return the same by the last part of each hub id, without separators."""
    found: dict[str, str] = {}
    for known, name in _repositories(folder).items():
        found.setdefault(plain_name(known.partition("/")[2]), name)
    return found


def picture_names() -> tuple[str, ...]:
    """Return the names of the cards of diffusers' pipelines, sorted."""
    return tuple(sorted(path.stem for path in (cards_folder() / "pictures").glob("*.toml")))


@cache
def gguf_names() -> tuple[str, ...]:
    """Return the names of models that `vrambudget run` knows beside these, sorted."""
    return tuple(sorted(path.stem for path in (cards_folder() / "gguf").glob("*.toml")))


def near_names(name: str) -> str | None:
    """Return a hint with the cards that a name is the beginning of, or that look like it."""
    wanted, names = plain_name(name), (*card_names(), *picture_names())
    spelled = [(plain_name(known), known) for known in names]
    spelled += _by_last_part("pictures").items()
    begun = sorted({known for plain, known in spelled if wanted and plain.startswith(wanted)})
    if begun:
        more = f" and {len(begun) - _SHOWN} more" if len(begun) > _SHOWN else ""
        return f"there {'are' if len(begun) > 1 else 'is'} {', '.join(begun[:_SHOWN])}{more};"
    kin = (known for known in names if _are_kin(name.lower(), known))
    size = _log_size(name)
    return did_you_mean(name.lower(), kin, lambda known: size and abs(_log_size(known) - size))


def _log_size(name: str) -> float:
    """Return the logarithm of the parameters that a name says it has, "8b"; 0 where it does not."""
    size = re.search(r"(?<![\d.])(\d+|\d+\.\d+)([bm])(?![a-z])", name.lower())
    return log(float(size[1] or 0) * {"m": 1e6, "b": 1e9}[size[2]] or 1) if size else 0


def _are_kin(name: str, other: str) -> bool:
    """Return whether two names may be of one family: a slip apart, and of one version.

    "gpt-oss-20b" is no gpt-neox, "clip-vit" no vit, "llama-4-scout" no llama-3.
    """
    from difflib import SequenceMatcher  # noqa: PLC0415 - mistakes alone need it

    (family, version), (other_family, other_version) = (
        _FAMILY.findall(word)[0] for word in (name, other)
    )
    pairs = ((family, other_family), (family.split("-")[0], other_family.split("-")[0]))
    near = all(SequenceMatcher(None, *pair).ratio() > _SIMILAR for pair in pairs)
    slip = near or sorted(family) == sorted(other_family)
    return slip and (not version or not other_version or version == other_version)


def plain_name(name: str) -> str:
    """Return a name without separators, but for a dot between digits."""
    dotted = re.sub(r"(?<=\d)[^a-z0-9]+(?=\d)", ".", name.lower())
    return re.sub(r"[^a-z0-9.]|\.(?!\d)|(?<!\d)\.", "", dotted)


def load_card(name: str) -> ModelCard:
    """Return a model card by its name. Raises VramBudgetError for other names."""
    found = card_name(name)
    if found is None:
        raise VramBudgetError(f"there is no model card {name!r}", hint=near_names(name))
    return read_card(cards_folder() / f"{found}.toml")


def read_card(path: Path) -> ModelCard:
    """Return the model card in a file. Raises VramBudgetError with the file and each mistake."""
    try:
        return ModelCard.parse(tomllib.loads(card_text(path)), where=str(path))
    except tomllib.TOMLDecodeError as error:
        raise VramBudgetError(f"this is not TOML: {error}", where=str(path)) from None


def card_text(path: Path) -> str:
    """Return what a card's file holds."""
    return read_file(path, "model card", _MOST_BYTES).decode()


def card_of_repository(repository: str) -> ModelCard | None:
    """Return the model card of a hub repository, if there is one."""
    name = _repositories().get(repository.lower())
    return None if name is None else read_card(cards_folder() / f"{name}.toml")
