"""Trace integers and booleans through a program: each operation once more, on the CPU.

Which operations come here is decided by two dispatch keys that nothing else uses. `_TRACED` is
set in tensors whose values are known (values.py); views inherit it, as they do every key, and an
operation without such a tensor costs nothing. `_BRINGS` is included in each thread, and has kernels
for the few operations by which values come from the host: moves, fills and ranges.

A read is answered by what is known, and so is the size of a shape that is made from values
(nonzero, a boolean index, unique). Reads of assumed values are reported, as reads of unknown ones
are. Autograd's threads inherit the keys.

Runs in the user's Python, 3.9 or later.

Not modelled: floating point of more than 65,536 numbers, and weights; what copy_ brings from the
host to memory of which nothing is known; writes by kernels that PyTorch's dispatcher does not see
(compiled by Triton or NVRTC).
"""

# ruff: noqa: SLF001 - dispatch keys have no public names

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Any

from . import assuming, operations, sparse, values
from .assuming import ZEROS, Assuming
from .hiding import hide_from_compiler, pass_higher_orders
from .operations import (
    BESIDE_SHARDS,
    FILLS,
    MADE_OF_OTHERS,
    MOVES,
    VIEWS,
    WRAPS,
    Operation,
    flat,
    on_cpu,
)
from .sparse import Sparse
from .values import Arguments, KnownValues, UnknownValue

_TRACED = "AutocastIPU"
_BRINGS = "TESTING_ONLY_GenericMode"
_COPIES = "TESTING_ONLY_GenericWrapper"


class ValueTracer:
    """Runs what has known values on the CPU too.

    `answer(on, reported, number)` sets what the stub's next small reads give in this
    thread; `on_gpu` says whether a tensor is on the virtual GPU. `numbers` (with their seed) and
    `routing` are what is assumed of those that are not known (assuming.py).
    """

    def __init__(
        self,
        torch: Any,
        answer: Callable[[int, int, int], object],
        on_gpu: Callable[[Any], bool] = attrgetter("is_cuda"),
        numbers: tuple[str, int] = (ZEROS, 0),
        routing: str | None = None,
    ) -> None:
        native = torch._C
        self.torch, self.answer = torch, answer
        self.traced = native._dispatch_key_parse(_TRACED)
        self.brings = native._dispatch_key_parse(_BRINGS)
        self.copies = native._dispatch_key_parse(_COPIES)
        self.own_keys = native.DispatchKeySet(self.traced) | native.DispatchKeySet(self.brings)
        self.values = KnownValues(torch, self.traced, on_gpu)
        self.assuming, self.sparse = Assuming(self, *numbers, routing), Sparse(self)
        self.operations: dict[int, Operation] = {}
        self.libraries = [torch.library.Library(name, "IMPL") for name in ("_", "aten")]

    def start(self) -> None:
        """Begin in this thread, and in those that start from now on."""
        every, aten = self.libraries
        every.fallback(self._operation, _TRACED, with_keyset=True)
        for key in (_BRINGS, _COPIES):
            every.fallback(self.torch.library.fallthrough_kernel, key)
        aten.impl("copy_", self._copy_in, _COPIES, with_keyset=True)
        # A parameter is made of a tensor that Python never saw; the others need nothing of us.
        for name in ("detach", *VIEWS, *MADE_OF_OTHERS, *BESIDE_SHARDS):
            aten.impl(name, self.torch.library.fallthrough_kernel, _TRACED)
        own_kernels = ((MOVES, self._moving), (FILLS, self._filling), (WRAPS, self._wrapping))
        kernels = [(name, kernel) for names, kernel in own_kernels for name in names]
        for name, kernel in (*kernels, *self.assuming.kernels(), *self.sparse.kernels()):
            packet, _, overload = name.partition(".")
            op = getattr(getattr(self.torch.ops.aten, packet), overload or "default")
            made = kernel(op)
            hide_from_compiler(self.torch, [made])
            aten.impl(name, made, _BRINGS, with_keyset=True)
        for module in (sys.modules[__name__], assuming, operations, sparse, values):
            hide_from_compiler(self.torch, vars(module).values())
        pass_higher_orders(self.torch, (self.traced, self.brings, self.copies))
        self.assuming.trust_distributions()
        self._enter_thread()
        begin = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

        def bootstrap_inner(thread: threading.Thread) -> None:
            self._enter_thread()
            begin(thread)

        threading.Thread._bootstrap_inner = bootstrap_inner  # type: ignore[attr-defined]

    def _enter_thread(self) -> None:
        native = self.torch._C
        native._dispatch_tls_set_dispatch_key_excluded(self.traced, False)  # noqa: FBT003
        native._dispatch_tls_set_dispatch_key_included(self.brings, True)  # noqa: FBT003

    def _filling(self, op: Any) -> Callable[..., Any]:
        filling = self.torch._C.DispatchKeySet(self.brings)

        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            target = kwargs.get("out", args[0])
            if isinstance(target, self.torch.Tensor) and not self.values.is_worth(target, op):
                with self.torch._C._ExcludeDispatchKeyGuard(filling):  # zero_ calls fill_
                    return op._handle.redispatch_boxed(keys.remove(self.brings), *args, **kwargs)
            return self._operation(keys.remove(self.brings), op, *args, **kwargs)

        return kernel

    def _wrapping(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, *args: Any, **kwargs: Any) -> Any:
            keys = keys.remove(self.brings)
            if keys.has(self.traced):
                return self._operation(keys, op, *args, **kwargs)
            return self._run(op, keys, args, kwargs)

        return kernel

    def _moving(self, op: Any) -> Callable[..., Any]:
        def kernel(keys: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            call = op._handle.redispatch_boxed
            out = call(keys.remove(self.brings), source, *args, **kwargs)
            is_data = not source.is_floating_point() or self.values.is_data(source)
            comes = is_data and not self.values.on_gpu(source)
            if source.layout is self.sparse.layout:
                self.sparse.moved(source, out)
            elif comes and self.values.eligible(out):
                self.values.hold_copy(out, source, true=True)
            return out

        return kernel

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Follow copy_ too, in this thread: what it brings to memory of which nothing is known."""
        include = self.torch._C._dispatch_tls_set_dispatch_key_included
        include(self.copies, True)  # noqa: FBT003
        try:
            yield
        finally:
            include(self.copies, False)  # noqa: FBT003

    def _copy_in(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        op = self.torch.ops.aten.copy_.default
        return self._operation(keys.remove(self.copies), op, *args, **kwargs)

    def _operation(self, keys: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an operation as it is, and beside it on the values that are known."""
        keys = keys.remove(self.traced)
        known = self.described(op)
        out = self._operate(known, keys, op, *args, **kwargs)
        if known.foreign and isinstance(out, list):
            # A C++ vector with undefined tensors, as FlashAttention 3 returns one, comes as a list
            # with None, which cannot be given back.
            return [self.torch.empty(0) if item is None else item for item in out]
        return out

    def _operate(self, known: Operation, keys: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        if known.passes or self.torch._C._functorch.maybe_current_level() is not None:
            return self._run(op, keys, args, kwargs)
        if known.copies and not self.values.on_gpu(args[0]):
            return self._copy_out(op, keys, args, kwargs)
        if known.reads:
            return self._read(known, op, keys, args, kwargs)
        if known.counts(args, kwargs) and self.values.count(*args):
            return self._run(op, keys, args, kwargs)
        if known.written:
            return self._write(known, op, keys, args, kwargs)
        return self._make(known, op, keys, args, kwargs)

    def described(self, op: Any) -> Operation:
        """Return what an operation does with its arguments."""
        found = self.operations.get(id(op))  # whose own hash is a function of Python's
        if found is None:
            found = self.operations[id(op)] = Operation(self.torch, op)
        return found

    def _run(self, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Call what lies below us; only the outer door lets a number in for a tensor."""
        known = self.described(op)
        has_number = known.has_number(args)
        if not has_number and not known.is_alone:
            return op._handle.redispatch_boxed(keys, *args, **kwargs)
        with self.torch._C._ExcludeDispatchKeyGuard(self.sparse.guard(args, self.own_keys)):
            if has_number:
                return op(*args, **kwargs)
            return op._handle.redispatch_boxed(keys, *args, **kwargs)

    def _beside(self, op: Any, found: Arguments) -> Any:
        """Return what follows from known values. Raises Unknown."""
        if self.described(op).foreign or self.described(op).unknown:
            raise UnknownValue
        return self.computed(op, found)

    def computed(self, op: Any, found: Arguments) -> Any:
        """Call an operation on the CPU, for nobody's autograd."""
        if self.described(op).has_number(found.args):
            native = self.torch._C
            with (
                native._ExcludeDispatchKeyGuard(self.own_keys),
                native._AutoDispatchBelowAutograd(),
            ):
                return on_cpu(op, found.args, found.kwargs)
        return op._handle.redispatch_boxed(self.values.on_cpu, *found.args, **found.kwargs)

    def _copy_out(self, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Copy to the host what is known."""
        target, source, *_ = args
        value = self.values.of(source)
        if value is None:
            return self._run(op, keys, args, kwargs)
        found = self.values.as_on_cpu(source, value.memory)
        with self.answering(0, true=value.true):
            out = self._run(op, keys, args, kwargs)
        op._handle.redispatch_boxed(self.values.on_cpu, target, found)
        return out

    def _read(self, known: Operation, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Answer a read, or a shape that is made from values, where they are known."""
        try:
            found = Arguments(self.values, args, kwargs, {})
            value = self._beside(op, found)
        except Exception:  # noqa: BLE001 - what the CPU cannot compute is answered as it was
            return self._run(op, keys, args, kwargs)
        with self.answering(known.number(found.args, value), true=found.true):
            out = self._run(op, keys, args, kwargs)
        if not isinstance(out, (self.torch.Tensor, tuple, list)):
            return value
        self._hold(out, value, found)
        return out

    @contextlib.contextmanager
    def answering(self, number: int, *, true: bool) -> Iterator[None]:
        """Let small reads from the GPU give a number, in this thread."""
        self.answer(1, int(not true), number)
        try:
            yield
        finally:
            self.answer(0, 0, 0)

    def _make(self, known: Operation, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, and compute the values of new tensors; a view's are known."""
        out = self._run(op, keys, args, kwargs)
        if known.is_view or not any(map(self.values.eligible, flat(out))):
            return out
        try:
            found = Arguments(self.values, args, kwargs, {})
            self._hold(out, self._beside(op, found), found)
        except Exception:  # noqa: BLE001 - not known, or not to be computed on the CPU
            self._hold(out, (), None)
        return out

    def _hold(self, out: Any, value: Any, found: Arguments | None) -> None:
        """Let new tensors have these values, and those without one be unknown.

        The operations of which this one is made may have known more than is true: what a kernel
        writes after them they did not see.
        """
        copies = list(flat(value))
        for i, tensor in enumerate(flat(out)):
            before = self.values.of(tensor)
            if before is not None:
                self.values.lose(before)
            copy = copies[i] if i < len(copies) else None
            if found is None or copy is None or not self.values.eligible(tensor):
                continue
            if (tensor.shape, tensor.dtype) == (copy.shape, copy.dtype):
                self.values.hold_made(tensor, copy, found)

    def _write(self, known: Operation, op: Any, keys: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation that writes into its arguments, and write into their values."""
        targets = list(known.targets(args, kwargs))
        alone = known.is_alone or known.has_number(args)  # what it is made of does not come here
        had = [(t, v) for t in targets if (v := self.values.of(t))]
        before = [] if alone else [(v, v.writes, v.memory.clone()) for _, v in had]
        out = self._run(op, keys, args, kwargs)
        whole: dict[int, Any] = {}  # memory of what is written wholly
        for value, writes, memory in before:
            if value.writes != writes:  # by operations of which this one is made
                value.memory = memory
        for target, value in had:
            if known.fills and self.values.storages.is_whole(target):
                whole[id(target)] = value.memory
        ids = {id(target) for target, _ in had}
        new = [t for t in targets if id(t) not in ids and known.fills and self.values.is_new(t)]
        whole.update((id(t), self.values.memory(t)) for t in new)
        if not (had or new):
            return out
        try:
            found = Arguments(self.values, args, kwargs, whole)
            self._beside(op, found)
        except Exception:  # noqa: BLE001 - what was written is not known
            self._lose(targets)
            return out
        for _, value in had:
            self.values.keep(value, true=found.true)
        for target in new:
            self.values.hold(target, whole[id(target)], true=found.true)
        return out

    def _lose(self, targets: Iterable[Any]) -> None:
        for value in map(self.values.of, targets):
            if value is not None:
                self.values.lose(value)
