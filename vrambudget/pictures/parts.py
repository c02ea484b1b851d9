"""A component of a pipeline on the GPU: its program, and where its weights are.

Weights are made off the GPU, and arrive in the order in which `module.to` moves them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vrambudget.dtypes import DType, uint8
from vrambudget.engine.context import context, made_for, on_meta
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Tensor, empty
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.layers import Linear
from vrambudget.pictures.cards import program_name
from vrambudget.pictures.packed import Packed, pack
from vrambudget.program.catalog import program_at
from vrambudget.program.component import PlayedComponent
from vrambudget.program.form import TYPES, Program
from vrambudget.tape.events import Purpose

RECORDED = Path(__file__).parent / "recorded"
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def program_of(own: dict[str, Any], component: str, kind: str, *, single: bool) -> Program:
    """Return a component's program. Raises NotModelledError where none was recorded.

    `single`: of one picture, which may have a program of its own.
    """
    path = RECORDED / f"{program_name(own, component)}.{kind}.program"
    if single and path.with_suffix(".1.program").is_file():
        path = path.with_suffix(".1.program")
    if not path.is_file():
        raise NotModelledError(
            f"{own['title']}: {component} was not recorded for this ({path.name})",
            hint="`vrambudget rehearse --gpu GPU -- python train.py` runs any script",
        )
    return program_at(path)


class PipelinePart:
    """One component; `kind` is the call that it is made for."""

    def __init__(
        self,
        own: dict[str, Any],
        name: str,
        kind: str,
        dtype: DType,
        base: str = "bf16",
        *,
        single: bool = False,
    ) -> None:
        keys = own["components"][name]
        self.name, self.base = name, base
        self.program = program_of(own, name, kind, single=single)
        self.dtype = TYPES[PRECISIONS[keys["precision"]]] if "precision" in keys else dtype
        self._check_type(own)
        depths = {row[1]: keys[row[1]] for row in self.program.stacks if row[1] is not None}
        before, context.options = context.options, replace(context.options, dtype=self.dtype)
        with on_meta():
            self.model = PlayedComponent(self.program, depths)
            self._order = self._in_order()
        context.options = before
        kept = self.program.source["kept_float32"]
        self.packs: dict[int, Packed] = pack(self.model, self.dtype, kept) if base == "nf4" else {}
        self.in_float8: set[int] = set()  # weights that are in 16 bit only while they are used
        self._swapped: dict[int, Tensor] = {}  # weights that take turns in the place of others
        self._place: Tensor | None = None  # one of those others
        self.parameters = sum(p.numel for p in self.model.parameters())

    def _check_type(self, own: Mapping[str, Any]) -> None:
        recorded = self.program.source["weights"]
        if self.dtype.name not in recorded:
            words = [word for word, name in PRECISIONS.items() if name in recorded]
            raise NotModelledError(
                f"{own['title']}: {self.name} in {self.dtype.name} was not recorded",
                hint=f"--precision {' or '.join(words)}",
            )

    def _in_order(self) -> list[Tensor]:
        """Return weights and buffers, each once, in the order in which they were made."""
        found = {id(v): v for v in self.model.weights.values() if v.numel}
        return sorted(found.values(), key=lambda v: v.storage.index)

    def tensors(self) -> Iterator[Tensor]:
        """Yield what lies on the GPU, in order; what packs a weight comes with it."""
        for v in self._order:
            if id(v) in self._swapped:
                continue
            yield v
            if id(v) in self.packs:
                yield from self.packs[id(v)].tables

    def _lies(self, v: Tensor) -> tuple[Any, DType]:
        """Return the shape and type in which a weight is kept."""
        pack = self.packs.get(id(v))
        return (v.shape, v.dtype) if pack is None else (pack.shape, uint8)

    def arrive(self, tensors: Sequence[Tensor] | None = None) -> None:
        """Bring weights to the GPU, where they are not there."""
        context.operation = "to_device"
        with made_for(Purpose.WEIGHTS):
            for v in self.tensors() if tensors is None else tensors:
                own: Any = v.storage  # None once it left
                if own is None or own.tape is not context.tape:
                    v.storage = empty(*self._lies(v)).storage
        for v in self._swapped.values() if tensors is None else ():
            self.give_back(v)

    def give_back(self, weight: Tensor) -> bool:
        """Let a swapped weight lie in another's place again; return whether it is one."""
        if id(weight) not in self._swapped:
            return False
        assert self._place is not None  # noqa: S101 - swap() chose it
        weight.storage = self._place.storage
        return True

    def leave(self, tensors: Sequence[Tensor] | None = None) -> None:
        """Take weights from the GPU."""
        nowhere: Any = None
        for v in (*self.tensors(), *self._swapped.values()) if tensors is None else tensors:
            v.storage = nowhere

    def linear_weights(self, block: Module | None = None) -> list[Tensor]:
        """Return the weights of linear layers, of all or of a block's."""
        modules = (self.model if block is None else block).modules()
        return [m.weight for m in modules if isinstance(m, Linear)]

    def swap(self, count: int) -> None:
        """Let the last blocks' linear weights take turns in the place of the others'."""
        blocks = self.blocks()
        if not 0 < count < len(blocks) - 1:
            raise VramBudgetError(
                f"--swap is {count}; the {self.name} has {len(blocks)} blocks",
                hint=f"the most is {len(blocks) - 2}",
            )
        self._swapped = {id(v): v for b in blocks[-count:] for v in self.linear_weights(b)}
        self._place = self.linear_weights(blocks[0])[0]

    def cast(self, dtype: DType) -> None:
        """Change the weights' type, as module.to(dtype) does, one after the other."""
        self.dtype = dtype
        self.model.forget()
        context.operation = "to_copy"
        for v in self.model.parameters():
            if v.dtype.is_floating_point and v.dtype is not dtype:
                v.dtype = dtype
                if v.storage is not None:
                    with made_for(Purpose.WEIGHTS):
                        v.storage = empty(v.shape, dtype).storage

    def call(self, inputs: Sequence[Tensor], numbers: Mapping[str, int]) -> list[Tensor]:
        """Return the outputs of a call, in transformers' order: keys and values come second."""
        context.options = replace(context.options, dtype=self.dtype)
        self.model.numbers = numbers
        names = [name for name, *_ in self.program.inputs]
        outputs = self.model(**dict(zip(names, inputs, strict=True)))
        others = outputs.others
        if self.program.result.get("cached"):
            others = *others[-1], *others[:-1]
        return [outputs.logits, *others]

    def blocks(self) -> list[Module]:
        """Return the blocks of the denoiser, in the order in which they run."""
        at = {path[:-1]: module for path, module in self.model.named_modules()}
        stacks = [path for path, key, *_ in self.program.stacks if key is not None]
        numbers = [(stack, n) for stack in stacks for n in range(len(at))]
        return [at[f"{stack}.{n}"] for stack, n in numbers if f"{stack}.{n}" in at]
