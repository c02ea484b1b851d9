"""A pipeline's own call, written down: what it allocates between its components' calls.

    new / free        what the pipeline's code makes, and what it and its components made dies
    run               a component is called: its inputs, sizes, and the outputs that are held after
    cast              a component's weights change their type (the VAE goes to float32)
    rows              what is made for each picture of the batch in turn: how often, and one's rows
    rebind            in them: what the picture before has made dies

The call runs without gradients, so allocations are all that it leaves; each component's call is a
program of its own (picture_components), recorded from the arguments that are seen here.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import torch
from picture_components import PLATFORM
from picture_pipelines import on_the_gpu, pipeline
from picture_signatures import Component, signature_of

from vrambudget.dtypes import DType, uint8
from vrambudget.eager.mode import is_on_gpu
from vrambudget.eager.standing import Standing
from vrambudget.eager.step import stepped
from vrambudget.engine.context import context
from vrambudget.errors import NotModelledError
from vrambudget.program.form import Program, Row
from vrambudget.recording.fitting import Fitter
from vrambudget.recording.merging import Merger
from vrambudget.recording.programs import PRECISIONS
from vrambudget.traced.live import tensors_in
from vrambudget.traced.tensor import dtype_of

CALLS = ("forward", "encode", "decode")
STEPS = 2  # of the scheduler: all are identical; a second expert has one of its own
_MOST = 20  # rows that are looked at as one picture's
_MOST_REBOUND = 4  # of them that free what the picture before has left
Sizes = dict[str, int]
Labels = dict[int, int]


@dataclass(slots=True)
class Schedule:
    """What one call of a pipeline did."""

    rows: list[Row] = field(default_factory=list)
    components: dict[str, Component] = field(default_factory=dict)  # by "name.call"
    parts: list[str] = field(default_factory=list)  # in the pipeline's order


def schedule_of(card: dict[str, Any], sizes: Sizes, precision: str) -> Schedule:
    """Return what the pipeline of a GPU does in one call. Raises NotModelledError."""
    pipe = pipeline(card, precision, sizes.get("length"))
    parts = {n: p for n, p in pipe.components.items() if isinstance(p, torch.nn.Module)}
    heard = _Heard(parts)

    def prepare(mode: Standing) -> None:
        heard.begin(mode)
        if type(pipe.scheduler).__name__.startswith("FlowMatch"):
            pipe.scheduler.index_for_timestep = lambda *_, **__: 0  # else it reads a value back
        pipe.upcast_vae = lambda: pipe.vae.to(torch.float32)

    def generate(*_: Any) -> Any:
        with on_the_gpu(type(pipe)), torch.no_grad():
            made = pipe(**_arguments(type(pipe), sizes), **card.get("call", {})).values()
        heard.since(len(context.tape.events))
        return made

    stepped(generate, [*parts.values()], steps=1, platform=PLATFORM, prepare=prepare)
    return Schedule(heard.rows, heard.components, [*parts])


def _arguments(kind: type, sizes: Sizes) -> dict[str, Any]:
    known = inspect.signature(kind.__call__).parameters
    given = {
        "prompt": ["a prompt"] * sizes["batch"],
        "height": sizes["height"],
        "width": sizes["width"],
        "num_frames": sizes.get("frames"),
        "max_sequence_length": sizes.get("length"),
        "num_inference_steps": STEPS,
        "output_type": "pt",
        "negative_prompt": [""] * sizes["batch"] if "true_cfg_scale" in known else None,
    }
    return {key: x for key, x in given.items() if x is not None and key in known}


class _Heard:
    """Writes rows down while the pipeline runs."""

    def __init__(self, parts: dict[str, torch.nn.Module]) -> None:
        self.rows: list[Row] = []
        self.components: dict[str, Component] = {}
        self._parts, self._at = parts, 0
        self._labels: Labels = {}  # storages on the tape: their labels

    def begin(self, mode: Standing) -> None:
        """Take over the components' calls: their weights lie on the GPU."""
        self._gpu, self._at = mode.gpu, len(context.tape.events)
        for name, part in self._parts.items():
            for call in CALLS:
                if callable(getattr(part, call, None)):
                    setattr(part, call, self._watched(name, call, getattr(part, call)))
            part.to = self._moved(name, part)  # type: ignore[method-assign]

    def since(self, end: int) -> None:
        """Write down what happened on the tape up to an event."""
        tape = context.tape
        for event in tape.events[self._at : end]:
            if event >= 0:
                shape, dtype = tape.contents[event] or ((tape.sizes[event],), uint8)
                row = [self._label(event), list(shape), dtype, tape.operations[event]]
                self.rows.append(("new", row))
            elif ~event in self._labels:
                self.rows.append(("free", self._labels[~event]))
        self._at = end

    def _label(self, storage: int) -> int:
        return self._labels.setdefault(storage, len(self._labels))

    def _moved(self, name: str, part: torch.nn.Module) -> Callable[..., Any]:
        to = part.to

        def moved(*args: Any, **kwargs: Any) -> Any:
            kinds = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.dtype)]
            own = next((p.dtype for p in part.parameters() if p.is_floating_point()), None)
            self.since(len(context.tape.events))
            if kinds and kinds[0] is not own:
                self.rows.append(("cast", [name, dtype_of(kinds[0])]))
            result = to(*args, **kwargs)
            self._at = len(context.tape.events)
            return result

        return moved

    def _watched(self, name: str, call: str, function: Callable[..., Any]) -> Callable[..., Any]:
        own = f"{name}.{call}"
        asked = inspect.signature(function)

        def called(*args: Any, **kwargs: Any) -> Any:
            start = len(context.tape.events)
            self.since(start)
            signature = signature_of(asked, args, kwargs)
            self.components.setdefault(own, Component(name, call, signature, self._type(name)))
            given = [self._given(x) for x in signature.tensors.values()]
            result = function(*args, **kwargs)
            end = len(context.tape.events)
            born = {e for e in context.tape.events[start:end] if e >= 0}
            gone = {~e for e in context.tape.events[start:end] if e < 0}
            if gone - born & {*self._labels}:
                raise NotModelledError(f"{own} frees what the pipeline holds")
            made = [x for x in tensors_in(result, torch.Tensor) if is_on_gpu(x)]
            outs = [self._out(x, born - gone) for x in made]
            if call == "decode":
                self._note_encode(name, made[0])
            self._at = end
            self.rows.append(("run", [own, given, signature.sizes, outs]))
            return result

        return called

    def _note_encode(self, name: str, images: torch.Tensor) -> None:
        """Note how a training encodes what was decoded here: pictures as large, and as many."""
        encode: Any = self._parts[name].encode
        asked = inspect.signature(encode)
        signature = signature_of(asked, (), {"x": images, "return_dict": False})
        self.components.setdefault(
            f"{name}.encode", Component(name, "encode", signature, self._type(name))
        )

    def _type(self, name: str) -> DType:
        """Return the type of a component's weights."""
        kinds = [p.dtype for p in self._parts[name].parameters() if p.is_floating_point()]
        return dtype_of(max(set(kinds), key=kinds.count))

    def _given(self, x: torch.Tensor) -> list[Any]:
        v = self._gpu.tensor_of(x)
        strides = None if v.strides is None else list(v.strides)
        return [self._labels.get(v.storage.index), list(v.shape), v.dtype, strides]

    def _out(self, x: torch.Tensor, born: set[int]) -> Any:
        index = self._gpu.storage_of(x).index
        return self._label(index) if index in born or index in self._labels else None


def merged(cases: list[Sizes], schedules: list[Schedule], precisions: list[str]) -> Program:
    """Return the schedule at all sizes as a program. Raises UnfitError."""
    merger = Merger(Fitter(cases), [PRECISIONS[p] for p in precisions], [False] * len(cases))
    program = Program()
    program.sizes = dict.fromkeys(cases[0])
    every = folded([s.rows for s in schedules], [case["batch"] for case in cases])
    program.built = list(_merged(every, merger))
    return program


def folded(schedules: list[list[Row]], batches: list[int]) -> list[list[Row]]:
    """Return schedules with what each does as often as its batch written once, under `rows`.

    There a label is one tensor of each picture, all of one size; `free` frees the youngest, and
    `rebind` all but the youngest: a loop's variable holds one until the next picture has its own.
    """
    found, rest = [list[Row]() for _ in schedules], [[*rows] for rows in schedules]
    names: list[Labels] = [{} for _ in schedules]
    while any(rest):
        for rows, own in zip(rest, names, strict=True):
            _sort_frees(rows, own)
        every = [*zip(rest, batches, names, strict=True)]
        lengths = ((n, more) for n in range(1, _MOST) for more in range(min(n, _MOST_REBOUND)))
        loop = next((parts for n in lengths if (parts := _loops(every, *n))), None)
        for i, (rows, batch, own) in enumerate(every):
            if loop is None:
                body, names[i] = _named(rows[:1], own)
                found[i] += body
                rest[i] = rows[1:]
                continue
            found[i] += [("rows", [batch, [[*row] for row in loop[i][-1][0]]])]
            names[i] = {k: v for _, labels in loop[i] for k, v in labels.items()}
            rest[i] = rows[sum(len(body) for body, _ in loop[i]) :]
    return found


def _sort_frees(rows: list[Row], names: Labels) -> None:
    """Sort the frees at the beginning by what they free: their order changes nothing."""
    count = next((n for n, (word, _) in enumerate(rows) if word != "free"), len(rows))
    rows[:count] = sorted(rows[:count], key=lambda row: (names.get(row[1], row[1]), row[1]))


def _loops(
    every: list[tuple[list[Row], int, Labels]], length: int, rebound: int
) -> list[list[tuple[list[Row], Labels]]]:
    """Return the loop that begins in each schedule; nothing where one has none."""
    found = []
    for schedule in every:
        if not (parts := _loop(*schedule, length, rebound)):
            return []
        found.append(parts)
    return found


def _loop(
    rows: list[Row], batch: int, names: Labels, length: int, rebound: int
) -> list[tuple[list[Row], Labels]]:
    """Return what is done for each picture, rows and labels, where a loop begins; else nothing.

    So many rows free what the picture before has left, so the first one has none of them.
    """
    parts, at, before = list[tuple[list[Row], Labels]](), 0, Labels()
    for size in (length - rebound, *[length] * (batch - 1)):
        body, labels = _named(rows[at:][:size], names, before)
        parts.append((body, labels))
        at, before = at + size, labels
    body = parts[-1][0]
    own = len(body) == length and {word for word, _ in body} <= {"new", "free", "rebind"}
    first = [row for row in body if row[0] != "rebind"]
    is_loop = own and parts[0][0] == first and all(part == body for part, _ in parts[1:])
    return parts if is_loop and len(first) == length - rebound else []


def _named(
    rows: list[Row], names: Labels, before: Labels | None = None
) -> tuple[list[Row], Labels]:
    """Return rows by other labels, and those: the next numbers where there are none.

    `before`: the labels of the picture before, whose tensors are freed where others take over.
    """
    names, found, following = dict(names), list[Row](), count(max(names.values(), default=-1) + 1)

    def name(label: int | None) -> int | None:
        if label is not None and label not in names:
            names[label] = next(following)
        return None if label is None else names[label]

    for word, row in rows:
        if word == "free" and before and row in before and row not in names:
            found.append(("rebind", before[row]))
        elif word == "free":
            found.append((word, name(row)))
        elif word == "new":
            found.append((word, [name(row[0]), *row[1:]]))
        elif word == "run":
            given = [[name(x), *others] for x, *others in row[1]]
            found.append((word, [row[0], given, row[2], [*map(name, row[3])]]))
        else:
            found.append((word, row))
    return found, names


def _merged(schedules: list[list[Row]], merger: Merger) -> Iterator[Row]:
    for at, rows in enumerate(zip(*schedules, strict=False)):
        words = {row[0] for row in rows}
        if len(words) > 1:
            raise NotModelledError(f"row {at} of the schedule is {' or '.join(sorted(words))}")
        where = f"row {at} of the schedule, {rows[0][0]}"
        yield rows[0][0], merger.merge([row[1] for row in rows], where)
    if len({len(rows) for rows in schedules}) > 1:
        raise NotModelledError(f"schedules have {sorted(len(rows) for rows in schedules)} rows")
