"""Compare predictions with measured records: how large the errors are, and how often there is none.

A record is a line of JSON: a job's fields, `model` (a model card's name or a configuration), `card`
(the GPU), `source` ("virtual", "published" or "real"), `versions`, and `measured`: bytes as
PyTorch's counters showed them. tests/records/reference.jsonl holds forty-five. Published ones also
have their `page`, the last printed digit in bytes (`rounding_bytes`; nobody can be closer than
that, so what is within it is equal), and what had to be `assumed`.

    error        (predicted - measured) / measured, for requested, allocated and reserved peaks
    trajectory   the same along the way (`weights`, `after_forward_K`, `after_backward_K`,
                 `after_step`), where it is largest
    device       what nvidia-smi shows, the CUDA context with it: when the model is built
                 (`device_built`), or at the end (`device_peak`), when PyTorch holds its reserve

For a record that ran out of memory, the question is whether that was predicted.

Not modelled: predictions are for a GPU that is large enough; if the GPU was so small that PyTorch
returned cached segments during the measured job, reserved is over-estimated.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from vrambudget.compiled.asked import compiling
from vrambudget.config.gpus import Gpu, gpu_under
from vrambudget.config.loops import SCRIPT_KEYS, script_of
from vrambudget.config.record import check_keys, gpu_of_record, job_of_record
from vrambudget.config.settings import object_of, show
from vrambudget.config.source import find_model
from vrambudget.errors import VramBudgetError
from vrambudget.scenario import Scenario, config_of, with_head
from vrambudget.simulate import simulate
from vrambudget.tape.events import Tape
from vrambudget.tape.phases import peaks_by_part
from vrambudget.tape.replay import Replay, replay, replay_on

_MOST_MEASURED = 2**60
PEAKS = ("requested", "allocated", "reserved")
KINDS = ("family", "method", "precision", "optimizer", "card", "source", "torch", "script")
COUNTERS = (*PEAKS, "trajectory")
DEVICE = "device"
_ENDS_STEPS = ("plain", "accelerate")  # other loops' steps end within a library


@dataclass(frozen=True, slots=True)
class Check:
    """One record: predicted and measured bytes by counter, or why they cannot be compared."""

    id: str
    source: str
    predicted: Mapping[str, int] = field(default_factory=dict)
    measured: Mapping[str, int] = field(default_factory=dict)
    problem: str | None = None
    ran_out_of_memory: bool = False
    foreseen: bool = False  # that it would
    kinds: Mapping[str, str] = field(default_factory=dict)  # family, method, GPU, source
    rounding: int = 0  # bytes: closer than the last printed digit nobody can be

    def error(self, counter: str) -> float | None:
        """Return (predicted - measured) / measured, None where one is missing."""
        if counter not in self.predicted or counter not in self.measured:
            return None
        predicted, measured = self.predicted[counter], self.measured[counter]
        if abs(predicted - measured) <= self.rounding:
            return 0.0
        return relative_error(predicted, measured)


@dataclass(frozen=True, slots=True)
class Summary:
    """How the errors of one counter are distributed; shares are of the records that have it."""

    source: str  # virtual, published and real errors are never one number
    counter: str
    records: int
    median: float  # of the errors' absolute values
    worst: float  # the error that is farthest from zero
    exact: float
    under: float


def validate(records: Iterable[Mapping[str, Any]], *, as_plain: bool = False) -> Iterator[Check]:
    """Yield a check for every record, with the reason if it cannot be compared.

    `as_plain`: predict the plain loop, whatever script a record is of.
    """
    for record in records:
        name, source = str(record.get("id", "no id")), str(record.get("source", "unknown"))
        try:
            yield _checked(name, source, record, as_plain=as_plain)
        except VramBudgetError as error:
            yield Check(name, source, problem=error.message)
        except Exception as error:  # noqa: BLE001 - one bad record must not hide the others
            yield Check(name, source, problem=f"{type(error).__name__}: {error}")


@dataclass(frozen=True, slots=True)
class RecordGroup:
    """The records of one kind, in one row; `worst_record` has the largest error of its peaks."""

    kind: str
    records: int
    exact: float  # the share whose three peaks are all exact
    allocated: float | None  # the error farthest from zero, None where none was measured
    reserved: float | None
    worst_record: str  # "" where all are exact


def grouped(checks: Sequence[Check], by: str) -> list[RecordGroup]:
    """Return a row for each kind of record, and one for all of them."""
    compared = [check for check in checks if check.error("allocated") is not None]
    kinds = sorted({check.kinds[by] for check in compared})
    rows = [_group(kind, [c for c in compared if c.kinds[by] == kind]) for kind in kinds]
    return [*rows, _group("all", compared)] if compared else []


def _group(kind: str, checks: Sequence[Check]) -> RecordGroup:
    def farthest(counter: str) -> float | None:
        errors = [error for check in checks if (error := check.error(counter)) is not None]
        return max(errors, key=abs, default=None)

    def error(check: Check) -> float:
        return max(abs(check.error(counter) or 0.0) for counter in PEAKS)

    worst = max(checks, key=error)
    return RecordGroup(
        kind=kind,
        records=len(checks),
        exact=sum(error(check) == 0 for check in checks) / len(checks),
        allocated=farthest("allocated"),
        reserved=farthest("reserved"),
        worst_record=worst.id if error(worst) else "",
    )


@dataclass(frozen=True, slots=True)
class SideBySide:
    """A job's peak allocated bytes, estimated and as records have it; None where there is none."""

    id: str
    card: str  # as records and --by call the GPU
    torch: str
    estimate: int
    virtual: int | None
    published: int | None
    real: int | None


def side_by_side(checks: Sequence[Check]) -> list[SideBySide]:
    """Return a row for each job: the records of one job, GPU and version of torch share it."""
    rows: dict[tuple[str, str, str, int], dict[str, int]] = {}
    for check in checks:
        if check.error("allocated") is not None:
            key = (check.id, check.kinds["card"], check.kinds["torch"])
            row = rows.setdefault((*key, check.predicted["allocated"]), {})
            row[check.source] = check.measured["allocated"]
    return [
        SideBySide(*key, row.get("virtual"), row.get("published"), row.get("real"))
        for key, row in rows.items()
    ]


def summarise(checks: Sequence[Check]) -> list[Summary]:
    """Return how each counter's errors are distributed, for the counters that were compared."""
    found: dict[tuple[str, str], list[float]] = {}
    for source in dict.fromkeys(check.source for check in checks):
        for counter in (*COUNTERS, DEVICE):
            errors = [check.error(counter) for check in checks if check.source == source]
            found[source, counter] = [error for error in errors if error is not None]
    return [_summary(*key, errors) for key, errors in found.items() if errors]


def _summary(source: str, counter: str, errors: Sequence[float]) -> Summary:
    return Summary(
        source=source,
        counter=counter,
        records=len(errors),
        median=median(map(abs, errors)),
        worst=max(errors, key=abs),
        exact=sum(error == 0 for error in errors) / len(errors),
        under=sum(error < 0 for error in errors) / len(errors),
    )


def relative_error(predicted: int, measured: int) -> float:
    """Return the error relative to what was measured; positive: too much."""
    if measured == predicted:
        return 0.0
    return (predicted - measured) / measured if measured else float("inf")


def _checked(name: str, source: str, record: Mapping[str, Any], *, as_plain: bool) -> Check:
    facts = object_of(record, "measured")
    if "error" in facts:
        return Check(name, source, problem="the measurement itself failed")
    scenario = _task(record)
    estimated = scenario
    if as_plain:
        estimated = _task({key: record[key] for key in record if key not in SCRIPT_KEYS})
    tape = simulate(estimated.config, estimated.job, estimated.platform).tape
    if "oom" in facts:
        return Check(name, source, ran_out_of_memory=True, foreseen=_is_full(scenario.gpu, tape))
    is_one_call = scenario.job.mode == "generate" and scenario.job.calls == 1
    along = tuple(_by_part(tape, facts)) if is_one_call else ()
    replayed = replay(tape)
    if scenario.job.loop in _ENDS_STEPS and "after_step" in facts:
        along = (*along, (replayed.after_step_bytes or 0, _bytes(facts, "after_step")))
    on_device = _on_device(replayed, scenario.gpu, facts)
    predicted, measured = _peaks(replayed, facts, along, on_device)
    rounding = _bytes(record, "rounding_bytes", "") if "rounding_bytes" in record else 0
    return Check(
        name, source, predicted, measured, kinds=_kinds(scenario, source), rounding=rounding
    )


def _kinds(scenario: Scenario, source: str) -> dict[str, str]:
    job = scenario.job
    method = {"train": "training", "eval": "evaluation"}.get(job.mode, job.mode)
    if job.lora_rank is not None:
        method = "LoRA"
    if job.checkpointing == "full":
        method += ", checkpointing"
    if job.mesh.ranks > 1:
        method = str(job.mesh).partition("=")[0]
    return {
        "family": scenario.config.model_type,
        "method": method,
        "precision": job.precision,
        "optimizer": job.optimizer if job.mode == "train" else "none",
        "card": scenario.gpu.name if scenario.gpu else "none",
        "source": source,
        "torch": job.torch,
        "script": script_of(job),
    }


def _task(record: Mapping[str, Any]) -> Scenario:
    check_keys(record)
    found = find_model(record.get("model", ""))
    job = job_of_record(record)
    config = with_head(config_of(found), found, job.task)
    if job.compile:
        # On a virtual GPU nothing is faster than anything else: its benchmarks never pad.
        pads = False if str(record.get("source", "")).startswith("virtual") else None
        config = compiling(config, found.values, pads=pads)
    gpu = gpu_under(job.torch, gpu_of_record(record))
    return Scenario(found.name, config, job.resolve(config.for_job(job)), gpu)


def _is_full(gpu: Gpu | None, tape: Tape) -> bool:
    return gpu is not None and replay_on(tape, gpu.available_bytes) is not None


def _by_part(tape: Tape, facts: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield predicted and measured peaks of a generation's parts."""
    keys = {"setup": "setup", "first": "prefill", "later": "decode_peak"}
    for part, peaks in peaks_by_part(tape).items():
        there = facts.get(keys[part])
        if isinstance(there, Mapping):
            for counter in PEAKS:
                yield getattr(peaks, counter), _bytes(there, counter, f"measured.{keys[part]}.")


def _peaks(
    replayed: Replay,
    facts: Mapping[str, Any],
    by_part: Iterable[tuple[int, int]] = (),
    on_device: tuple[int, int] | None = None,
) -> tuple[dict[str, int], dict[str, int]]:
    """Return predicted and measured bytes by counter; "trajectory" is where they differ most."""
    peak = replayed.peak
    predicted = dict(
        zip(PEAKS, (peak.requested_bytes, peak.allocated_bytes, peak.reserved_bytes), strict=True)
    )
    measured = {
        counter: _bytes(facts, f"peak_{counter}") for counter in PEAKS if f"peak_{counter}" in facts
    }
    along = [
        (n, _bytes(facts, key)) for key, n in _along(replayed) if n is not None and key in facts
    ]
    along += by_part
    if not measured and not along and not on_device:
        raise VramBudgetError("`measured` holds nothing that is compared, such as peak_allocated")
    if any(n and not found for n, found in along):
        raise VramBudgetError("measured.weights is 0; the job keeps its weights on the GPU")
    if on_device:
        predicted[DEVICE], measured[DEVICE] = on_device
    if along:
        farthest = max(along, key=lambda pair: abs(relative_error(*pair)))
        predicted["trajectory"], measured["trajectory"] = farthest
    return predicted, measured


def _on_device(
    replayed: Replay, gpu: Gpu | None, facts: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return predicted and measured bytes of the whole device, where they were measured."""
    reserved = {
        "device_built": replayed.built_bytes,
        "device_peak": replayed.peak.reserved_bytes,
    }
    for key, own in reserved.items():
        if key in facts and gpu is not None:
            return own + gpu.context_bytes, _bytes(facts, key)
    return None


def _bytes(facts: Mapping[str, Any], key: str, within: str = "measured.") -> int:
    """Return what was measured. Raises VramBudgetError for what is no number of bytes."""
    value = facts.get(key)
    least = 0 if key == "weights" else 1  # offloaded weights take nothing
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST_MEASURED:
        raise VramBudgetError(
            f"{within}{key} is {show(value)}; it should be bytes, a whole number above 0"
        )
    return value


def _along(replayed: Replay) -> Iterator[tuple[str, int | None]]:
    yield "weights", replayed.weights_bytes
    for k, step in enumerate(replayed.steps):
        yield f"after_forward_{k}", step.after_forward_bytes
        yield f"after_backward_{k}", step.after_backward_bytes
