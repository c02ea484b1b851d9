"""The program of a configuration: recorded with all its free sizes changed, one and together.

Which keys are free, `probing` finds out. A key of layers is free where layers recur
(recording.folding).
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from vrambudget.config.model_config import HARMLESS_VALUES, IGNORED_KEYS
from vrambudget.config.versions import installed_version
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.expressions import value as value_of
from vrambudget.program.form import COUNT, Program
from vrambudget.recording.keys import CONVERTED, OF_FILES, Defaults, Values, flattened, nested
from vrambudget.recording.listener import Listener
from vrambudget.recording.merging import UnfitError, joined
from vrambudget.recording.probing import JOBS, LONGER, PRIMES, Prober, Verdicts
from vrambudget.recording.programs import Probe, RecordedModel, program_of
from vrambudget.recording.rows import inserted, kinds_of, rates_in

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
    ("dim", "n_heads"),
)
_DEEP = (4, 6, 10, 14)
_WEIGHTS: dict[str, Values] = {
    "bf16": {"weights": "16 bit", "autocast": False},
    "fp32": {"weights": "32 bit", "autocast": False},
    "amp-bf16": {"weights": "32 bit", "autocast": True},
    "fp16": {"weights": "16 bit", "autocast": False},
}
"""Where a model's code asks for types: the precisions that have a program each."""

_DECISIVE = {"task", "use_cache", "attention", "causal_mask", "checkpointing"}
"""Fields of a job that decide what a model's code does, besides its mask."""


@dataclass(slots=True)
class Recorded:
    """A program, and what the recording found out about it."""

    program: Program
    free: list[str]
    fixed: list[str]
    checked: int  # sizes that were no probes, at which it is equal
    verdicts: "Verdicts | None" = None


def record(
    values: Values,
    like: Verdicts | None = None,
    tied: Mapping[str, str] | None = None,
    **job: Any,
) -> Recorded:
    """Return the program of a configuration's model. Raises VramBudgetError where it has none.

    `like`: what keys decide, where another job's recording found it out. `tied`: keys that are
    always as large as another one.
    """
    tied = tied or {}
    if like is not None:
        return ConfigurationsRecorder(values, like.depth, job, tied).every(like)
    for deep in _DEEP[:-1]:
        with suppress(NotModelledError):
            recorder = ConfigurationsRecorder(values, deep, job, tied)
            if recorder.folds() and (more := recorder.rest()):
                recorder = ConfigurationsRecorder(values, deep + more, job, tied)
            if recorder.folds():
                return recorder.every()
    return ConfigurationsRecorder(values, _DEEP[-1], job, tied).every()


def names_in_lines(program: Program) -> set[str]:
    """Return the words of a program's lines: all sizes that it uses are among them."""
    lines = (program.guards, program.stacks, [*program.sizes.values()], program.inputs)
    built = (program.effects, program.built, program.builds, program.code)
    return set(re.findall(r"[a-z]\w*", repr((lines, built))))


class ConfigurationsRecorder(Prober):
    """Makes the program of one configuration, at a depth, None for its own."""

    def every(self, verdicts: Verdicts | None = None) -> Recorded:
        """Return the program of all precisions, or one for each where the code asks for types.

        Some ask for float16 alone, to clamp it (Whisper's and mBART's layers).
        """
        if "precision" in self._job:
            return self.recorded(verdicts or self.verdicts())
        names: list[str | None] = ["bf16", "fp32", "amp-bf16"]
        if self.is_one_for(("fp32", "amp-bf16")):
            names = [None]
        if clamps := not self.is_one_for(("fp16",)):
            names.append("fp16")
        found = []
        for name in names:
            job = self._asked if name is None else {**self._asked, "precision": name}
            own = (
                self
                if name is None
                else ConfigurationsRecorder(self._values, self._deep, job, self._tied)
            )
            verdicts = verdicts or own.verdicts()
            found.append(own.recorded(verdicts))
            if clamps:
                found[-1].program.when["fp16"] = [name == "fp16"]
        return replace(found[0], program=joined(each.program for each in found))

    def recorded(self, verdicts: Verdicts) -> Recorded:
        """Return the program of probes of all free sizes; one that does not fit is a condition."""
        error: UnfitError | None = None
        for dropped in [None, *verdicts.droppable]:
            free = {k: v for k, v in verdicts.free.items() if k != dropped}
            own = dict(verdicts.conditions)
            if dropped is not None:
                own[dropped] = flattened(self._full)[dropped]
            try:
                program = self._program(free, verdicts)
            except UnfitError as problem:
                error = error or problem
                continue
            verdicts.folds = verdicts.folds or {row[0]: row[2:4] for row in program.stacks}
            free = {k: v for k, v in free.items() if k in names_in_lines(program)}
            program.keys = self._keys(own, list(free), verdicts)
            if pixels := self.base.facts["inputs"].get("pixel_values"):  # a job may say their size
                size = dict.fromkeys(("is", "default"), int(pixels[0][-1]))
                program.keys.setdefault("image_size", size)
            program.source["others"] = self._others(program.keys)
            if self.ignores_count:
                program.inputs.append([COUNT, [], "~int64", "t0"])  # which nothing reads
            return Recorded(program, [*free, *self._own_jobs], sorted(own), 0, verdicts)
        raise error or UnfitError("no changed sizes can be recorded together")

    def _others(self, keys: Values) -> list[str]:
        """Return the keys of the type that decide nothing here."""
        roots = {key.partition(".")[0] for key in keys}
        unread = self._own.keys() - roots - IGNORED_KEYS - HARMLESS_VALUES.keys()
        of_files = OF_FILES.get(self._full["model_type"], ())
        return sorted({*unread, *of_files} - {"model_type", "num_labels"})

    def _program(self, free: dict[str, int], verdicts: Verdicts) -> Program:
        flat = flattened(self._full)
        base = {
            **{k: int(flat[k]) for k in (*free, *self._tied)},
            **self._own_jobs,
        }
        own: str = self._job.get("precision", "bf16")
        changed = free | {k: size + LONGER[k] for k, size in self._own_jobs.items()}
        plan = [] if "precision" in self._job else [(base, "fp32"), (base, "amp-bf16")]
        probes = [Probe(dict(base), own, self.base), *(self._probe(*row) for row in plan)]
        mixed = self._mixed(free, base) if verdicts.folds else []
        probes += mixed or [self._probe({**base, k: v}, own) for k, v in changed.items()]
        probes += [] if mixed else self._together(free, base)
        alone = ("batch", "length") if "call" in self._job else self._own_jobs
        lone = [self._probe({**base, key: 1}, own) for key in alone]
        derived = self._sizes_per_head(list(free))
        for probe in (*probes, *lone):
            probe.sizes |= {name: value_of(text, probe.sizes) for name, text in derived.items()}
        model = RecordedModel(
            source=self._source(),
            when=self._when(),
            depths=self.depths(),
            folds=verdicts.folds,
            derived=derived,
            lone=lone,
        )
        model.activations = {
            row: key for key in verdicts.activations for row in self._activated(key)
        }
        for without, what in ((self._unlabelled(), "labels"), (self.plain, COUNT)):
            model.given |= dict.fromkeys(inserted(self.base, without) or (), what)
        if verdicts.built is None:
            for key, value in verdicts.builds.items():
                built = [self._facts(probe, {key: value}) for probe in probes]
                model.builds.append((key, value, built))
        program = program_of(probes, model)
        program.guards += [[a, "==", b, True, "equal sizes"] for a, b in self._tied.items()]
        verdicts.built = program.builds = verdicts.built or program.builds
        return program

    def _probe(
        self, sizes: dict[str, int], precision: str, values: Values | None = None, **job: Any
    ) -> Probe:
        sizes = sizes | {key: sizes[other] for key, other in self._tied.items()}
        own = {k: v for k, v in sizes.items() if k not in JOBS}
        job |= {JOBS[k]: sizes[k] for k in self._own_jobs} | {"precision": precision}
        found = self._recording({**nested(self._full, own), **(values or {})}, **job)
        return Probe(dict(sizes), precision, found)

    def _facts(self, probe: Probe, values: Values) -> Any:
        known = {k: v for k, v in probe.sizes.items() if k in flattened(self._full) or k in JOBS}
        return self._probe(known, probe.precision, values, ends_built=True).recording.facts

    def _unlabelled(self) -> Listener | None:
        """Return what the model does without labels, None where it takes none."""
        if "labels" not in self.base.facts["inputs"]:
            return None
        try:
            return self._recording(label_smoothing=0.1)
        except VramBudgetError:
            return None

    def _sizes_per_head(self, used: list[str]) -> dict[str, str]:
        """Return the width of a head as a size, where the configuration has no key for it."""
        if {"head_dim", "d_kv"} & {*used}:
            return {}
        found: dict[str, str] = {}
        for width, heads in _HEADS:
            if width in used and heads in used and self._full[width] % self._full[heads] == 0:
                found[f"{width}_per_head" if found else "head_size"] = f"{width}//{heads}"
        if {"image_size", "patch_size"} <= set(used):
            found["patches"] = "image_size//patch_size"
        return found

    def _together(self, free: dict[str, int], base: dict[str, int]) -> list[Probe]:
        """Record with all free sizes changed at once, and further, as far as the model takes it."""
        found, own_precision = [], self._job.get("precision", "bf16")
        for factor, extra in ((1, 4), (2, 8), (3, 12)):
            longer = {"batch": 2 + factor, "length": 4 + extra, "target": 7 + 2 * extra}
            longer["cache_length"] = 40 + 3 * extra
            jobs = {k: size + longer[k] for k, size in self._own_jobs.items()}
            own = {k: v * factor for k, v in free.items()}
            for left_out in [None, *own]:
                sizes = {**base, **{k: v for k, v in own.items() if k != left_out}}
                try:
                    made = self._probe(sizes | jobs, own_precision)
                    self._same(made.recording)
                except (VramBudgetError, UnfitError):
                    continue
                found.append(made)
                break
        return found

    def _mixed(self, free: dict[str, int], base: dict[str, int]) -> list[Probe]:
        """Record all free sizes changed, each by a prime of its own, and halves of them.

        Few probes of a model whose keys are known; [] where it takes no such sizes.
        """
        if len(free) > len(PRIMES):
            return []
        changed = {key: base[key] * prime for key, prime in zip(free, PRIMES, strict=False)}
        changed |= {key: size + LONGER[key] for key, size in self._own_jobs.items()}
        precision, found = self._job.get("precision", "bf16"), []
        for part in (0, 1, 2, 4):
            own = {k: v for at, (k, v) in enumerate(changed.items()) if not at & part}
            try:
                found.append(self._probe({**base, **own}, precision))
                self._same(found[-1].recording, precision)
            except (VramBudgetError, UnfitError):
                return []
        return found

    def _source(self) -> Values:
        found: Values = {
            "model_type": self._full["model_type"],
            "transformers": installed_version("transformers"),
            "torch": installed_version("torch"),
        }
        if "target" in self._own_jobs:  # what its generation begins and ends with
            found["special_tokens"] = 2 + (self._own.get("bos_token_id") is not None)
            found["forces_last_token"] = self._own.get("forced_eos_token_id") is not None
        return found

    def _when(self) -> Values:
        """Return the job that is recorded, as far as it decides what the model's code does."""
        said = {k: v for k, v in self._job.items() if k in _DECISIVE}
        if "precision" in self._job:
            said |= _WEIGHTS[self._job["precision"]]
        if "call" in self._job:
            return said | {k: self._job[k] for k in ("call", "cache", "padding") if k in self._job}
        said |= {"call": "whole"} if "target" in self._own_jobs else {}
        mask = self._job.get("attention_mask", self._job.get("rows"))
        said["attention_mask"] = mask is not None
        if mask is not None:
            said["causal_mask"] = "built" if mask == "padded" else "skipped"
        return said if self._runs_in("eval") else {**said, "model_mode": "train"}

    def _runs_in(self, mode: str) -> bool:
        """Return whether the model's code runs the same operations where it does not train."""
        other = self._recording(model_mode=mode, loop="plain")
        return kinds_of(self.plain or self.base) == kinds_of(other)

    def _keys(self, conditions: Values, free: list[str], verdicts: Verdicts) -> Values:
        """Return what a configuration must say: its keys, with what holds where it says nothing."""
        found: Values = {}
        depths = {key: self._full[key] for key in self.depths().values()}
        defaults = Defaults(self._full["model_type"], [*free, *self._tied, *depths])
        for key in [*free, *self._tied, *depths]:
            found[key] = {"free": True, **defaults.of(key)}
        for key in self._rates:
            if key in self._rates_used():
                found[key] = {"rate": True, **defaults.of(key), **self._instead(key)}
        for key in verdicts.activations:
            found[key] = {"activation": True, **defaults.of(key)}
        for key, other in verdicts.builds.items():
            found[key] = {"in": [not other, other], "default": not other}
            found[key] |= {k: v for k, v in defaults.of(key).items() if v is not None}
        for key, value in conditions.items():
            if isinstance(value, dict) and value.get("nonzero"):
                found[key] = {"nonzero": True, **defaults.of(key)}
            elif isinstance(value, dict) and "absent" in value:
                found[key] = value
            elif isinstance(value, list) and len(value) in depths.values():
                found[key] = {"layers": value}
            else:
                found[key] = {"is": value, **defaults.of(key)}
        converted = CONVERTED.get(self._full["model_type"], {}).items()
        found |= {key: {"is": value, "default": value} for key, value in converted}
        found["attribute_map"] = {k: v for k, v in self._map.items() if v in found}
        return found

    def _instead(self, key: str) -> Values:
        """Return the rate that holds where a key is null: another key's."""
        if self._own[key] is not None:
            return {}
        after = rates_in(self._recording({key: None}).rows)
        return {"else": dict(zip(rates_in(self.base.rows), after, strict=True))[key]}
