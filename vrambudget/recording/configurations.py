"""Which keys of a configuration a program leaves free, found by recording with each changed.

Of the keys that the model's code reads, one that changes nothing is no condition; one that changes
sizes alone is free; any other must be as it was recorded. A key of layers is free where layers
recur (recording.folding).
"""

from dataclasses import dataclass
from itertools import count
from typing import Any

import transformers

from vrambudget.config.model_config import IGNORED_KEYS
from vrambudget.config.versions import installed_version
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.program.expressions import value as value_of
from vrambudget.program.form import Program
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.keys import Defaults, Values, flattened, nested, others
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import Merger, UnfitError, code_of
from vrambudget.recording.programs import PRECISIONS, Model, Probe, program_of
from vrambudget.recording.runs import BATCH, LENGTH, recording

DEPTHS = (
    *("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
    *("decoder_layers", "num_decoder_layers", "num_encoder_layers"),
)
_DEEP = (4, 6, 10, 14)
_NEVER = {
    "return_dict",
    "problem_type",
    "model_type",
    "transformers_version",
    "architectures",
    "dtype",
    "use_cache",
    *DEPTHS,
}
_HEADS = (
    ("hidden_size", "num_attention_heads"),
    ("hidden_size", "n_head"),
    ("n_embd", "n_head"),
    ("d_model", "encoder_attention_heads"),
    ("d_model", "decoder_attention_heads"),
    ("d_model", "num_heads"),
    ("d_model", "n_heads"),
    ("hidden_size", "num_heads"),
    ("emb_dim", "n_heads"),
)
_LABELS = {"id2label", "label2id", "num_labels"}


@dataclass(slots=True)
class Recorded:
    """A program, and what the recording found out about it."""

    program: Program
    free: list[str]
    fixed: list[str]
    checked: int  # sizes that were no probes, at which it is equal


def record(values: Values, **job: Any) -> Recorded:
    """Return the program of a configuration's model. Raises VramBudgetError where it has none."""
    error: VramBudgetError | None = None
    for deep in _DEEP:
        try:
            recorder = _Recorder(values, deep, job)
            if recorder.folds() or deep == _DEEP[-1]:
                return recorder.recorded()
        except NotModelledError as problem:
            error = problem
    if error is not None:
        raise error
    return _Recorder(values, None, job).recorded()


class _Recorder:
    """Records one configuration at a depth, None for its own."""

    def __init__(self, values: Values, deep: int | None, job: Values) -> None:
        self._job = job
        self._length: int = job.get("block", LENGTH)
        own = transformers.AutoConfig.for_model(**values)
        self._map = dict(type(own).attribute_map)
        self._depths = [key for key in DEPTHS if key in vars(own)]
        self._short = dict(values)
        if deep is not None:
            for extra, key in zip(count(), self._depths):
                self._short[key] = deep + 2 * extra if len(self._depths) > 1 else deep
        self._full = self._explicit(self._short)
        self.base = recording(self._full, **job)

    @staticmethod
    def _explicit(values: Values) -> Values:
        own = transformers.AutoConfig.for_model(**values)
        found = {k: v for k, v in vars(own).items() if not k.startswith("_")}
        plain = own.to_dict()
        return {
            **{k: plain.get(k, v) for k, v in found.items() if k in plain},
            "model_type": values["model_type"],
        }

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
        probe = [Probe({"batch": BATCH, "length": self._length}, "bf16", self.base)]
        program = program_of(probe, Model(depths=self.depths()))
        mine = [row for row in program.stacks if row[1] is not None]
        return bool(mine) and all(row[3] is not None for row in mine)

    def recorded(self) -> Recorded:
        """Return the program of all probes."""
        sizes = frozenset(k for k, v in self._full.items() if type(v) is int) - _NEVER
        read = {key for _, key in self.base.read} & set(self._full)
        never = _NEVER if str(self._job.get("task", "")).endswith("cls") else _NEVER | _LABELS
        flat = flattened({k: v for k, v in self._full.items() if k in read - never})
        keys = sorted(flat)
        free: dict[str, Probe] = {}
        conditions: Values = {}
        base_sizes: dict[str, int] = {"batch": BATCH, "length": self._length}
        self.base = recording(self._full, sizes, **self._job)
        for key in keys:
            value = flat[key]
            if key.rpartition(".")[2] in IGNORED_KEYS:
                continue
            if not isinstance(value, int | float) or isinstance(value, bool):
                conditions[key] = value
                continue
            verdict, changed, found = self._changed(key, value, sizes)
            if verdict == "free":
                base_sizes[key] = int(value)
                free[key] = Probe({key: changed}, "bf16", found)
            elif verdict == "fixed":
                conditions[key] = value
            elif isinstance(value, float) and value:
                conditions[key] = {"nonzero": True}
        for name in ("batch", "length"):
            changed = BATCH + 2 if name == "batch" else self._length + 4
            job = {"batch": changed} if name == "batch" else {"block": changed}
            found = recording(self._full, sizes, **{**self._job, **job})
            free[name] = Probe({name: changed}, "bf16", found)
        return self._merged(free, conditions, base_sizes, sizes)

    def _sizes_per_head(self, used: list[str]) -> dict[str, str]:
        """Return the width of a head as a size, where the configuration has no key for it."""
        if "head_dim" in used:
            return {}
        found: dict[str, str] = {}
        for width, heads in _HEADS:
            if width in used and heads in used and self._full[width] % self._full[heads] == 0:
                found[f"{width}_per_head" if found else "head_size"] = f"{width}//{heads}"
        return found

    def _runs_in_eval(self) -> bool:
        """Return whether the model's code runs the same operations where it does not train."""
        found = recording(self._full, **{**self._job, "model_mode": "eval"})
        rows = [
            [
                (s[0], r[0], r[1] if r[0] == "op" else getattr(r[1], "name", ""))
                for s, r in each.rows
            ]
            for each in (self.base, found)
        ]
        return rows[0] == rows[1]

    def _merged(
        self,
        free: dict[str, Probe],
        conditions: Values,
        base: dict[str, int],
        sizes: frozenset[str],
    ) -> Recorded:
        """Merge all probes; a key whose probe does not fit is a condition."""
        precisions = [
            Probe(base, name, recording(self._full, sizes, **{**self._job, "precision": name}))
            for name in ("fp32", "amp-bf16")
        ]
        model = Model(source=self._source(), depths=self.depths())
        error: UnfitError | None = None
        keys = list(free)
        for dropped in [None, *(k for k in keys if k not in {"batch", "length"})]:
            used = [k for k in keys if k != dropped]
            symbols = {k: v for k, v in base.items() if k in used}
            derived = self._sizes_per_head(used)
            model.derived = {}
            together = self._together(free, used, sizes)
            probes = [
                Probe(symbols, "bf16", self.base),
                *(Probe(symbols | free[k].sizes, "bf16", free[k].recording) for k in used),
                *(Probe(symbols | own, "bf16", found) for own, found in together),
                *(Probe(symbols, p.precision, p.recording) for p in precisions),
            ]
            if derived:
                for probe in probes:
                    for name, text in derived.items():
                        probe.sizes = {**probe.sizes, name: value_of(text, probe.sizes)}
                model.derived = derived
            own = {**conditions} if dropped is None else {**conditions, dropped: base[dropped]}
            try:
                program = program_of(probes, model)
            except UnfitError as problem:
                error = error or problem
                continue
            program.keys = self._keys(own, used, sizes)
            fixed = sorted(own)
            return Recorded(program, used, fixed, 0)
        raise error or UnfitError("no changed sizes can be recorded together")

    def _together(
        self, free: dict[str, Probe], used: list[str], sizes: frozenset[str]
    ) -> list[tuple[dict[str, int], Listener]]:
        """Record with all free sizes changed at once, and further, as far as the model takes it."""
        found = []
        changed = {k: next(iter(free[k].sizes.values())) for k in used}
        for factor, extra in ((1, 4), (2, 8), (3, 12)):
            own = {k: v * factor for k, v in changed.items() if k not in {"batch", "length"}}
            sizes_of = {"batch": changed["batch"] + factor, "length": changed["length"] + extra}
            job = {"batch": sizes_of["batch"], "block": sizes_of["length"]}
            for left_out in [None, *own]:
                values = {k: v for k, v in own.items() if k != left_out}
                try:
                    made = recording(
                        {**self._full, **nested(self._full, values)}, sizes, **{**self._job, **job}
                    )
                    self._same(made)
                except (VramBudgetError, UnfitError):
                    continue
                found.append(({**values, **sizes_of}, made))
                break
        return found

    def _source(self) -> Values:
        return {
            "model_type": self._full["model_type"],
            "transformers": installed_version("transformers"),
            "torch": installed_version("torch"),
            **{k: v for k, v in self._job.items() if k in {"task", "use_cache"}},
            "modes": ["train", "eval"] if self._runs_in_eval() else ["train"],
        }

    def _changed(self, key: str, value: Any, sizes: frozenset[str]) -> tuple[str, Any, Listener]:
        """Record with a key changed: it is free, fixed, or ignored, which changes nothing."""
        for changed in others(value):
            values = {**self._full, **nested(self._full, {key: changed})}
            try:
                found = recording(values, sizes, **self._job)
                if self._is_base(found):
                    if isinstance(value, int) and self._is_compared(found):
                        return "free", changed, found
                    return "ignored", changed, found
                self._same(found)
            except (VramBudgetError, UnfitError):
                continue
            if type(value) is int:
                return "free", changed, found
            return "fixed", changed, found
        return "fixed", None, self.base

    def _is_base(self, found: Listener) -> bool:
        names = ("build", "parameters", "buffers", "inputs", "outputs")
        if any(found.facts[n] != self.base.facts[n] for n in names):
            return False
        return repr(found.rows) == repr(self.base.rows)

    def _is_compared(self, found: Listener) -> bool:
        return found.comparisons != self.base.comparisons

    def _same(self, found: Listener) -> None:
        """Raise UnfitError where a recording differs from the base in more than sizes."""
        if found.problems:
            raise UnfitError(found.problems[0])
        both = [self.base, found]
        merger = Merger(_AnyFitter([{}]), [PRECISIONS["bf16"]] * 2)
        code_of(both, merger)
        for name in ("build", "parameters", "buffers", "outputs"):
            merger.merge([r.facts[name] for r in both], name)
        outcomes = [[(c.place, c.outcome) for c in r.comparisons] for r in both]
        if outcomes[0] != outcomes[1]:
            raise UnfitError("a comparison comes out otherwise")

    def _keys(self, conditions: Values, free: list[str], sizes: frozenset[str]) -> Values:
        """Return what a configuration must say: its keys, with what holds where it says nothing."""
        del sizes
        found: Values = {}
        defaults = Defaults(self._short, [k for k in free if k not in {"batch", "length"}])
        depths = {key: self._full[key] for key in self._depths}
        for key in [*free, *depths]:
            if key not in {"batch", "length"}:
                found[key] = {"free": True, **defaults.of(key)}
        for key, value in conditions.items():
            if isinstance(value, dict) and value.get("nonzero"):
                found[key] = {"nonzero": True, **defaults.of(key)}
            elif isinstance(value, list) and len(value) in depths.values():
                found[key] = {"layers": value}
            else:
                found[key] = {"is": value, **defaults.of(key)}
        found["attribute_map"] = {k: v for k, v in self._map.items() if v in found}
        return found


class _AnyFitter(Fitter):
    """Takes any numbers: only what surrounds them is compared."""

    def __init__(self, probes: Any) -> None:
        del probes
        self.unfit = []

    def fit(self, values: Any) -> int | str | None:
        """Return an expression of nothing."""
        return int(values[0]) if len(set(values)) == 1 else "any"
