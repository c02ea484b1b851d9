"""The general rule: PyTorch's own autograd, on the meta device, says what a call does.

The call runs on tensors without data, aten operation by aten operation. Each storage that PyTorch
makes meanwhile gets one of the engine's, which lives as long: outputs, what backward keeps, and the
temporaries of composed operations come out of PyTorch's own code. Its autograd graph becomes nodes
of the engine's, one for one; in backward each runs PyTorch's own formula in the same way.

What a kernel allocates inside is in `traced.kernels`.

Not modelled: operations whose result's size depends on values.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # PyTorch's hooks would import it in the first call, and keep its frames alive
from torch.utils._pytree import tree_leaves

from vrambudget.engine.autograd import Edge, Node, edge_to, keep
from vrambudget.engine.checkpoint import CheckpointFrame
from vrambudget.engine.context import context
from vrambudget.engine.tensor import Shape, Tensor
from vrambudget.traced.multi_kernel import formula
from vrambudget.traced.tensor import dtype_of, meta_of, no_rule
from vrambudget.traced.tracer import Kept, Tracer


class TorchCall:
    """One call of torch by its general rule."""

    def __init__(self, *, in_place: bool) -> None:
        self.tracer = Tracer()
        self.frame = context.frame
        self._in_place = in_place
        self._inputs: list[tuple[Tensor, torch.Tensor]] = []
        self._metas: dict[int, torch.Tensor] = {}
        self._boundary: dict[int, Tensor] = {}
        self._clones: list[Any] = []  # their nodes, held, so that their ids stay theirs

    def meta(self, x: Tensor) -> torch.Tensor:
        """Return the meta tensor that stands for an input; one for each."""
        known = self._metas.get(id(x))
        if known is not None:
            return known
        meta = meta_of(x)
        if x.requires_grad and context.grad_enabled:
            meta.requires_grad_(True)  # noqa: FBT003 - torch's own way
            if self._in_place:  # PyTorch refuses to write into a leaf
                meta = meta.clone()
                self._clones.append(meta.grad_fn)
                self._boundary[id(meta.grad_fn)] = x
            else:
                self._boundary[id(meta)] = x
        self.tracer.bind(meta, x.storage)
        self._inputs.append((x, meta))
        self._metas[id(x)] = meta
        return meta

    def run(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the call's result, still of meta tensors."""
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        try:
            with torch.set_grad_enabled(context.grad_enabled), hooks, self.tracer:
                return func(*args, **kwargs)
        except BaseException:  # a recomputation that is over, too
            self._let_go()
            self.tracer.storages.clear()
            raise

    def finish(self, result: Any) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return our tensor of each meta tensor in the result, and of each input written into.

        Inputs are known by the ids of the engine's tensors.
        """
        found: dict[int, Tensor] = {}
        roots: list[Any] = []
        own = {id(meta): x for x, meta in self._inputs}
        written = [(x, meta) for x, meta in self._inputs if meta._version]  # noqa: SLF001
        for meta in (*filter(torch.is_tensor, tree_leaves(result)), *(meta for _, meta in written)):
            if id(meta) in found or meta.device.type != "meta":
                continue
            if id(meta) in own and not (meta._version and meta.grad_fn is not None):  # noqa: SLF001
                found[id(meta)] = own[id(meta)]
                continue
            found[id(meta)] = self._tensor(meta)
            roots.append(meta)
        graph = _AutogradGraph(self)
        for meta in roots:
            if meta.grad_fn is not None:
                graph.give_node(found[id(meta)], meta)
        for _, meta in self._inputs:
            self.tracer.forget(meta)
        changed = {id(x): found[id(meta)] for x, meta in written}
        self._let_go()
        return found, changed

    def _let_go(self) -> None:
        """Let what it was called with die: PyTorch's graph holds this call as long as it lives."""
        self._inputs.clear()
        self._metas.clear()
        self._boundary.clear()
        self._clones.clear()

    def _tensor(self, meta: torch.Tensor) -> Tensor:
        storage = self.tracer.storage_of(meta) or self.tracer.made("tensor", meta)
        strides = None if meta.is_contiguous() else tuple(meta.stride())
        y = Tensor(tuple(meta.shape), dtype_of(meta.dtype), storage, strides)
        y.is_view = bool(meta._is_view())  # noqa: SLF001 - what autograd itself asks
        return y

    def _pack(self, meta: torch.Tensor) -> Any:
        storage = self.tracer.storage_of(meta) if meta.device.type == "meta" else None
        if storage is None:
            return meta  # a number on the CPU
        layout = Tensor(tuple(meta.shape), dtype_of(meta.dtype), storage)
        return Kept(meta, keep(layout), self.tracer.count_of(meta))

    def _unpack(self, kept: Any) -> torch.Tensor:
        return kept.unpacked(self.tracer) if isinstance(kept, Kept) else kept

    def boundary(self, function: Any) -> Tensor | None:
        """Return the input whose gradient a node of PyTorch's takes, None for inner nodes."""
        if id(function) in self._boundary:
            return self._boundary[id(function)]
        variable = getattr(function, "variable", None)
        return None if variable is None else self._boundary.get(id(variable))

    def backward(self, function: Any, gradients: tuple[Tensor | None, ...]) -> Any:
        """Run one node of PyTorch's graph on our gradients."""
        if isinstance(self.frame, CheckpointFrame) and _saves(function):
            self.frame.recompute()
        tracer = self.tracer
        known: dict[int, Tensor] = {}
        metas: list[torch.Tensor | None] = []
        for gradient in gradients:
            meta = None if gradient is None else meta_of(gradient)
            if gradient is not None and meta is not None:
                tracer.bind(meta, gradient.storage)
                known[id(meta)] = gradient
            metas.append(meta)
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        tracer.node = function.name()
        try:
            with torch.no_grad(), hooks, tracer:
                result = formula(function)(*metas)
        except (NotImplementedError, RuntimeError) as error:
            raise no_rule(function.name(), error) from error
        outgoing = result if isinstance(result, tuple) else (result,)
        return tuple(
            None if meta is None else known.get(id(meta)) or self._tensor(meta) for meta in outgoing
        )


class _AutogradGraph:
    """PyTorch's nodes behind a call, as nodes of the engine's."""

    def __init__(self, call: TorchCall) -> None:
        self.call = call
        self._nodes: dict[int, Node] = {}
        self._functions: list[Any] = []  # held, so that their ids stay theirs

    def give_node(self, y: Tensor, meta: torch.Tensor) -> None:
        """Let `y` have the node of the meta tensor that it stands for."""
        function = meta.grad_fn
        source = self.call.boundary(function)
        if source is not None:
            y.requires_grad, y.node, y.slot = True, source.node, source.slot
            return
        self._add(function)
        y.requires_grad, y.node = True, self._nodes[id(function)]
        y.slot = meta.output_nr

    def _add(self, root: Any) -> None:
        new, stack = list[Any](), [root]
        seen = set(self._nodes)
        while stack:
            function = stack.pop()
            if id(function) in seen or self.call.boundary(function) is not None:
                continue
            seen.add(id(function))
            new.append(function)
            stack += [following for following, _ in function.next_functions if following]
        self._functions += new
        for function in sorted(new, key=lambda f: f._sequence_nr()):  # noqa: SLF001
            self._node_of(function)

    def _node_of(self, function: Any) -> Node:
        if id(function) not in self._nodes:
            self._nodes[id(function)] = self._node(function)
        return self._nodes[id(function)]

    def _node(self, function: Any) -> Node:
        call = self.call
        name = function.name().removesuffix("Backward0").removesuffix("Backward1")
        edges = [self._edge(*following) for following in function.next_functions]

        def backward(*gradients: Tensor | None) -> Any:
            return call.backward(function, gradients)

        outputs = len(function._input_metadata)  # noqa: SLF001 - gradients that it takes
        node = Node(name, context.sequence, edges, (), backward, outputs=outputs)
        context.sequence += 1
        return node

    def _edge(self, function: Any, slot: int) -> Edge | None:
        if function is None:
            return None
        source = self.call.boundary(function)
        if source is not None:
            return edge_to(source)
        metadata = function._input_metadata[slot]  # noqa: SLF001
        shape: Shape = tuple(metadata.shape)
        return self._node_of(function), slot, shape, dtype_of(metadata.dtype)


def _saves(function: Any) -> bool:
    return any(name.startswith("_raw_saved") for name in dir(function))


def mapped(value: Any, kind: type | tuple[type, ...], change: Callable[[Any], Any]) -> Any:
    """Return `value` with `change` applied to what is of `kind`, in lists and dicts too."""
    if isinstance(value, kind):
        return change(value)
    if isinstance(value, list | tuple):
        items = [mapped(item, kind, change) for item in value]
        # named tuples take their fields apart, torch.return_types take a list
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: mapped(item, kind, change) for key, item in value.items()}
    return value
