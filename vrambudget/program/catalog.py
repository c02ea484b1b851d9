"""The programs that come with the package, by `model_type`, and those that a user's file is.

A type may have several: with and without a cache, with tied weights; the first whose conditions
hold is played.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from vrambudget.config.source import FoundModel
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.files import read_file
from vrambudget.program.config import ProgramConfig, configured
from vrambudget.program.form import Program, Variant, whole
from vrambudget.program.keys import bound_keys
from vrambudget.program.reading import named_errors, read_heads

RECORDED = Path(__file__).parent / "recorded"
SUFFIX = ".program"
_MOST_BYTES = 8 * 2**20

_read_heads = lru_cache(maxsize=32)(read_heads)  # of the same text


def recorded_types() -> list[str]:
    """Return the model types that a program comes with the package for."""
    return sorted({path.name.partition(".")[0] for path in RECORDED.glob(f"*{SUFFIX}")})


def program_at(path: Path) -> Program:
    """Return the program that a file holds now. Raises VramBudgetError with the line."""
    return whole(_heads_at(path))


def _heads_at(path: Path) -> list[Variant]:
    """Return the programs that a file holds now, none of them read."""
    try:
        text = read_file(path, "program", _MOST_BYTES).decode()
    except UnicodeDecodeError:
        raise VramBudgetError("this is no text", where=str(path)) from None
    return _read_heads(text, str(path))


def program_config(found: FoundModel, error: NotModelledError) -> ProgramConfig | None:
    """Return the configuration of a model that has programs; None where it has none.

    Raises NotModelledError where it has some, but of other models of its type.
    """
    model_type = found.values.get("model_type")
    if not isinstance(model_type, str) or "/" in model_type or model_type not in recorded_types():
        return None
    paths = sorted(RECORDED.glob(f"{model_type}{SUFFIX}")) + sorted(
        RECORDED.glob(f"{model_type}.*{SUFFIX}")
    )
    try:
        config = of_variants(found.values, [_heads_at(path) for path in paths])
    except NotModelledError as refusal:
        refusal.hint = error.hint or refusal.hint
        raise
    if (problem := config.without_positions()) is not None:
        raise VramBudgetError(problem, where=found.where)
    return config


def of_programs(keys: Mapping[str, Any], programs: list[Program]) -> ProgramConfig:
    """Return the configuration with the programs whose conditions it keeps."""
    return of_variants(keys, [program.every() for program in programs])


def of_variants(keys: Mapping[str, Any], files: list[list[Variant]]) -> ProgramConfig:
    """Return the configuration with those files' programs of which it keeps one's conditions.

    Raises the first one's refusal where it keeps none's.
    """
    fitting: list[Variant] = []
    refusal: NotModelledError | None = None
    for variants in files:
        for at, variant in enumerate(variants):
            try:
                bound_keys(variant.head, keys)
            except NotModelledError as error:
                refusal = refusal or error
            else:
                fitting += variants[at:] + variants[:at]  # a job's is chosen of all
                break
    if not fitting:
        assert refusal is not None  # noqa: S101 - there was a program
        raise refusal
    own = str(keys.get("model_type", fitting[0].head.source.get("model_type", "model")))
    return configured(keys, tuple(fitting), own)


def config_of_file(path: Path) -> ProgramConfig:
    """Return the configuration that a program's file is: of the model that was recorded."""
    program = program_at(path)
    own = program.source.get("sizes")
    if not isinstance(own, dict):
        raise VramBudgetError("the program does not say for which sizes it is", where=str(path))
    name = str(program.source.get("model_type", path.stem))
    with named_errors(str(path)):
        return of_programs({"model_type": name, **own}, [program])
