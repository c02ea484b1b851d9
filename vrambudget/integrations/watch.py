"""What every trainer's callback does: predict, warn or stop, measure, record.

It never ends a training unless it is `strict`: whatever cannot be predicted or recorded, a broken
data set or a full disk too, is a warning that says what happened and what to type instead.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.config.gpus import Gpu
from vrambudget.config.job import Job
from vrambudget.errors import VramBudgetError, did_you_mean
from vrambudget.integrations.measured import append_record, measure_peaks, reset_peaks
from vrambudget.integrations.preflight import fitting, predict, unpredicted
from vrambudget.report.ledger import ledger
from vrambudget.report.phrases import verdict
from vrambudget.units import format_bytes

_LOG = logging.getLogger("vrambudget")
_STEPS = 3  # from the third step on nothing changes
_COUNTERS = ("allocated", "reserved")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a trainer says: the live objects, fields of `Job`, and what it does uncounted."""

    model: Any
    optimizer: Any
    fields: Mapping[str, Any]
    not_modelled: tuple[str, ...] = ()


class Watch:
    """One training run; `budget` is the prediction, `measured` the peaks after three steps."""

    def __init__(
        self,
        *,
        gpu: str | Gpu | None,
        strict: bool,
        record: str | Path | None,
        fields: Mapping[str, Any],
    ) -> None:
        """Check the names of `fields` now, before any training begins."""
        self.gpu, self.strict, self.fields = gpu, strict, fields
        self.record = Path(record) if record is not None else None
        self.budget: Budget | None = None
        self.measured: dict[str, Any] | None = None
        self._config: Any = None
        for name in fields.keys() - Job.known_keys():
            raise VramBudgetError(
                f"{name} is no option of a job", hint=did_you_mean(name, Job.known_keys())
            )

    def begin(self, read: Callable[[], Reading]) -> dict[str, int]:
        """Predict and report, or raise if strict; return what to log. Peak counters start here."""
        self.budget = self.measured = None
        try:
            self._predict(read())
        except Exception as error:  # not a reason to lose a training
            if self.strict:
                raise
            _LOG.warning("%s", unpredicted(error, self.gpu))
        reset_peaks()
        return {f"vram_{name}_predicted": bytes_ for name, bytes_ in self._peaks().items()}

    def _predict(self, reading: Reading) -> None:
        fields = {**reading.fields, **self.fields}
        budget = predict(reading.model, optimizer=reading.optimizer, gpu=self.gpu, **fields)
        for what in reading.not_modelled:
            _LOG.warning("not modelled: %s", what)
        budget = replace(budget, not_modelled=(*budget.not_modelled, *reading.not_modelled))
        self.budget, self._config = budget, reading.model.config.to_dict()
        said = ": ".join(verdict(budget, ledger(budget)))
        _LOG.log(logging.WARNING if budget.fits is False else logging.INFO, "%s", said)
        if self.strict:
            fitting(budget)

    def _peaks(self) -> dict[str, int]:
        """Return the predicted peaks: none where nothing could be predicted."""
        if self.budget is None:
            return {}
        return {name: getattr(self.budget.peak, f"{name}_bytes") for name in _COUNTERS}

    def step(self, steps: int) -> dict[str, int]:
        """Measure once, when enough optimizer steps are done; return what to log then."""
        if self.measured is not None or steps < _STEPS:
            return {}
        self.measured = measure_peaks()
        if self.measured is None:
            return {}
        for counter, predicted in self._peaks().items():
            measured = self.measured[f"peak_{counter}"]
            _LOG.info(
                "peak %s: %s predicted, %s measured (%+.2f %%)",
                counter,
                format_bytes(predicted),
                format_bytes(measured),
                100 * (predicted - measured) / measured,
            )
        if self.budget is not None:
            self._keep(self.budget, self.measured)
        return {f"vram_{name}_measured": self.measured[f"peak_{name}"] for name in _COUNTERS}

    def _keep(self, budget: Budget, measured: Mapping[str, Any]) -> None:
        if self.record is None:
            return
        try:
            append_record(self.record, budget, self._config, measured)
        except VramBudgetError as error:
            if self.strict:
                raise
            _LOG.warning("%s", error.message)
