"""The base of all user input: frozen, strict, and with errors that people can read.

    class Batches(Settings, heading="batches"):
        batch: Size = Field(1, description="sequences per forward pass")
        clip: Annotated[float, Field(gt=0)] | None = None

A value of the wrong type is an error and never converted: true is not a number, nor are "8", NaN
and infinity. An unknown key is an error that names the nearest known one. All mistakes in one
object are reported together, with the key as the user wrote it and the value.

Not modelled: nested objects; the input is flat.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import index
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, dataclass_transform, get_origin

from vrambudget.declared import Before, Declared, RefusedError, coerced
from vrambudget.errors import VramBudgetError, did_you_mean

LARGEST = 2**31
"""Beyond every real dimension, batch or block; where a typing slip or a broken file begins."""

_SHOWN = 60  # characters of a wrong value that an error repeats


def Field(  # noqa: N802 - it stands for a type's part
    default: Any = ...,
    *,
    default_factory: Callable[[], Any] | None = None,
    description: str | None = None,
    **bounds: Any,
) -> Any:
    """Declare a field's default and description, or, in Annotated, its bounds: ge, gt, le, lt."""
    return Declared(default, default_factory, description, bounds)


def _whole(value: Any) -> Any:
    """Return NumPy's integers as int and everything else (true too) as it came."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return value
    try:
        return index(value)
    except TypeError:  # an array of one element
        return value


Size = Annotated[int, Before(_whole), Field(ge=1, le=LARGEST)]
"""A dimension or a count: 1 to 2**31."""

Probability = Annotated[float, Field(ge=0, lt=1)]
"""A dropout probability: at 1 nothing would be left."""

Names = tuple[str, ...]
"""A JSON list of words."""


TIP = "tip: "  # what a line of a problem begins with that says how to mend it


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Settings:
    """A frozen, strict set of values; `aliases` are other spellings of its fields.

    Its methods are named as pydantic's.
    """

    __slots__ = ("__dict__", "model_fields_set")  # the values; the names of those that were given

    heading: ClassVar[str] = ""
    aliases: ClassVar[Mapping[str, str]] = {}
    model_fields: ClassVar[Mapping[str, Declared]] = {}
    model_fields_set: frozenset[str]
    _defaults: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, *, heading: str = "") -> None:
        """Collect the fields: those of the last base first."""
        super().__init_subclass__()
        cls.heading = heading or cls.heading
        own = {}
        for name, annotation in cls.__annotations__.items():
            of_class: Any = get_origin(annotation)
            if name.startswith("_") or of_class is ClassVar:
                continue
            given = cls.__dict__.get(name, ...)
            if isinstance(given, Declared):
                delattr(cls, name)
            else:
                given = Declared(given)
            own[name] = given.of(annotation)
        cls._own = own  # type: ignore[attr-defined]
        fields: dict[str, Declared] = {}
        for base in reversed(cls.__mro__):
            fields |= base.__dict__.get("_own", {})
        cls.model_fields = MappingProxyType(fields)
        cls._defaults = {
            name: field.default for name, field in fields.items() if field.default is not ...
        }

    def __init__(self, **values: Any) -> None:
        """Check the values. Raises VramBudgetError that names every mistake."""
        parsed = self.parse(values)
        self._fill(parsed.__dict__, parsed.model_fields_set)

    @classmethod
    def parse(cls, values: Mapping[str, object], *, where: str | None = None) -> Self:
        """Return the checked values. Raises VramBudgetError that names every mistake."""
        settings = cls.model_construct(**cls._checked(values, where))
        if problems := list(settings.problems()):
            raise mistakes(problems, where)
        return settings

    @classmethod
    def model_construct(cls, **values: Any) -> Self:
        """Return the values as they are, unchecked."""
        found = dict(cls._defaults)
        for name, field in cls.model_fields.items():
            if name in values:
                found[name] = values[name]
            elif field.default_factory is not None:
                found[name] = field.default_factory()
        return cls._made(found, values)

    @classmethod
    def known_keys(cls) -> set[str]:
        """Return every spelling that is understood."""
        return {*cls.model_fields, *cls.aliases}

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return the values, by their fields' names, with what some of them say of others."""
        return values

    def problems(self) -> Iterable[str]:
        """Yield one sentence for each broken rule between fields; a line of TIP may follow it."""
        return ()

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """Return a copy with these values, which are taken as they are."""
        return self._made({**self.__dict__, **update}, {*self.model_fields_set, *update})

    def changed(self, update: Mapping[str, Any]) -> Self:
        """Return a copy with these values, checked together with the others.

        Raises VramBudgetError that names every mistake.
        """
        checked = self.parse({**self.__dict__, **update})
        return self._made(checked.__dict__, {*self.model_fields_set, *update})

    def values_of(self, kind: type) -> dict[str, Any]:
        """Return the values of the fields that a dataclass has, too."""
        return {name: value for name, value in self if name in kind.__annotations__}

    def model_dump(
        self,
        *,
        mode: str = "python",
        include: Iterable[str] | None = None,
        exclude: Iterable[str] = (),
        exclude_unset: bool = False,
    ) -> dict[str, Any]:
        """Return the values by name; `mode="json"`: with lists where they are tuples."""
        names = [*self.model_fields] if include is None else [*include]
        left_out = {*exclude}
        if exclude_unset:
            left_out |= self.model_fields.keys() - self.model_fields_set
        values = ((name, self.__dict__[name]) for name in names if name not in left_out)
        return {name: _dumped(value, as_json=mode == "json") for name, value in values}

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        """Yield each field's name and value."""
        return iter(self.__dict__.items())

    def __eq__(self, other: object) -> bool:
        """Whether it is of the same class, with the same values."""
        return type(other) is type(self) and other.__dict__ == self.__dict__

    def __hash__(self) -> int:
        """Return the hash of the values, which come in the fields' order."""
        return hash((type(self), *self.__dict__.values()))

    def __repr__(self) -> str:
        """Return the values as they would be handed in."""
        values = ", ".join(f"{name}={value!r}" for name, value in self)
        return f"{type(self).__name__}({values})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse: settings are frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        """Refuse: settings are frozen."""
        raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be deleted")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values that were given, and the others as they are."""
        return self._made, (self.__dict__, self.model_fields_set)

    @classmethod
    def _made(cls, values: Mapping[str, Any], given: Iterable[str]) -> Self:
        settings = cls.__new__(cls)
        cls._fill(settings, values, given)
        return settings

    def _fill(self, values: Mapping[str, Any], given: Iterable[str]) -> None:
        self.__dict__.update(values)
        object.__setattr__(self, "model_fields_set", frozenset(given))

    @classmethod
    def _checked(cls, written: Mapping[str, Any], where: str | None) -> dict[str, Any]:
        """Return the values by their fields' names."""
        try:
            values = cls.completed(canonical(written, cls.aliases))
        except ValueError as error:
            raise mistakes([str(error)], where) from None
        fields, found = cls.model_fields, {}
        spelled = {cls.aliases.get(key, key): key for key in written}
        unknown = [spelled.get(name, name) for name in values if name not in fields]
        wrong = []
        for name, field in fields.items():
            key = spelled.get(name, name)
            if name in values:
                try:
                    found[name] = coerced(field.annotation, values[name])
                except RefusedError as error:
                    part = ".".join(map(str, (key, *error.path)))
                    wrong.append(f"{part} is {show(error.value)}; {error.rule}")
            elif not field.has_default:
                wrong.append(f"{key} is missing")
        if wrong or unknown:
            wrong += [f"{key} is not known" for key in unknown]
            hints = [hint for key in unknown if (hint := did_you_mean(key, cls.known_keys()))]
            raise mistakes(wrong, where, "; ".join(hints) or None)
        return found


def _dumped(value: Any, *, as_json: bool) -> Any:
    if isinstance(value, Settings):
        return value.model_dump(mode="json" if as_json else "python")
    if isinstance(value, tuple) and as_json:
        return [_dumped(item, as_json=True) for item in value]
    return value


def mistakes(
    sentences: Iterable[str], where: str | None, hint: str | None = None
) -> VramBudgetError:
    """Return the error that says what is wrong, each mistake once; a line of TIP is its hint."""
    every = dict.fromkeys(line for each in sentences for line in each.splitlines())
    lines = [line for line in every if not line.startswith(TIP)]
    tips = [line.removeprefix(TIP) for line in every if line.startswith(TIP)]
    message = lines[0] if len(lines) == 1 else f"{len(lines)} mistakes:\n  " + "\n  ".join(lines)
    return VramBudgetError(message, where=where, hint=hint or "; ".join(tips) or None)


def canonical(values: Mapping[str, Any], aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the values under their fields' names. Raises VramBudgetError if two disagree."""
    renamed: dict[str, Any] = {}
    for key, value in values.items():
        name = aliases.get(key, key)
        if name in renamed and renamed[name] != value:
            raise VramBudgetError(
                f"{name} is given twice, under other spellings: "
                f"{show(renamed[name])} and ({key}) {show(value)}"
            )
        renamed[name] = value
    return renamed


def show(value: object) -> str:
    """Return `value` for an error message, shortened if it is long."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an int of more digits than Python prints, an odd object
        return "a number of thousands of digits" if type(value) is int else type(value).__name__
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def object_of(record: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object of an object, empty where it has none. Raises VramBudgetError."""
    found = record.get(key) or {}
    if not isinstance(found, Mapping):
        raise VramBudgetError(f"{key} is {show(found)}; it should be an object")
    return found
