"""Plays a program on the engine: no torch, no modelling code.

`Played` is the model: its parameters, allocated in their order, in a tree of modules, so that
freezing, LoRA, ranks and paths act on it as on any other; `forward` runs the program's steps. A
layer is a module that is called: a checkpoint, hooks and copies of identical layers act on it.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from vrambudget import dtypes
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import Parameter, Tensor, numel
from vrambudget.errors import NotModelledError, VramBudgetError
from vrambudget.models.parts.layers import (
    Conv1D,
    Dropout,
    Embedding,
    FalconLinear,
    LayerNorm,
    Linear,
)
from vrambudget.models.parts.outputs import Outputs
from vrambudget.program.bound import Bound, Env
from vrambudget.program.form import COUNT, Program, Row, with_paths
from vrambudget.program.guards import check_guards, derive
from vrambudget.program.headless import without_head
from vrambudget.program.layers import BlockCode, Forward, LayerBlock, PlayedLayer, PlayState
from vrambudget.program.rounds import with_rounds
from vrambudget.program.unfold import RecordedStack, Unfolded, unfolded
from vrambudget.program.values import Values
from vrambudget.tape.events import Purpose, Storage

KINDS: dict[str, type[Module]] = {
    "Linear": Linear,
    "Embedding": Embedding,
    "Conv1D": Conv1D,
    "FalconLinear": FalconLinear,
    "Dropout": Dropout,
    "LayerNorm": LayerNorm,
}
WITH_BIAS = (Linear, Conv1D, LayerNorm)
_PATCHES = "patch_embeddings"
"""Images' input embeddings, which gradient_checkpointing_enable() leaves alone."""


class Played(Module):
    """The model that a program is of."""

    def __init__(self, program: Program, sizes: dict[str, int], said: Mapping[str, Any]) -> None:
        self._program, self._given, self._said = program, sizes, said
        self._rows = unfolded(program, sizes)
        self._state = PlayState()
        self._bound: dict[Any, list[LayerBlock]] = {}
        self._further: dict[str, int] = {}  # sizes that no tensor of a batch has
        self._by_mode: dict[bool, Any] = {}
        with made_for(Purpose.WEIGHTS):
            self._lay(self._values(sizes))
        source = program.source
        self.accepts_loss_kwargs = bool(source.get("accepts_loss_kwargs"))
        self.is_named_for_causal_lm = bool(source.get("is_named_for_causal_lm"))

    def evaluates_by(self, program: Program, sizes: dict[str, int]) -> None:
        """Run another program where it does not train: layers that are no checkpoints may cache."""
        own, bound = (self._program, self._rows), dict[Any, list[LayerBlock]]()
        self._by_mode = {
            True: (*own, self._bound),
            False: (program, unfolded(program, sizes), bound),
        }

    def _values(self, sizes: dict[str, int]) -> Values:
        autocast = None if context.autocast is None else context.autocast.dtype
        state = self._state
        weights = state.weights if state.is_quantised else None  # k-bit training has cast them
        return Values(sizes, weights or context.options.dtype, autocast, self._said)

    def _lay(self, values: Values) -> None:
        """Allocate parameters and buffers as the recorded model did, and make its modules."""
        storages: dict[str, Storage] = {}
        named: dict[str, Parameter] = {}
        shared: dict[str, Parameter] = {}
        buffers: dict[str, Tensor] = {}
        kinds: dict[str, str] = {}
        for word, value in self._rows.built(self._ways()):
            if word == "new":
                label, shape, dtype, operation = value
                storages[label] = _storage(values, shape, dtype, operation)
            elif word == "free":
                storages.pop(value, None)
            elif word == "module":
                kinds[value[0]] = value[1]
            elif word == "weight":
                name, label, *lies = value
                if label not in shared:
                    shared[label] = _parameter(values, storages.get(label), lies)
                named[name] = shared[label]
            else:
                name, label, shape, dtype = value
                storage = storages.get(label) or _storage(values, [0], dtype, "empty")
                buffers[name] = Tensor(tuple(values.of(shape)), values.of(dtype), storage)
        self._kinds = kinds
        self._grow(named | buffers)

    def _grow(self, named: Mapping[str, Tensor]) -> None:
        """Make the modules, and give them their parameters and buffers."""
        tree = _Tree(self, self._kinds, self._rows)
        for name in named:  # in their order, which optimizers and zero_grad keep
            tree.module(name.rpartition(".")[0])
        for path in self._kinds:
            tree.module(path)
        for name, p in named.items():
            above, _, last = name.rpartition(".")
            owner = tree.module(above)
            setattr(owner, last, p)
            self._state.owners["@" + name] = owner, last
        for path in self._kinds:
            module = tree.module(path)
            if isinstance(module, WITH_BIAS) and "bias" not in vars(module):
                module.bias = None

    def _ways(self) -> list[Row]:
        """Return how the model is built, with what the configuration says."""
        for key, value, rows in self._program.builds:
            if self._said.get(key) == value:
                own: list[Row] = rows
                return own
        return self._program.built

    def forward(self, **batch: Tensor) -> Outputs:
        """Run the program on a batch."""
        env, without = self._ran(batch)
        result = self._program.result
        (logits,) = self._rows.held([result["logits"]])
        is_labelled = result["loss"] and "labels" not in without
        loss = self._rows.held([result["loss"]]) if is_labelled else []
        others: tuple[object, ...] = tuple(env[name] for name in self._rows.held(result["others"]))
        if cached := [env[name] for name in self._rows.held(result.get("cached", []))]:
            others += (cached,)
        return Outputs(env[loss[0]] if loss else None, env[logits], others)

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """[B, T] -> [B, T, C]: run the body alone."""
        given = {"attention_mask": attention_mask, "position_ids": position_ids}
        own = {name: x for name, x in given.items() if x is not None}
        env, without = self._ran({"input_ids": input_ids, **own}, of_body=True)
        return env[self._without_head(without)[1]]

    def _ran(
        self, batch: Mapping[str, Tensor], *, of_body: bool = False
    ) -> tuple[Env, frozenset[str]]:
        """Run the program, or its body; return what is left, and the inputs that it lacked."""
        if self._by_mode:
            self._program, self._rows, self._bound = self._by_mode[self.training]
        program = self._program
        wanted = {name: shape for name, shape, *_ in program.inputs}
        ignored = program.source.get("ignores", ())
        given = {name: x for name, x in batch.items() if name not in ignored}
        missing = wanted.keys() - given.keys()
        if given.keys() - wanted.keys() or missing - self._optional - {COUNT}:
            raise NotModelledError(
                f"the program takes {', '.join(wanted)}, and the job feeds {', '.join(batch)}",
                hint="pip install 'vrambudget[torch]' traces the model itself",
            )
        self._state.prepare(self)
        sizes = self._sizes_of(wanted, given) | self._further
        without = frozenset(missing | {COUNT} if "labels" in missing else missing)
        blocks = self._blocks(sizes, without, of_body=of_body)
        env: Env = {named: given[name] for name, _, _, named in program.inputs if name in given}
        del batch, given
        state = self._state
        state.run = Forward(context.purpose, context.grad_enabled, context.autocast, self.training)
        before = context.purpose, context.grad_enabled, context.autocast, context.tape.module
        try:
            for block in blocks:
                block.run(env)
        finally:
            context.purpose, context.grad_enabled, context.autocast, context.tape.module = before
            state.run.autocast = None  # its copies end with the region
            del before
        return env, without

    def _without_head(self, without: frozenset[str]) -> tuple[list[Row], str]:
        return without_head(self._code(without), self._program.stacks[0][0])

    @property
    def _optional(self) -> set[str]:
        return {value for word, value in self._program.code if word == "given"}

    def _sizes_of(self, wanted: dict[str, Any], batch: dict[str, Tensor]) -> dict[str, int]:
        """Return all sizes: the model's own, and those that the batch has."""
        sizes = dict(self._given)
        for name, x in batch.items():
            for text, size in zip(wanted[name], x.shape, strict=True):
                free = text[1:] if isinstance(text, str) else None
                if free in self._program.sizes:
                    if not isinstance(size, int):
                        raise NotModelledError(
                            "a program is played at one size at a time",
                            hint="sweep without --by requested",
                        )
                    sizes[free] = size
        derive(self._program, sizes)
        check_guards(self._program, sizes)
        return sizes

    def _blocks(
        self, sizes: dict[str, int], without: frozenset[str], *, of_body: bool
    ) -> list[LayerBlock]:
        """Return the steps at these sizes: layers, and what stands between them."""
        autocast = None if context.autocast is None else context.autocast.dtype
        key = tuple(sizes.values()), autocast, without, of_body
        if key not in self._bound:
            values = self._values(sizes)
            reads_tokens = any(name == "input_ids" for name, *_ in self._program.inputs)
            is_cast = (
                autocast is not None and reads_tokens
            )  # diffusers leaves its casts as they are
            by_operands = self._state.is_quantised and is_cast
            bound = Bound(self._program, values, self._kinds, by_operands=by_operands)
            blocks = self._rows.blocks.get((without, of_body))
            if blocks is None or self._rows.has_rounds:
                blocks = [*BlockCode.of(self._held_to_the_end(without, values, of_body=of_body))]
                self._rows.blocks[without, of_body] = blocks
            self._bound[key] = [LayerBlock(code, bound, self._state) for code in blocks]
        return self._bound[key]

    def _held_to_the_end(
        self, without: frozenset[str], values: Values, *, of_body: bool
    ) -> Iterator[Row]:
        """Yield the instructions, but for the ends of what the model returns."""
        result = self._program.result.values()
        named = (self._rows.held(v if isinstance(v, list) else [v]) for v in result)
        kept = {name for names in named for name in names}
        code = (
            self._without_head(without)[0] if of_body else with_rounds(self._code(without), values)
        )
        return (row for row in code if row[0] != "del" or row[1] not in kept)

    def _code(self, without: frozenset[str]) -> Iterator[Row]:
        within = None
        for row in self._rows.code:
            if row[0] == "given":
                within = row[1]
            elif within not in without:
                yield row


class _Tree:
    """The modules of a played model, each made with those above it."""

    def __init__(self, model: Played, kinds: Mapping[str, str], rows: Unfolded) -> None:
        self._kinds, self._rows = kinds, rows
        self._stacks = {stack.path: stack for stack in rows.stacks}
        self._made: dict[str, Module] = {"": model}
        self._state = model._state  # noqa: SLF001 - its own tree
        code = with_paths(rows.code)
        self._called = {path for path, (word, _) in code if word == "enter"}

    def module(self, path: str) -> Module:
        """Return the module at a path."""
        if path in self._made:
            return self._made[path]
        above, _, last = path.rpartition(".")
        if above in self._stacks:
            self._make_layers(self._stacks[above])
            return self._made[path]
        made = KINDS.get(self._kinds.get(path, ""), Module)
        module: Module = made.__new__(made)
        if path in self._called:
            module = PlayedLayer(self._state, path, -1, checkpoints=False)
        self._made[path] = module
        outer = self.module(above)
        if last in vars(outer):
            raise VramBudgetError(f"{path} stands twice in the program")
        setattr(outer, last, module)
        if path in self._called and last != _PATCHES:
            setattr(outer, "input_embeddings", last)  # noqa: B010 - a module has any
        return module

    def _make_layers(self, stack: RecordedStack) -> None:
        layers = [
            PlayedLayer(self._state, f"{stack.path}.{i}", form, checkpoints=stack.checkpoints)
            for i, form in enumerate(self._rows.forms(stack))
        ]
        self._made |= {f"{stack.path}.{i}": layer for i, layer in enumerate(layers)}
        above, _, last = stack.path.rpartition(".")
        setattr(self.module(above), last, layers)


def _storage(values: Values, shape: list[Any], dtype: str | None, operation: str) -> Storage:
    own = values.of(dtype) if dtype else dtypes.uint8
    sizes = tuple(values.of(shape))
    context.operation = operation = str(operation)
    content = (sizes, own)
    return Storage(context.tape, numel(sizes) * own.itemsize, context.purpose, operation, content)


def _parameter(values: Values, storage: Storage | None, lies: list[Any]) -> Parameter:
    """Return a parameter: its shape, type, whether it is trained, and its strides if unusual."""
    shape, dtype, wants, *strides = lies
    p = Parameter.__new__(Parameter)
    own = storage or _storage(values, [0], dtype, "empty")
    order = tuple(values.of(strides[0])) if strides else None
    Tensor.__init__(p, tuple(values.of(shape)), values.of(dtype), own, order)
    p.requires_grad = wants
    return p
