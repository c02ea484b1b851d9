"""What a key of another tool means for a job: a field's value, several fields, or nothing at all.

    Same("batch")                       the value is the field's
    SizesInText("resolution", pairs=False)    the largest of several values
    Switch({"checkpointing": "full"})   on: these fields; off: none
    OneOf({"adamw_torch": {...}})      each value has its fields
    Ignored()                           it decides no memory
    Uncounted("packed rows")            it decides memory, and has no rules here
    Ranks()                             it is of several GPUs, and decides no memory there
    MultiGpuOnly(Same("ranks"))         it is of several GPUs: the meaning holds where there are

`Translation.assumed` are fields that another key of the same tool may set: they hold where none
does.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

Fields = Mapping[str, Any]

SAVES = "not modelled, so that less is needed than this"
_MEGAPIXELS = 16  # the most that a resolution may be to be an area
_OFF = (None, False, 0, "", "no", "none", "false", "off")


@dataclass(frozen=True, slots=True)
class Translation:
    """What a key with its value says."""

    fields: Fields = field(default_factory=dict)
    assumed: Fields = field(default_factory=dict)
    uncounted: str | None = None
    noted: str | None = None  # modelled as another, or more than it needs


NOTHING = Translation()


def is_off(value: object) -> bool:
    """Return whether a value says that something is not used."""
    plain = value.lower() if isinstance(value, str) else value
    return plain in _OFF if not isinstance(plain, list | dict) else not plain


@dataclass(frozen=True, slots=True)
class Same:
    """The value of a field, under another name; `off` are values that leave it as it is.

    `whole`: a number like 5e8, which JSON has as a float.
    """

    field: str
    off: tuple[Any, ...] = ("auto",)
    whole: bool = False

    def translate(self, value: Any) -> Translation:
        """Return the field."""
        if value is None or value in self.off:
            return NOTHING
        if self.whole and isinstance(value, float) and value.is_integer():
            value = int(value)
        return Translation({self.field: value})


class ManyValues(list[Any]):
    """What a key says in each of several data sets."""


@dataclass(frozen=True, slots=True)
class SizesInText:
    """The largest of several sizes; `pairs`: two numbers are a width and a height."""

    field: str
    pairs: bool

    def translate(self, value: Any) -> Translation:
        """Return the field, as words of the command line have it."""
        stated = [
            s for v in (value if isinstance(value, ManyValues) else [value]) for s in self._of(v)
        ]
        return Translation({self.field: max(stated, key=_area)}) if stated else Translation()

    def _of(self, value: Any) -> list[str]:
        if isinstance(value, int | float) and self.field == "resolution" and value <= _MEGAPIXELS:
            return [str(round((value * 1e6) ** 0.5 / 64) * 64)]
        parts = value if isinstance(value, list) else str(value).split(",")
        words = [str(part).strip() for part in parts]
        return ["x".join(reversed(words))] if self.pairs else words


def _area(size: str) -> int:
    numbers = [int(n) for n in re.findall(r"\d{1,9}", size)]
    return int(prod(numbers) ** (2 // max(1, len(numbers))))


@dataclass(frozen=True, slots=True)
class Switch:
    """On or off; "auto" is on. `noted` is said of what is on and modelled as something else."""

    on: Fields
    assumed: Fields = field(default_factory=dict)
    off: Fields = field(default_factory=dict)
    noted: str | None = None

    def translate(self, value: Any) -> Translation:
        """Return the fields of this position."""
        if is_off(value):
            return Translation(self.off) if value is not None else NOTHING
        return Translation(self.on, self.assumed, noted=self.noted)


@dataclass(frozen=True, slots=True)
class OneOf:
    """Fields of each value; a value that has none is not modelled."""

    what: str
    of: Mapping[str, Fields]
    modelled_as: Mapping[str, str] = field(default_factory=dict)
    """What is said of a value that is modelled as another."""

    def translate(self, value: Any) -> Translation:
        """Return the fields of the value."""
        if value is None or value == "":
            return NOTHING
        text = str(value).lower()
        if text not in self.of:
            return Translation(uncounted=f"{self.what} {value}")
        return Translation(self.of[text], noted=self.modelled_as.get(text))


@dataclass(frozen=True, slots=True)
class _Silent:
    """What says nothing of a job on one GPU."""

    def translate(self, value: Any) -> Translation:
        """Return nothing."""
        del value
        return NOTHING


@dataclass(frozen=True, slots=True)
class Ignored(_Silent):
    """What decides no memory; a `flag` of a command line takes no value but true or false."""

    flag: bool = False


@dataclass(frozen=True, slots=True)
class OnlyRanks(_Silent):
    """What only several GPUs have."""


@dataclass(frozen=True, slots=True)
class ModelName(_Silent):
    """The model's name: who reads a file takes the model from it."""


@dataclass(frozen=True, slots=True)
class Uncounted:
    """What decides memory and has no rules here, unless it is off or has a `harmless` value.

    What `saves` memory makes the number an upper bound, all else a lower one.
    """

    what: str
    harmless: tuple[Any, ...] = ()
    flag: bool = True
    saves: bool = False

    def translate(self, value: Any) -> Translation:
        """Return what is not modelled."""
        if is_off(value) or value in self.harmless:
            return NOTHING
        return (
            Translation(noted=f"{self.what}: {SAVES}")
            if self.saves
            else Translation(uncounted=self.what)
        )


@dataclass(frozen=True, slots=True)
class MultiGpuOnly:
    """What a key says where there are several GPUs; of one it says nothing."""

    of: Same | Switch | OneOf | Uncounted | Ignored

    def translate(self, value: Any) -> Translation:
        """Return what the value means of several GPUs."""
        return self.of.translate(value)


Meaning = (
    Same | SizesInText | Switch | OneOf | Ignored | Uncounted | OnlyRanks | MultiGpuOnly | ModelName
)
Table = Mapping[str, Meaning]


def ignored(names: str, *, flag: bool = False) -> dict[str, Meaning]:
    """Return a table of names that decide no memory."""
    return dict.fromkeys(names.split(), Ignored(flag))


def of_ranks(names: str) -> dict[str, Meaning]:
    """Return a table of names that only several GPUs have."""
    return dict.fromkeys(names.split(), OnlyRanks())


def on_multi_gpu(table: Mapping[str, Any]) -> dict[str, Meaning]:
    """Return a table whose meanings hold where there are several GPUs."""
    return {name: MultiGpuOnly(of) for name, of in table.items()}
