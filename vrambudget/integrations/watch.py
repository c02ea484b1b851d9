"""What every trainer's callback does: predict, warn or stop, measure, record."""

import logging
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.config.gpus import Gpu
from vrambudget.integrations.measured import append_record, measure_peaks, reset_peaks
from vrambudget.integrations.preflight import preflight
from vrambudget.report.ledger import ledger
from vrambudget.report.phrases import verdict
from vrambudget.units import format_bytes

_LOG = logging.getLogger("vrambudget")
_STEPS = 3  # from the third step on nothing changes


class Watch:
    """One training run; `budget` is the prediction, `measured` the peaks after three steps."""

    def __init__(self, *, gpu: str | Gpu | None, strict: bool, record: str | Path | None) -> None:
        self.gpu, self.strict = gpu, strict
        self.record = Path(record) if record is not None else None
        self.budget: Budget | None = None
        self.measured: dict[str, Any] | None = None
        self._config: Any = None

    def begin(self, model: Any, optimizer: Any, fields: dict[str, Any]) -> None:
        """Predict and report; raise DoesNotFit if strict. Peak counters start here."""
        self.budget = preflight(
            model, optimizer=optimizer, gpu=self.gpu, strict=self.strict, **fields
        )
        self._config = model.config.to_dict()
        said = ": ".join(verdict(self.budget, ledger(self.budget)))
        _LOG.log(logging.INFO if self.budget.fits else logging.WARNING, "%s", said)
        reset_peaks()

    def step(self, steps: int) -> None:
        """Measure once, when enough optimizer steps are done."""
        if self.budget is None or self.measured is not None or steps < _STEPS:
            return
        self.measured = measure_peaks()
        if self.measured is None:
            return
        for counter in ("allocated", "reserved"):
            predicted = getattr(self.budget.peak, f"{counter}_bytes")
            measured = self.measured[f"peak_{counter}"]
            _LOG.info(
                "peak %s: %s predicted, %s measured (%+.2f %%)",
                counter,
                format_bytes(predicted),
                format_bytes(measured),
                100 * (predicted - measured) / measured,
            )
        if self.record is not None:
            append_record(self.record, self.budget, self._config, self.measured)
