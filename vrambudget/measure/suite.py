"""The suites of `vrambudget measure --suite`: jobs that are sized for the GPU that they run on.

    quick   about 25: families, precisions, optimizers, LoRA, checkpointing, evaluation,
            generation, loops, and one that is too large
    full    those, and every family with every method

A row of `suite.toml` is a job without its size. Of its sizes, from the largest, it takes the first
whose estimate leaves a tenth of the GPU; a row that no size of fits is left out. "amp" and "half"
are bfloat16 where the GPU has it, and float16 where it does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from vrambudget.config.gpus import Gpu
from vrambudget.config.versions import CHECKED, plain_version
from vrambudget.estimator import estimate_scenario
from vrambudget.files import toml_beside
from vrambudget.measure.record import record_of
from vrambudget.scenario import Scenario, resolve

SuiteName = Literal["quick", "full"]
Fields = Mapping[str, Any]

_HAS_BF16 = (8, 0)  # compute capability
_LEFT = 0.9
_TOO_LARGE = 1.1
_DOUBLINGS = 16
_MODERATE, _SHORT = 512, 128  # tokens


@dataclass(frozen=True, slots=True)
class SuiteRow:
    """A job without its size; `needs`: packages besides PyTorch and transformers."""

    name: str
    models: tuple[str, ...]  # from the largest
    fields: Fields
    batches: tuple[int, ...] = (16, 4, 1)  # from the largest
    needs: tuple[str, ...] = ()
    is_too_large: bool = False  # the smallest power of two that is

    @property
    def id(self) -> str:
        """What it is called where no size of it is measured."""
        return f"{self.name} {self.models[0]}"


_SUITES = toml_beside(__file__, "suite.toml")


def _row(
    name: str,
    models: Sequence[str],
    batches: Sequence[int] = (16, 4, 1),
    needs: Sequence[str] = (),
    *,
    too_large: bool = False,
    **fields: Any,
) -> SuiteRow:
    """Return a row of the file."""
    return SuiteRow(name, tuple(models), fields, tuple(batches), tuple(needs), too_large)


QUICK: tuple[SuiteRow, ...] = tuple(_row(**row) for row in _SUITES["quick"])
"""About 25 jobs; the last has to run out of memory."""


def rows_of(suite: SuiteName) -> Iterator[SuiteRow]:
    """Yield a suite's rows; rows that no model of a kind has are left out when they are sized."""
    yield from QUICK
    if suite == "full":
        for model in _SUITES["models"]:
            for method in _SUITES["methods"]:
                short = {} if method.get("mode") == "generate" else {"block": _MODERATE}
                yield _row(**{**short, **method, "name": f"full: {method['name']}"}, models=[model])


def sized(row: SuiteRow, gpu: Gpu, versions: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a row's job as a record has it, None where no size of it fits the GPU.

    Raises VramBudgetError for a row that its model does not have.
    """
    for size in _sizes(row):
        scenario = _scenario(row, size, gpu, versions)
        used_bytes = estimate_scenario(scenario).peak.reserved_bytes + gpu.context_bytes
        share = used_bytes / gpu.capacity_bytes
        if share > _TOO_LARGE if row.is_too_large else share <= _LEFT:
            job = record_of(scenario)
            return {
                **job,
                "id": f"{row.name} {scenario.model} b{scenario.job.batch} t{scenario.job.block}",
            }
    return None


def _sizes(row: SuiteRow) -> Iterator[Fields]:
    """Yield sizes from the largest, the last with short rows; too large ones from the smallest."""
    if row.is_too_large:
        yield from ({"model": row.models[0], "batch": 2**n} for n in range(_DOUBLINGS))
        return
    for model in row.models:
        yield from ({"model": model, "batch": batch} for batch in row.batches)
        if "block" in row.fields:
            yield {"model": model, "batch": row.batches[-1], "block": _SHORT}


def _scenario(row: SuiteRow, size: Fields, gpu: Gpu, versions: Mapping[str, str]) -> Scenario:
    narrow = "bf16" if gpu.compute_capability >= _HAS_BF16 else "fp16"
    words = {"half": narrow, "amp": f"amp-{narrow}"}
    fields = {
        key: words.get(value, value) if key == "precision" else value
        for key, value in row.fields.items()
    }
    own = {name: version for name in CHECKED if (version := plain_version(versions.get(name, "")))}
    model, size = size["model"], {key: size[key] for key in size if key != "model"}
    return resolve(model, gpu=gpu, **{**own, **fields, **size})
