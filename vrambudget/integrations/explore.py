"""Sliders in a notebook: `vrambudget.explore("gpt2", gpu="12GB")`, with ipywidgets (an extra).

The verdict, the bar and the parts follow the sliders. What is handed in is where they begin; other
fields stay as they are. `explored.job` has the fields as they stand now, for `estimate` and others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack, get_args

from vrambudget.config.fields.adapters import Quant
from vrambudget.config.fields.modules import Checkpointing
from vrambudget.config.fields.training import Optimizer, Precision
from vrambudget.config.gpus import Gpu
from vrambudget.config.source import ModelSource
from vrambudget.errors import VramBudgetError
from vrambudget.escaping import escape
from vrambudget.estimator import estimate_scenario
from vrambudget.report.notebook import budget_html
from vrambudget.scenario import Scenario, resolve

if TYPE_CHECKING:
    from vrambudget.config.job_fields import RunFields

_SIZES = {
    "batch": tuple(range(1, 17)) + tuple(2**n for n in range(5, 11)),
    "block": tuple(2**n for n in range(5, 18)),
    "grad_accum": tuple(2**n for n in range(9)),
    "lora_rank": (0, 1, 2, 4, 8, 16, 32, 64, 128, 256),
}
_LABEL = {"description_width": "110px"}  # "checkpointing" is wider than ipywidgets' own 80
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "precision": get_args(Precision),
    "optimizer": get_args(Optimizer),
    "checkpointing": get_args(Checkpointing),
    "quant": ("", *get_args(Quant)),
}


@dataclass(slots=True)
class Explored:
    """Sliders and what they show; a notebook displays it. `job`: the fields as they stand."""

    box: Any = field(repr=False)
    html: Any = field(repr=False)
    job: dict[str, Any] = field(default_factory=dict)

    def _ipython_display_(self) -> None:
        import_module("IPython.display").display(self.box)


def explore(
    model: ModelSource, *, gpu: str | Gpu | None = None, **fields: "Unpack[RunFields]"
) -> Explored:
    """Return sliders for a job in a notebook. Raises VramBudgetError without ipywidgets."""
    try:
        widgets = import_module("ipywidgets")
    except ImportError as error:
        raise VramBudgetError(
            "sliders need ipywidgets, which is not installed",
            hint="pip install 'vrambudget[notebook]', or `vrambudget page` in a terminal",
        ) from error
    scenario = resolve(model, gpu=gpu, **fields)
    html = widgets.HTML()
    explored = Explored(None, html, dict(fields))

    def on_change(name: str) -> Callable[[Any], None]:
        def changed(change: Any) -> None:
            explored.job[name] = change["new"] or None
            html.value = _shown(model, gpu, explored.job)

        return changed

    controls = list(_controls(widgets, scenario))
    for name, control in controls:
        control.observe(on_change(name), names="value")
    html.value = _shown(model, gpu, explored.job)
    rows = widgets.VBox([control for _, control in controls])
    explored.box = widgets.VBox([rows, html])
    return explored


def _controls(widgets: Any, scenario: Scenario) -> Any:
    """Yield the name and the widget of each field that can be moved."""
    for name, sizes in _SIZES.items():
        now = getattr(scenario.job, name) or 0
        longest = scenario.config.learned_positions if name == "block" else None
        known = [size for size in sizes if size <= (longest or size)]
        if now not in known:
            known = sorted([*known, now])
        options = [(f"{size:,}" if size else "none", size) for size in known]
        yield (
            name,
            widgets.SelectionSlider(
                options=options, value=now, description=name, style=_LABEL, continuous_update=False
            ),
        )
    for name, choices in _CHOICES.items():
        options = [(choice or "none", choice) for choice in choices]
        value = getattr(scenario.job, name) or ""
        yield (
            name,
            widgets.Dropdown(options=options, value=value, description=name, style=_LABEL),
        )


def _shown(model: ModelSource, gpu: str | Gpu | None, job: Mapping[str, Any]) -> str:
    """Return the report, or the mistake, as HTML."""
    try:
        return budget_html(estimate_scenario(resolve(model, gpu=gpu, **job)))
    except VramBudgetError as error:
        return f"<b>{escape(error.message)}</b><div>{escape(error.hint or '')}</div>"
