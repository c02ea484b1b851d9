"""The model that is recorded: how it was built, what it is called with and what it returns."""

import functools
from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from vrambudget.engine.context import context
from vrambudget.engine.tensor import Parameter, Tensor
from vrambudget.program.form import COUNT
from vrambudget.recording.listener import Listener
from vrambudget.recording.raw import Name
from vrambudget.traced import build, live, module
from vrambudget.traced import tensor as tensors

Patch = tuple[Any, str, Any]
_TABLES = {"position_embeddings", "wpe", "embed_positions"}
_DECODERS = "decoder.embed_positions"
_KINDS = ("Linear", "Embedding", "Conv1D", "FalconLinear", "Dropout", "LayerNorm")


class BuiltError(Exception):
    """A recording has what it was made for: how the model is built."""


def patches(listener: Listener) -> Iterator[Patch]:
    """Yield what is replaced while the listener listens: (owner, name, replacement)."""
    from_config, from_module = build.live_model, module.ModuleConfig.build
    forward, called, tensors_in = live.Live.forward, live.Live._called, live.tensors_in  # noqa: SLF001

    def built(config: Any, task: Any) -> Any:
        start = len(context.tape.events)
        listener.is_building = True
        try:
            found = from_config(config, task)
        finally:
            listener.is_building = False
        note_model(listener, found, start)
        if listener.ends_built:
            raise BuiltError
        return found

    def built_of_module(self: Any, task: Any) -> Any:
        start = len(context.tape.events)
        found = from_module(self, task)
        note_model(listener, found, start)
        return found

    def forwarded(self: Any, **batch: Tensor) -> Any:
        if listener.rows or context.thread == "autograd":
            return forward(self, **batch)
        _note_inputs(listener, self, batch)
        listener.is_on = True
        try:
            return forward(self, **batch)
        finally:
            listener.is_on = False

    def calling(self: Any, given: Any) -> Any:
        outputs, loss = called(self, given)
        if listener.is_on:
            listener.facts["loss"] = getattr(loss, "named", None)
            cached = tensors_in(getattr(outputs, "past_key_values", None), tensors.TracedTensor)
            listener.facts["cached"] = [getattr(x, "named", None) for x in cached]
        return outputs, loss

    def found_in(value: Any, kind: Any) -> Any:
        found = tensors_in(value, kind)
        if listener.is_on:
            listener.facts["outputs"] = [getattr(x, "named", None) for x in found]
            listener.is_on = False  # what is freed from here on is the caller's
        return found

    yield build, "live_model", built
    yield module.ModuleConfig, "build", built_of_module
    yield live.Live, "forward", forwarded
    yield live.Live, "_called", calling
    yield live, "tensors_in", found_in


def _note_inputs(listener: Listener, model: Any, batch: dict[str, Tensor]) -> None:
    for name, p in _every_parameter(model):
        listener.parameters.setdefault(id(p), Name(f"@{name}"))
        listener.shared.setdefault(id(p), []).append(Name(f"@{name}"))
    for name, b in model._module.named_buffers():  # noqa: SLF001 - the tracer's own
        c = model._mode.traced_of(b)  # noqa: SLF001
        if c is not None:
            listener.parameters.setdefault(id(c.v), Name(f"@{name}"))
    for name, x in batch.items():
        listener.inputs[name] = listener.fresh()
        listener.temporaries[id(x)] = (listener.inputs[name], x)
    listener.facts["inputs"] = {name: [list(x.shape), x.dtype] for name, x in batch.items()}


def _every_parameter(model: Any) -> Iterator[tuple[str, Parameter]]:
    """Yield parameters by each of their names: tied ones have several."""
    for prefix, shadow in model.named_modules():
        for name, value in vars(shadow).items():
            if isinstance(value, Parameter):
                yield prefix + name, value


def note_model(listener: Listener, model: Any, start: int) -> None:
    """Note how a model was built: allocations, parameters, buffers, modules."""
    if "build" in listener.facts:
        return
    tape, numbers, events = context.tape, dict[int, int](), list[Any]()
    for event in tape.events[start:]:
        if event >= 0:
            numbers[event] = len(numbers)
            shape, dtype = tape.contents[event] or ((tape.sizes[event],), None)
            row = ["new", numbers[event], list(shape), dtype, tape.operations[event]]
            events.append(row)
        elif ~event in numbers:
            events.append(["free", numbers[~event]])

    def place(v: Tensor) -> int | None:
        return numbers.get(v.storage.index) if v.storage.tape is tape else None

    torch_module = model._module  # noqa: SLF001 - the tracer's own
    named = list(_every_parameter(model))
    buffers = [
        (name, c.v)
        for name, b in torch_module.named_buffers()
        if (c := model._mode.traced_of(b)) is not None  # noqa: SLF001
    ]
    listener.facts |= {
        "build": events,
        "parameters": [
            [n, place(p), list(p.shape), p.dtype, p.requires_grad, *_strides_of(p)]
            for n, p in named
        ],
        "buffers": [[n, place(v), list(v.shape), v.dtype] for n, v in buffers],
        "modules": {
            n: type(m).__name__
            for n, m in torch_module.named_modules()
            if type(m).__name__ in _KINDS
        },
        "stacks": {
            n: len(m)
            for n, m in torch_module.named_modules()
            if isinstance(m, torch.nn.ModuleList) and len(m)
        },
        "checkpointed": [
            n
            for n, m in torch_module.named_modules()
            if isinstance(m, torch.nn.ModuleList) and len(m) and _checkpoints(torch_module, m[0])
        ],
        "positions": _positions(torch_module),
        "padding": _padding(torch_module),
        "class": type(torch_module).__name__,
        "accepts_loss_kwargs": model.accepts_loss_kwargs,
        "is_named_for_causal_lm": model.is_named_for_causal_lm,
    }
    stacks = listener.facts["stacks"]
    called = [*_patches(torch_module)]
    for stack in stacks if listener.hears_all_layers else outermost(stacks):
        called += torch_module.get_submodule(stack)
    for each in called:
        each.register_forward_pre_hook(functools.partial(_entered, listener), with_kwargs=True)
        each.register_forward_hook(functools.partial(_left, listener))


def _patches(model: Any) -> Iterator[torch.nn.Module]:
    """Yield input embeddings that are no plain tables: their output requires a gradient for PEFT.

    An image's patches, the first convolution of what is heard, BART's tables, which multiply
    (enable_input_require_grads).
    """
    seen = set()
    for each in model.modules():
        if not isinstance(each, PreTrainedModel):
            continue
        try:
            found = each.get_input_embeddings()
        except (AttributeError, NotImplementedError):
            continue
        if type(found) in {torch.nn.Embedding, NoneType} or id(found) in seen:
            continue
        seen.add(id(found))
        yield found


def _positions(model: Any) -> int | None:
    """Return how many tokens a table of positions is for; None where there is no table.

    Rows up to that of padding stand for no token (RoBERTa's create_position_ids_from_input_ids). An
    image's table is a parameter [1, tokens, width].
    """
    table, padding = _table(model), _padding(model)
    if table is not None:
        rows = int(table.num_embeddings) - getattr(table, "offset", 0)  # BART's first are of none
        return rows - (-1 if padding is None else padding) - 1
    found = [p for n, p in model.named_parameters() if n.rpartition(".")[2] in _TABLES]
    return int(found[0].shape[1]) if len(found) == 1 else None


def _padding(model: Any) -> int | None:
    """Return the row of a table of positions that stands for padding."""
    table = _table(model)
    return None if table is None else table.padding_idx


def _table(model: Any) -> Any:
    hears = getattr(model, "main_input_name", "") == "input_features"  # tokens are the decoder's
    tables = [
        m
        for n, m in model.named_modules()
        if isinstance(m, torch.nn.Embedding)
        and (n.endswith(_DECODERS) if hears else n.rpartition(".")[2] in _TABLES)
    ]
    return tables[0] if len({table.num_embeddings for table in tables}) == 1 else None


def _checkpoints(model: Any, layer: Any) -> bool:
    """Return whether a layer is a checkpoint that has none within it."""
    within = [isinstance(each, GradientCheckpointingLayer) for each in layer.modules()]
    supported = getattr(model, "supports_gradient_checkpointing", False)
    return bool(supported and within[0] and not any(within[1:]))


def outermost(stacks: Mapping[str, Any]) -> list[str]:
    """Return the stacks that are in no other."""
    return [s for s in stacks if not any(s.startswith(o + ".") for o in stacks if o != s)]


def _strides_of(p: Parameter) -> list[list[int]]:
    """Return how a weight lies, where it is not in the usual order."""
    return [] if p.strides is None else [list(p.strides)]


def _entered(listener: Listener, _module: Any, args: Any, kwargs: Any) -> None:
    """Note what a layer is called with: a checkpoint holds all of it, read or not.

    Trainer's count of labels it holds itself, until the step ends.
    """
    if listener.is_on:
        names = [n for n in _names_in([args, kwargs]) if n != listener.inputs.get(COUNT)]
        listener.emit("enter", names)


def _left(listener: Listener, _module: Any, _args: Any, output: Any) -> None:
    """Note what a layer returns: what it has besides died within it."""
    if listener.is_on:
        listener.emit("leave", _names_in(output))


def _names_in(value: Any) -> list[Name]:
    if type(value) is tensors.TracedTensor:
        return [value.named] if hasattr(value, "named") else []
    if isinstance(value, dict):
        value = list(value.values())
    return [n for x in value for n in _names_in(x)] if isinstance(value, list | tuple) else []
