"""Record a pipeline of diffusers: `PYTHONPATH=. python tests/picture_programs.py NAME [COMPONENT]`.

It writes the pipeline's schedule, and a program for each call of a component that has none yet;
diffusers, transformers, peft and torch are needed.

    NAME.PRECISION.schedule.program       what the pipeline does between its components' calls
    PROGRAM.CALL.program                  a component's call, shared by the pipelines that have it

Sizes are batch, height, width, frames and the length of the text. Each is held against its trace at
two sizes that were no probes, of another depth.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from picture_components import WAYS, Recorder
from picture_pipelines import shortened
from picture_schedules import merged, schedule_of
from picture_signatures import Component

from vrambudget.config.versions import installed_version
from vrambudget.dtypes import float32
from vrambudget.errors import VramBudgetError
from vrambudget.pictures.cards import card, program_name
from vrambudget.pictures.parts import RECORDED
from vrambudget.program.catalog import program_at
from vrambudget.program.form import Program
from vrambudget.program.writing import written
from vrambudget.recording.checking import UnequalError
from vrambudget.recording.diffusers import built
from vrambudget.recording.merging import UnfitError
from vrambudget.recording.programs import PRECISIONS

Sizes = dict[str, int]
_KINDS = ("forward", "lora", "full", "blocks")
_TARGETS = {"lora": "lora_targets", "blocks": "linear_in_blocks"}
_DENOISERS = ("transformer", "unet")
_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def cases_of(own: dict[str, Any]) -> tuple[list[Sizes], list[Sizes]]:
    """Return the sizes at which a pipeline is recorded, and those at which it is checked."""
    step = own.get("recorded_step", own["multiple"])
    base = {"batch": own.get("pictures", 2), "height": 4 * step, "width": 5 * step}
    further = {"batch": 0 if "pictures" in own else 1, "height": step, "width": step}
    if own["frames_step"]:
        base["frames"], further["frames"] = 4 * own["frames_step"] + 1, own["frames_step"]
    if own.get("length"):
        base["length"], further["length"] = 48, 16
    cases = [base]
    cases += [{**base, key: base[key] + further[key]} for key in base if further[key]]
    cases += [{key: base[key] + n * further[key] for key in base} for n in (2, 3)]
    if own.get("recorded_tall"):
        cases.append({**base, "height": base["width"] + further["height"]})
    checks = [{key: base[key] + n * further[key] for key in base} for n in (4, 6)]
    checks[1]["batch"] = 1
    return cases, checks


def record_pipeline(name: str, only: str = "") -> None:
    """Write the programs of a pipeline, or of components whose call begins with `only`."""
    folder, say = RECORDED, partial(print, flush=True)
    own = card(name)
    cases, checks = cases_of(own)
    precision = own["precision"]
    seen = [schedule_of(own, case, precision) for case in cases]
    held = [schedule_of(own, case, precision) for case in checks]
    program = merged(cases, seen, [precision] * len(cases))
    versions = {x: installed_version(x) for x in ("diffusers", "transformers", "torch")}
    program.source = {"pipeline": own["pipeline"], **versions, "precision": precision}
    calls_of = dict(r[0].split(".") for word, r in seen[0].rows if word == "run")
    program.source["components"] = [[n, calls_of[n]] for n in seen[0].parts if n in calls_of]
    if not only:
        (folder / f"{name}.{precision}.schedule.program").write_text(written(program))
    for key in seen[0].components:
        component, _, call = key.partition(".")
        if not key.startswith(only):
            continue
        calls = [s.components[key] for s in (*seen, *held)]
        kinds: tuple[str, ...] = _KINDS if component.startswith(_DENOISERS) else ("forward",)
        if not any("norm" in name for name in own.get("linear_in_blocks", ())):
            kinds = tuple(kind for kind in kinds if kind != "blocks")  # adapted as "lora" is
        for kind in kinds:
            word = kind if call == "forward" else call
            path = folder / f"{program_name(own, component)}.{word}.program"
            single = path.with_suffix(f".1{path.suffix}")
            path = single if own.get("pictures") == 1 and single.is_file() else path
            try:
                targets = own[_TARGETS[kind]] if kind in _TARGETS else ()
                _Calls(own["components"][component], kind, calls, say, targets).record(path)
            except VramBudgetError as error:
                say(f"{path.name}: {type(error).__name__}: {error}")


class _Calls:
    """A component's calls in one way; the last two are no probes."""

    def __init__(
        self,
        keys: dict[str, Any],
        kind: str,
        calls: list[Component],
        say: Callable[[str], None],
        targets: Sequence[str] = (),
    ) -> None:
        self._keys, self._kind, self._say, self._targets = keys, kind, say, targets
        self._short, self._depths = shortened(keys)
        *self._probes, self._first, self._second = calls
        self._way = WAYS[kind]

    def record(self, path: Path) -> None:
        """Write the program, and one of its own for a single picture where that lies otherwise."""
        known = path.is_file()  # another pipeline's, or recorded before
        program = program_at(path) if known else self._recorded(self._probes)
        self._check(program, self._first)
        single, own_path = self._second.alone(self._first), path.with_suffix(f".1{path.suffix}")
        try:
            self._check(program_at(own_path) if own_path.is_file() else program, single)
        except UnequalError as error:
            self._say(f"  {path.name}: single pictures lie otherwise: {error}")
            alone = [p.alone(self._probes[1]) for p in (self._probes[0], *self._probes[2:])]
            own = self._recorded(alone)
            self._check(own, single)
            _write(own, own_path, self._say)
            rows = program.inputs[0][1][0]
            program.guards.append([rows[1:], ">", "1", True, "single pictures have a program"])
        _write(program, path, self._say)

    def _make(self, dtype: str, more: int = 0) -> Any:
        keys = {**self._short, **{key: n + more for key, n in self._depths.items()}}
        return built(keys, where=keys["class"], dtype=_NAMES[dtype], cast=True)

    def _recorded(self, calls: list[Component]) -> Program:
        """Return the program of calls. Raises UnfitError where they are not one."""
        library = self._keys["class"].partition(".")[0]
        source = {"class": self._keys["class"], library: installed_version(library)}
        recorder = Recorder(self._make, self._way, self._targets)
        precisions = self._way.precisions
        if self._kind == "forward" and calls[0].weights is float32:
            precisions = ("fp32", "bf16")
        seen = [(call, precisions[0]) for call in calls]
        try:
            others = [(calls[0], precision) for precision in precisions[1:]]
            program = recorder.program([*seen, *others], source, self._depths)
        except UnfitError as error:  # its code asks for the weights' type
            if not others:
                raise
            self._say(f"  in {precisions[0]} alone: {error}")
            precisions = precisions[:1]
            program = recorder.program(seen, source, self._depths)
        module = self._make("bfloat16")
        for key, own in (
            ("kept_wide", "_skip_layerwise_casting_patterns"),
            ("kept_float32", "_keep_in_fp32_modules"),
        ):
            program.source[key] = [*(getattr(module, own, None) or ())]
        program.source["weights"] = sorted({PRECISIONS[p][0] for p in precisions})
        halves = "bfloat16" in program.source["weights"]
        if halves and _kept(module) == _kept(self._make("float16")):
            program.source["weights"].append("float16")
        return program

    def _check(self, program: Program, call: Component) -> None:
        """Raise UnequalError where the program does not equal its trace, three layers deeper."""
        own = program.source["weights"]
        precision = next(p for p in self._way.precisions if PRECISIONS[p][0] in own)
        deeper = {key: n + 3 for key, n in self._depths.items()}
        checker = Recorder(lambda dtype: self._make(dtype, 3), self._way, self._targets)
        checker.check(program, call, precision, deeper)


def _write(program: Program, path: Path, say: Callable[[str], None]) -> None:
    path.write_text(written(program))
    say(f"{path.name}: {path.stat().st_size:,} bytes")


def _kept(module: Any) -> set[str]:
    """Return the weights that stay in float32."""
    return {name for name, p in module.named_parameters() if p.dtype is torch.float32}


if __name__ == "__main__":
    record_pipeline(*sys.argv[1:])
