"""Live tensors of a step, and the fake ones on the GPU that stand for them in calls of torch.

A call finds the fake tensor of each live one in its arguments, and what it returns of them is the
live one again. Tensors of the host that meet the GPU's are there from then on. What a call tells of
its result's numbers is noted (`traced.known`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, cast

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from vrambudget.compiled.dispatch import GPU
from vrambudget.dtypes import bool_
from vrambudget.eager import numbers
from vrambudget.eager.mode import EagerMode, is_on_gpu
from vrambudget.eager.notes import Note, choice, guess, note_of, sign_of
from vrambudget.eager.numbers import UnknownNumber
from vrambudget.eager.sparse import is_sparse
from vrambudget.engine.context import context, made_for
from vrambudget.engine.module import Module
from vrambudget.engine.tensor import contiguous_strides
from vrambudget.errors import NotModelledError
from vrambudget.tape.events import Purpose
from vrambudget.traced import known
from vrambudget.traced.build import strides_of
from vrambudget.traced.lines import own_line, stack
from vrambudget.traced.rules.table import getter
from vrambudget.traced.tensor import REHEARSE

_MIXES = {"copy_", "to", "type_as", "new_tensor", "_pack_padded_sequence", "ctc_loss"}
_MOST_FLOATS = 65_536  # of a tensor of inputs, boxes or scores, that are known as integers are
_PICKS = {"__getitem__", "__setitem__"}
"""What takes tensors of the host beside the GPU's; of an index those that it made itself."""


class Standing(TorchFunctionMode):
    """Hands calls the fake tensor of each live one; `begins` hears of phases."""

    def __init__(self, gpu: EagerMode, thread: Executor) -> None:
        super().__init__()
        self.gpu, self.thread = gpu, thread  # autograd's
        self.begins: Callable[[str], None] = lambda _phase: None
        self.shadows: dict[int, Module] = {}
        self.reached: set[int] = set()  # ids of the tensors that the step can reach
        self.met: set[int] = set()  # those that are used as the GPU's without a move
        self.moved: set[int] = set()  # those that the step moves there itself
        self.head = 0
        self._fakes: dict[int, torch.Tensor] = {}
        self._live: dict[int, torch.Tensor] = {}  # by their fakes

    def lay(self, x: torch.Tensor, purpose: Purpose, operation: str = "to_device") -> torch.Tensor:
        """Return the fake tensor of a live one; make it if there is none."""
        fake = self._fakes.get(id(x))
        if fake is not None:
            return fake
        context.operation = operation
        shape = tuple(x.shape)
        strides = strides_of(x) or contiguous_strides(shape)
        with made_for(purpose), torch.no_grad():
            fake = torch.empty_strided(shape, strides, dtype=x.dtype, device=GPU)
        if x.requires_grad and x.is_leaf:  # functorch lets nobody ask for it inside a transform
            fake.requires_grad_()
        self._fakes[id(x)], self._live[id(fake)] = fake, x
        is_small = purpose is Purpose.INPUTS and x.numel() <= _MOST_FLOATS
        if x.is_cpu and (is_small or not x.is_floating_point()):
            note_of(fake).known = known.of_tensor(x)
        for hook in (x._backward_hooks or {}).values():
            fake.register_hook(hook)
        for hook in (x._post_accumulate_grad_hooks or {}).values():
            _hook(self, fake, hook)
        return fake

    def _meet(self, x: torch.Tensor) -> None:
        """Have a tensor of the host on the GPU; of a view what it is a view of, once."""
        whole = x if x._base is None else x._base
        self.met |= {id(whole), *getattr(whole, "_made_of", ())}
        self.lay(whole, Purpose.INPUTS)
        if whole is not x:
            self.show(x, whole)

    def show(self, x: torch.Tensor, whole: torch.Tensor) -> None:
        """Let x show what lies on the GPU for `whole`, whose memory it shares."""
        with torch.no_grad():
            view = self._fakes[id(whole)].as_strided(x.shape, x.stride(), x.storage_offset())
        view = view.detach().requires_grad_(x.requires_grad and x.is_leaf)
        self._fakes[id(x)], self._live[id(view)] = view, x

    def recast(self, x: torch.Tensor, change: Callable[[Any], Any]) -> torch.Tensor:
        """Let what a module's `.to(dtype)` makes of a live tensor stand for it from now on."""
        old = self._fakes[id(x)]
        new = change(old)
        if new is not old:
            if old.grad is not None:
                new.grad = change(old.grad)
            new.requires_grad_(old.requires_grad)
            del self._live[id(old)]
            self._fakes[id(x)], self._live[id(new)] = new, x
        return x

    def is_standing(self, x: Any) -> bool:
        """Whether x is a live tensor with a fake one in its place."""
        return id(x) in self._fakes

    def fake_of(self, x: Any) -> Any:
        """Return the fake tensor that stands for x, or x itself."""
        return self._fakes.get(id(x), x)

    def leaves(self) -> list[torch.Tensor]:
        """Return the fake tensors that stand for live ones."""
        return [*self._fakes.values()]

    def traced_of(self, x: Any) -> Note | None:
        """Return the note of what is on the GPU, None for the host's."""
        x = self._fakes.get(id(x), x)
        return note_of(x) if is_on_gpu(x) else None

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _PLAIN:
            return func(*map(self.fake_of, args), **kwargs)
        found: list[Any] = []
        given = self.with_fakes((args, kwargs), found)
        if func.__name__ not in _MIXES and any(is_on_gpu(_unwrapped(x)) for x in found):
            only = self.reached if func.__name__ in _PICKS else None
            moving = [x for x in found if _is_of_host(x) and (only is None or id(x) in only)]
            picks = only is None or is_on_gpu(self.fake_of(args[0])) or _picks_by_gpu(args)
            moving = moving if picks else []
            for x in moving:
                self._meet(x)
            if moving:
                given = self.with_fakes((args, kwargs), found := [])
        answer = ANSWERS.get(func)
        if answer is not None and given[0] and is_on_gpu(given[0][0]):
            return answer(self, *given[0], **given[1])
        value = known.brought_to_host(func, (args, kwargs), self)
        if value is not None:
            return value
        if func.__name__ == "ctc_loss":
            lengths = self._read(given[0][2:4])
            given = (*given[0][:2], *lengths, *given[0][4:]), given[1]
        if func in (torch.tensor, torch.as_tensor) and isinstance(given[0][0], list | tuple):
            given = (_numbers(given[0][0]), *given[0][1:]), given[1]
        result = func(*given[0], **given[1])
        if _is_of_host(result):
            of = {number for x in found for number in (id(x), *getattr(x, "_made_of", ()))}
            vars(result)["_made_of"] = of & self.reached  # what a host's tensor was made of
        return self._handed(func, result, (args, kwargs), list(filter(is_on_gpu, found)))

    def _read(self, lengths: Any) -> Any:
        """Return CTC's lengths as lists, which C++ reads back but of a subclass of Tensor."""
        if all(_is_of_host(x) or (is_on_gpu(x) and self.gpu.knows(x)) for x in lengths):
            return [self.gpu.known(x).tolist() for x in lengths]
        return lengths

    def with_fakes(self, value: Any, found: list[Any]) -> Any:
        """Return arguments with fake tensors in the place of live ones; `found` has all tensors."""
        kind = type(value)
        if kind is tuple or kind is list:
            return kind([self.with_fakes(item, found) for item in value])
        if kind is dict:
            return {key: self.with_fakes(item, found) for key, item in value.items()}
        if isinstance(value, torch.Tensor):
            value = self._fakes.get(id(value), value)
            found.append(value)
        return value

    def _handed(self, func: Any, result: Any, given: Any, found: list[Any]) -> Any:
        """Return a call's result as the step sees it, and note what it tells of numbers."""
        goes = "cuda" in known.named_devices(func, *given) and given[0][0].is_cpu
        if goes and not any(file.endswith("nn/modules/module.py") for file, _ in stack()):
            self.moved.add(id(given[0][0]))  # modules make sure of what mostly is there
        if is_on_gpu(result):
            self._note(func, result, given, found, None)
            return self._live.get(id(result), result)
        if not isinstance(result, tuple | list):
            return result
        for number, x in enumerate(result):
            if is_on_gpu(x):
                self._note(func, x, given, found, number)
        items = [self._live.get(id(x), x) for x in result]
        kind: Any = type(result)
        return kind(*items) if hasattr(result, "_fields") else kind(items)

    def _note(self, func: Any, x: Any, given: Any, found: list[Any], number: int | None) -> None:
        if any(map(is_sparse, (x, *found))):
            return
        note = note_of(x)
        if any(x is y for y in found):
            if x.grad_fn is not None and x._is_view():
                _as_strided(x)
            known.write(func, given, note, self)
            return
        value = known.of(func, given, self) if found else known.made(func, given)
        note.known = value if number is None else known.part(value, number)
        note.sign = sign_of(func.__name__, found)
        note.spread = any(note_of(y).spread for y in found)
        if note.known is None and found and not x.is_floating_point():
            chosen = choice(func, number, x, found)
            note.spread = note.spread or chosen is not None
            if note.spread or note.dtype is bool_:
                result = guess(func, given, self)
                note.guess = chosen or (result if number is None else known.part(result, number))
        storage = x.untyped_storage()._cdata
        base = next((y for y in found if y.untyped_storage()._cdata == storage), None)
        if base is not None:
            of = note_of(base)
            note.remake = known.remake(func, given, of, number, self)
            note.base = of.base or of
            note.base.views.append(weakref.ref(note))


_PLAIN = {
    *map(
        getter,
        ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "grad_fn", "_version", "layout"),
    ),
    *map(getter, ("is_sparse", "is_nested", "grad")),
    *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride),
    *(torch.Tensor.is_contiguous, torch.Tensor.is_floating_point, torch.Tensor.element_size),
    *(torch.Tensor.is_complex, torch.Tensor.storage_offset, torch.Tensor.__len__),
    torch.Tensor.__hash__,
}
"""What tells nothing of a tensor's numbers."""


def _is_of_host(x: Any) -> bool:
    """Whether a tensor with dimensions lies in main memory; not what functorch wraps."""
    if type(x) not in {torch.Tensor, torch.nn.Parameter} or not x.dim():
        return False
    return not torch._C._functorch.is_functorch_wrapped_tensor(x) and x.device.type == "cpu"


def _as_strided(x: torch.Tensor) -> None:
    """Have a gradient copied into a storage where C++ sees it as a view of one, by strides.

    Of a view that was written into, C++ records how it lies in its base. It does so for no
    subclass of Tensor, whose views it repeats (autograd/variable.cpp, VariableHooks::grad_fn;
    FunctionsManual.cpp, as_strided_backward).
    """
    node = last = cast("Any", x.grad_fn)
    while node.name() in _VIEWS_OF_ALL:
        node = node.next_functions[0][0]
    if node is not last and node.name().endswith("CopySlices"):
        last.register_prehook(lambda given: (given[0].clone(), *given[1:]))


_VIEWS_OF_ALL = {f"{name}Backward0" for name in ("View", "Permute", "Transpose", "T", "Unsqueeze")}


def _picks_by_gpu(args: Any) -> bool:
    """Whether an index is on the GPU, and has dimensions: so is what it picks from."""
    return any(is_on_gpu(x) and x.dim() for x in tree_leaves(args[1]))


def _unwrapped(x: torch.Tensor) -> torch.Tensor:
    """Return what functorch wraps in x, however often."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _value(x: Any) -> torch.Tensor:
    note = note_of(x)
    if note.known is None:
        numbers.note([own_line(stack())])
    return note.ordinary()


def _numbers(x: Any) -> Any:
    """Return lists with the numbers of the tensors in them, which the host reads back."""
    if isinstance(x, list | tuple):
        return [_numbers(item) for item in x]
    return _value(x).tolist() if is_on_gpu(x) else x


def _item(_mode: Standing, x: Any) -> Any:
    return UnknownNumber(numbers.NUMBER) if note_of(x).known is None else _value(x).item()


def _tolist(_mode: Standing, x: Any) -> Any:
    return numbers.listed(tuple(x.shape)) if note_of(x).known is None else _value(x).tolist()


def _format(mode: Standing, x: Any, spec: str) -> str:
    return format(_item(mode, x), spec) if not x.dim() else repr(x)


def _hook(mode: Standing, x: Any, hook: Any) -> Any:
    live = mode._live.get(id(x), x)
    register: Any = torch.Tensor.register_post_accumulate_grad_hook
    return register(x, lambda _: hook(live))


def _reader(name: str) -> Callable[..., Any]:
    def read(_mode: Standing, x: Any) -> Any:
        if name == "__index__" and note_of(x).known is None:
            raise NotModelledError("a size depends on weights or data", hint=REHEARSE)
        return getattr(_value(x), name)()

    return read


ANSWERS: dict[Any, Callable[..., Any]] = {
    getter("device"): lambda _mode, x: x.device,
    getter("is_cuda"): lambda _mode, _x: True,
    torch.Tensor.item: _item,
    torch.Tensor.tolist: _tolist,
    torch.Tensor.cpu: lambda _mode, x, *_: _value(x),
    torch.Tensor.numpy: lambda _mode, x, *_: _value(x),
    torch.Tensor.__format__: _format,
    torch.Tensor.register_post_accumulate_grad_hook: _hook,
    **{
        getattr(torch.Tensor, name): _reader(name)
        for name in ("__bool__", "__int__", "__float__", "__index__")
    },
}
"""By what is called of a tensor on the GPU."""
