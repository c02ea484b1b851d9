"""`preflight`: check before the first step whether a live model fits on this GPU.

    vrambudget.preflight(model, batch=8, block=1024, optimizer=optimizer)

What the model and the optimizer know is read from them; what a loop decides (batch, block,
accumulation, clipping, autocast) is passed. The GPU is this machine's, with what is free on it now.

Nothing here ends a training unless it is asked to (`strict`): what has no rules is a warning of the
logger "vrambudget" that names it, with the command of a rehearsal.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.budget import Budget
from vrambudget.compiled.asked import original
from vrambudget.config.gpus import Gpu
from vrambudget.config.loops import TRL_LOOPS
from vrambudget.engine.context import recording
from vrambudget.errors import DoesNotFit, NotModelledError, VramBudgetError
from vrambudget.estimator import estimate_scenario
from vrambudget.integrations.live_gpu import gpu_now
from vrambudget.integrations.live_model import (
    LiveModel,
    is_live,
    is_touched,
    is_wrapped,
    read_model,
)
from vrambudget.integrations.live_optimizer import read_optimizer
from vrambudget.integrations.live_quant import is_4bit
from vrambudget.integrations.rehearsal import rehearsal_command
from vrambudget.report import ledger, phrases
from vrambudget.scenario import Scenario, resolve
from vrambudget.training.freeze import shortest

_LOG = logging.getLogger("vrambudget")
_LEAVE_THE_MODE = ("plain", "accelerate")  # loops; Trainers call model.train()
_OF_WEIGHTS = ("fp32", "bf16", "fp16")


def preflight(
    model: Any, *, gpu: str | Gpu | None = "auto", strict: bool = False, **fields: Any
) -> Budget | None:
    """Return what training `model` takes, compared with what is free on the GPU now.

    `model` is a live module of any kind, a configuration, a dict or what `estimate` takes;
    `optimizer` is a live one or a name; the other `fields` are those of `Job`, which must not
    contradict what is read. A module that is no language model is called with `inputs`, and `loss`
    makes its loss of outputs and inputs. What has no rules is logged and gives None; if
    `strict`, it raises NotModelledError, and a job that is too large DoesNotFit.
    """
    try:
        budget = predict(model, gpu=gpu, **fields)
    except NotModelledError as error:
        if strict:
            raise
        _LOG.warning("%s", unpredicted(error, gpu))
        return None
    return fitting(budget) if strict else budget


def predict(
    model: Any,
    *,
    batch: int = 1,
    block: int | None = None,
    optimizer: Any = None,
    gpu: str | Gpu | None = "auto",
    **fields: Any,
) -> Budget:
    """Return the same, or raise NotModelledError.

    A live model that its configuration does not describe, or that is no model of transformers, is
    followed: its own code runs.
    """
    if (inner := original(model)) is not None:
        model, fields = inner, {"compile": True, **fields}
    at_hand = {"batch": batch, "block": block, "optimizer": optimizer, "gpu": gpu, **fields}
    if not is_live(model) or fields.get("loop") in TRL_LOOPS:  # whose heads TRL has changed
        return _by_rules(model, **at_hand)
    if not {"inputs", "loss"} & fields.keys() and not is_touched(model):
        try:
            return _by_rules(model, **at_hand)
        except NotModelledError:
            if is_wrapped(model) or any(map(is_4bit, model.parameters())):
                raise
    return _traced(model, **at_hand)


def _traced(
    model: Any, *, optimizer: Any, gpu: str | Gpu | None, batch: int, **fields: Any
) -> Budget:
    """Return the budget of a live model, by its own code."""
    device, notes = _gpu(gpu, model, optimizer)
    sizes = {} if fields.get("inputs") is not None else {"batch": batch}
    given = {**_versions(), **fields, **sizes, **_optimizer(optimizer, model, fields.get("loop"))}
    given = {name: value for name, value in given.items() if value is not None}
    budget = estimate_scenario(resolve(model, gpu=device, **given))
    return replace(budget, warnings=(*budget.warnings, *notes, *_of_mode(model, budget)))


def _by_rules(
    model: Any,
    *,
    batch: int,
    block: int | None,
    optimizer: Any,
    gpu: str | Gpu | None,
    **fields: Any,
) -> Budget:
    """Return the budget of a model by its family's rules."""
    live = read_model(model) if is_live(model) else None
    if live and live.is_prepared:
        fields = {"loop": "accelerate", **fields}
    read = {**(live.fields if live else {}), **_optimizer(optimizer, model, fields.get("loop"))}
    given = _merged({**_versions(), "batch": batch, "block": block, **fields}, read)
    source = live.config if live else _source(model)
    device, notes = _gpu(gpu, model, optimizer)
    scenario = resolve(source, gpu=device, **given)
    if live:
        _check_quantised(scenario, live)
        scenario = _as_frozen(scenario, live)
    budget = estimate_scenario(scenario)
    budget = replace(budget, warnings=(*budget.warnings, *notes, *_of_mode(model, budget)))
    if live:
        _check_against(budget, live)
    return budget


def _of_mode(model: Any, budget: Budget) -> Iterator[str]:
    """Yield that a live model is in eval mode, where its dropout is assumed all the same."""
    job = budget.job
    leaves_it = job["mode"] == "train" and job["loop"] in _LEAVE_THE_MODE
    if not is_live(model) or model.training or not leaves_it or job["model_mode"] == "eval":
        return
    if any(getattr(module, "p", 0) for module in model.modules()):
        yield (
            "the model is in eval mode, where from_pretrained leaves it, but its dropout is"
            " assumed, as after model.train(): model_mode='eval' has none"
        )


def fitting(budget: Budget) -> Budget:
    """Return the budget of a job that fits. Raises DoesNotFit, or VramBudgetError without a GPU."""
    if budget.device is None:
        raise VramBudgetError("strict=True needs a GPU", hint="pass gpu=..., for example '12GB'")
    if budget.fits is False:
        raise DoesNotFit(
            ": ".join(phrases.verdict(budget, ledger.ledger(budget))),
            budget=budget,
            hint="error.budget shows what takes the memory",
        )
    return budget


def unpredicted(error: Exception, gpu: str | Gpu | None) -> str:
    """Say what keeps a training from being predicted, and what to type instead."""
    what = error.message if isinstance(error, VramBudgetError) else repr(error)
    hint = getattr(error, "hint", None)
    also = f" ({hint})" if hint and "rehearse" not in hint else ""
    return f"memory is not predicted: {what}{also}; measure it with: {rehearsal_command(gpu)}"


def _source(model: Any) -> str | Path | Mapping[str, Any]:
    if hasattr(model, "to_dict"):  # a configuration of transformers
        values: Mapping[str, Any] = model.to_dict()
        return values
    source: str | Path | Mapping[str, Any] = model
    return source


def _versions() -> dict[str, str]:
    """Return the versions that are loaded: the job will run with them."""
    loaded = {name: sys.modules.get(name) for name in ("torch", "transformers")}
    return {name: str(module.__version__) for name, module in loaded.items() if module}


def _optimizer(optimizer: Any, model: Any, loop: str | None) -> dict[str, Any]:
    if optimizer is None:
        return {}
    if isinstance(optimizer, str):
        return {"optimizer": optimizer}
    return read_optimizer(optimizer, model, loop)


def _gpu(
    gpu: str | Gpu | None, model: Any, optimizer: Any
) -> tuple[str | Gpu | None, tuple[str, ...]]:
    return gpu_now(model, optimizer) if gpu == "auto" else (gpu, ())


def _merged(given: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    """Return both. Raises VramBudgetError if they contradict each other."""
    asked = str(given.get("precision"))
    if asked.startswith("amp-") and read.get("precision") in _OF_WEIGHTS:
        weights = read["precision"]
        own = {} if weights == "fp32" else {"weights": weights}
        read = {**read, "precision": asked, **own}
    for name, value in read.items():
        if given.get(name, value) != value:
            raise VramBudgetError(
                f"{name} is given as {given[name]!r}, but the live objects have {value!r}",
                hint=f"leave {name} out, or change the model or the optimizer",
            )
    return {**read, **given}


def _as_frozen(scenario: Scenario, live: LiveModel) -> Scenario:
    """Return the scenario with the live model's frozen parts, if it has the expected parameters."""
    assert scenario.job.task is not None  # noqa: S101 - resolved
    with recording(scenario.platform):
        model = scenario.config_of_job.build(scenario.job.task)
        own = model.named_parameters()
        expected = [(name, tuple(p.shape), p.requires_grad) for name, p in own.items()]
        del model, own
    shapes, actual = [shape for _, shape, _ in expected], live.parameters
    if len(shapes) != len(actual) or not all(
        parameter.is_of(shape) for shape, parameter in zip(shapes, actual, strict=True)
    ):
        raise NotModelledError(
            "the model's parameters are not those of its configuration",
            hint="rehearse a model that was changed by hand:"
            " `vrambudget rehearse --gpu GPU -- python SCRIPT`",
        )
    if scenario.job.lora_rank is not None:
        return scenario
    pairs = list(zip(expected, live.parameters, strict=True))
    # what the model's own code freezes is neither
    frozen = [name for (name, _, trains), p in pairs if trains and not p.trained]
    trained = [name for (name, _, _), p in pairs if p.trained]
    job = scenario.job.model_copy(update={"freeze": shortest(frozen, trained)})
    return replace(scenario, job=job)


def _check_quantised(scenario: Scenario, live: LiveModel) -> None:
    """Raise NotModelledError for 4-bit weights that the job would count in another 16-bit type."""
    if live.quantised_from not in {None, scenario.job.weight_dtype}:
        raise NotModelledError(
            f"4-bit weights of {live.quantised_from} in precision {scenario.job.precision!r}",
            hint=f"precision='amp-{live.quantised_from}' is modelled",
        )


def _check_against(budget: Budget, live: LiveModel) -> None:
    expected = budget.parameters
    if (expected.total, expected.trainable) != (live.count, live.trained):
        raise NotModelledError(
            f"the model has {live.count:,} parameters and trains {live.trained:,} of them;"
            f" {expected.total:,} and {expected.trainable:,} were expected",
            hint="adapters on other modules, or other parts trained with them, are not modelled",
        )
