"""What each key of a configuration decides, found by recording with each changed.

Of the keys that the model's code reads, one that changes nothing is no condition; one that changes
sizes alone is free, as is a rate of dropout and an activation; one that changes only how the model
is built (tied embeddings) has a way of building for each value; any other must be as it was
recorded.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import transformers

from vrambudget.config.model_config import HARMLESS_VALUES, IGNORED_KEYS
from vrambudget.errors import VramBudgetError
from vrambudget.ops.elementwise import ACTIVATIONS
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.generation import sizes_of
from vrambudget.recording.keys import SPELT, Values, choices, flattened, nested, others
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import Merger, UnfitError, code_of
from vrambudget.recording.programs import PRECISIONS, Probe, RecordedModel, program_of
from vrambudget.recording.rows import changed_operations, inserted, kinds_of, rates_in
from vrambudget.recording.runs import BATCH, LENGTH, RATES, recording

DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    *("decoder_layers", "num_decoder_layers", "num_encoder_layers"),
)
_NEVER = {
    "return_dict",
    "problem_type",
    "model_type",
    "transformers_version",
    "architectures",
    "dtype",
    "use_cache",
    "stage_names",  # of a backbone, made of its depth
    *DEPTHS,
}
JOBS = {"batch": "batch", "length": "block", "target": "target_len", "cache_length": "cache_length"}
"""Sizes of a job, and the fields that say them."""
LONGER = {"batch": 2, "length": 4, "target": 6, "cache_length": 10}
"""By how much a job's sizes grow in a probe."""
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23)
"""By which a model's sizes grow together, each by another one."""
_LABELS = {"id2label", "label2id"}
_CLASSES = 5
"""Of a classifier that is recorded: a number that no other size is."""


@dataclass(slots=True)
class Verdicts:
    """What each key of a configuration decides."""

    depth: int | None
    free: dict[str, int] = field(default_factory=dict)  # with another value
    conditions: Values = field(default_factory=dict)
    activations: list[str] = field(default_factory=list)
    builds: dict[str, bool] = field(default_factory=dict)  # keys of building, with the other value
    built: list[Any] | None = None  # how, once it was recorded
    folds: dict[str, list[int]] = field(default_factory=dict)  # of stacks: first layer and period

    @property
    def droppable(self) -> tuple[str, ...]:
        """Sizes that may become conditions: none once jobs share how their model is built."""
        return tuple(self.free) if self.built is None else ()


class Prober:
    """Records one configuration at a depth, None for its own."""

    def __init__(
        self, values: Values, deep: int | None, job: Values, tied: Mapping[str, str]
    ) -> None:
        self._values, self._asked, self._deep, self._tied = values, job, deep, tied
        self._job, self._length = job, int(job.get("block", LENGTH))
        own = transformers.AutoConfig.for_model(**values)
        self._map = dict(type(own).attribute_map)
        self._depths = [key for key in DEPTHS if key in vars(own)]
        self._short = dict(values)
        if deep is not None:
            for extra, key in zip(count(), self._depths):
                self._short[key] = deep + 2 * extra if len(self._depths) > 1 else deep
        self._own = self._explicit(self._short)
        self._rates = [
            key
            for key, value in self._own.items()
            if "drop" in key and not key.endswith(("layerdrop", "path_rate")) and _is_rate(value)
        ]
        self._full = {
            **self._own,
            **dict(zip(self._rates, RATES, strict=False)),
            **{k: "gelu" for k, v in self._own.items() if _is_activation(k, v)},
        }
        self._full |= {key: self._full[other] for key, other in tied.items()}
        self._sizes = frozenset(k for k, v in self._full.items() if type(v) is int) - _NEVER
        self._made: dict[str, Listener] = {}
        self._own_jobs = {} if "batch" in job else {"batch": BATCH}
        self._own_jobs |= {"length": self._length}
        if "call" in job:
            self._has_sizes(sizes_of(job, self._length))
        self.base = self._recording()
        if job.get("task") == "seq2seq-lm" and {"labels", "input_ids"} <= {
            *self.base.facts["inputs"]
        }:
            self._has_sizes({"target": self._length - 9})
            self.base = self._recording()
        self.ignores_count = False  # whether it is given, and changes nothing
        self.plain = self._counting()  # where Trainer's count of labels changes what is done

    def _has_sizes(self, found: Mapping[str, int]) -> None:
        self._own_jobs |= found
        self._job = {**self._job, **{JOBS[name]: size for name, size in found.items()}}

    def _explicit(self, values: Values) -> Values:
        own = transformers.AutoConfig.for_model(**values)
        found = {k: v for k, v in vars(own).items() if not k.startswith("_")}
        plain = own.to_dict()
        full = {k: plain.get(k, v) for k, v in found.items() if k in plain and k not in _LABELS}
        if str(self._job.get("task", "")).endswith("cls"):
            full["num_labels"] = values.get("num_labels", _CLASSES)
        return {**full, "model_type": values["model_type"]}

    def _recording(self, values: Values | None = None, **job: Any) -> Listener:
        """Return a recording, which is made once."""
        own, asked = {**self._full, **(values or {})}, {**self._job, **job}
        key = repr((own, asked))
        if key not in self._made:
            self._made[key] = recording(own, self._sizes, **asked)
        return self._made[key]

    def _counting(self) -> Listener | None:
        """Record with Trainer's count of labels from now on, if the model's loss is divided by it.

        Return what it does without.
        """
        if not self.base.facts["accepts_loss_kwargs"] or "call" in self._job:
            return None
        job, plain = self._job, self.base
        self._job = {**job, "loop": "trainer"}
        with suppress(VramBudgetError):
            found = self._recording()
            more = inserted(found, plain) or ()
            if any(found.rows[at][1][0] != "del" for at in more):
                self.base = found
                return plain
            made = [[x for x in kinds_of(each) if x[1] != "del"] for each in (plain, found)]
            self.ignores_count = made[0] == made[1]
        self._job = job
        return None

    def is_one_for(self, precisions: Sequence[str]) -> bool:
        """Return whether the model's code does in these, but for types, what it does here."""
        try:
            for name in precisions:
                self._same(self._recording(precision=name), name)
        except UnfitError:
            return False
        return True

    def depths(self) -> dict[str, str]:
        """Return the key that says how many layers each outermost stack has."""
        found = {}
        for stack, layers in self.base.facts["stacks"].items():
            keys = [key for key in self._depths if self._full.get(key) == layers]
            if len(keys) == 1:
                found[stack] = keys[0]
        return found

    def folds(self) -> bool:
        """Return whether all stacks of layers recur at this depth."""
        probe = [Probe(dict(self._own_jobs), "bf16", self.base)]
        program = program_of(probe, RecordedModel(depths=self.depths()))
        self._mine = [row for row in program.stacks if row[1] is not None]
        return bool(self._mine) and all(row[3] is not None for row in self._mine)

    def rest(self) -> int:
        """Return how many layers more end where the configuration's do in what recurs."""
        own = self._explicit(self._values)
        found = [(own[key] - layers) % (period or 1) for _, key, _, period, layers, _ in self._mine]
        return max(found, default=0)

    def verdicts(self) -> Verdicts:
        """Return what each key decides that the model's code reads."""
        read = {key for _, key in self.base.read} & set(self._full)
        flat = flattened({k: v for k, v in self._full.items() if k in read - _NEVER - _LABELS})
        found = Verdicts(self._deep)
        known = {*self._rates_used(), *self._tied, *SPELT}
        for key, value in sorted(flat.items()):
            if key.rpartition(".")[2] in IGNORED_KEYS or key in known:
                continue
            if _is_activation(key, value):
                found.activations.append(key)
            elif not isinstance(value, int | float) or isinstance(value, bool):
                self._judge(found, key, value)
            else:
                verdict, changed = self._changed(key, value)
                if verdict == "free":
                    found.free[key] = changed
                elif verdict == "fixed":
                    found.conditions[key] = value
                elif isinstance(value, float) and value and not self._ignores(key, 0.0):
                    found.conditions[key] = {"nonzero": True}
        found.conditions |= self.absent()
        return found

    def _rates_used(self) -> set[str]:
        return {name for name in rates_in(self.base.rows) if name in self._rates}

    def absent(self) -> Values:
        """Return the keys that the type has not, and whose presence would decide something."""
        asked = self.base.missing - self._full.keys() - IGNORED_KEYS - HARMLESS_VALUES.keys()
        asked -= {"rope_parameters", "rope_theta", *self._map}  # which `_standard` reads
        tried = (None, False, True, _CLASSES)
        found = {key: [v for v in tried if self._ignores(key, v)] for key in sorted(asked)}
        return {
            k: {"absent": ignored[:3]} for k, ignored in found.items() if len(ignored) < len(tried)
        }

    def _ignores(self, key: str, value: Any) -> bool:
        """Return whether the model's code does the same where a key has this value."""
        try:
            return self._is_base(self._recording(nested(self._full, {key: value})))
        except VramBudgetError:
            return False

    def _activated(self, key: str) -> list[int]:
        """Return the instructions whose function a key names."""
        other = self._recording({key: "relu"})
        return changed_operations(self.base, other, "elementwise.gelu", "elementwise.relu")

    def _judge(self, found: Verdicts, key: str, value: Any) -> None:
        """Note what a key decides that is no number: nothing, the building, or all."""
        if isinstance(value, bool) and "." not in key:
            try:
                other = self._recording({key: not value})
            except VramBudgetError:
                other = None
            if other is not None and repr(other.rows) == repr(self.base.rows):
                names = ("build", "parameters", "buffers")
                if any(other.facts[n] != self.base.facts[n] for n in names):
                    found.builds[key] = not value
                if other.facts["outputs"] == self.base.facts["outputs"]:
                    return
        named = () if "." in key else choices(self._full["model_type"], key)
        if not named or not all(self._ignores(key, other) for other in named):
            found.conditions[key] = value

    def _changed(self, key: str, value: Any) -> tuple[str, Any]:
        """Record with a key changed: it is free, fixed, or ignored, which changes nothing."""
        for changed in others(value):
            try:
                made = nested(self._full, {key: changed})
                made |= {k: changed for k, other in self._tied.items() if other == key}
                found = self._recording(made)
                if self._is_base(found):
                    compared = found.comparisons != self.base.comparisons
                    return ("free" if isinstance(value, int) and compared else "ignored"), changed
                self._same(found)
            except (VramBudgetError, UnfitError):
                continue
            return ("free" if type(value) is int else "fixed"), changed
        return "fixed", None

    def _is_base(self, found: Listener) -> bool:
        names = ("build", "parameters", "buffers", "inputs", "outputs")
        if any(found.facts[n] != self.base.facts[n] for n in names):
            return False
        return repr(found.rows) == repr(self.base.rows)

    def _same(self, found: Listener, precision: str = "bf16") -> None:
        """Raise UnfitError where a recording differs from the base in more than sizes and types."""
        if found.problems:
            raise UnfitError(found.problems[0])
        both = [self.base, found]
        precisions = [PRECISIONS["bf16"], PRECISIONS[precision]]
        merger = Merger(_AnyFitter([{}]), precisions, [False, "amp" in precision])
        code_of([r.rows for r in both], merger)
        for name in ("build", "parameters", "buffers", "outputs"):
            merger.merge([r.facts[name] for r in both], name)
        outcomes = [[(c.place, c.outcome) for c in r.comparisons] for r in both]
        if outcomes[0] != outcomes[1]:
            raise UnfitError("a comparison comes out otherwise")


def _is_rate(value: Any) -> bool:
    return value is None or isinstance(value, float) or (value == 0 and value is not False)


def _is_activation(key: str, value: Any) -> bool:
    return "act" in key and isinstance(value, str) and value in ACTIVATIONS


class _AnyFitter(Fitter):
    """Takes any numbers: only what surrounds them is compared."""

    def __init__(self, probes: Any) -> None:
        del probes
        self.unfit = []

    def fit(self, values: Any) -> int | str | None:
        """Return an expression of nothing."""
        return int(values[0]) if len(set(values)) == 1 else "any"
