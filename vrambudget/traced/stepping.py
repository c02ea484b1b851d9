"""What a step of one's own calls besides its model, on counted tensors.

    torch.autograd.backward    the engine's backward pass
    torch.optim                its own code runs; parameters count as torch's own tensors
    torch.cuda                 there is one card, and it has nothing to wait for
    torch.autocast             a region made before, where torch switched it off for want of a card

Source: torch/utils/_foreach_utils.py and aten/src/ATen/native/ForeachUtils.h
(_group_tensors_by_first_tensors_device_and_dtype: a hash map, read from its newest entry);
torch/amp/autocast_mode.py.
"""

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest.mock import patch

import torch
from torch.optim import optimizer as optimizers
from torch.utils import _foreach_utils as foreach

from vrambudget.errors import NotModelledError
from vrambudget.tape.events import Purpose
from vrambudget.traced.counted import CARD, REHEARSE, Counted
from vrambudget.traced.mode import Following


@contextmanager
def stepping(mode: Following) -> Iterator[None]:
    """Let code train inside: backward passes, optimizers, questions about the card."""
    native: Any = [torch.Tensor, Counted]
    hooks = (
        optimizers.register_optimizer_step_pre_hook(lambda *_: mode.begins("optimizer_step")),
        optimizers.register_optimizer_step_post_hook(lambda own, *_: _label(mode, own)),
    )
    with ExitStack() as stack:
        for hook in hooks:
            stack.callback(hook.remove)
        for target, name, new in (
            (torch.autograd, "backward", _backward),
            (torch.autograd, "grad", _refused("torch.autograd.grad")),
            (torch.autograd.graph.saved_tensors_hooks, "__enter__", _hooks_refused()),
            (foreach, "_foreach_supported_types", native),
            (optimizers, "_foreach_supported_types", [*native, torch.nn.Parameter]),
            (torch._C, "_group_tensors_by_device_and_dtype", grouped),  # noqa: SLF001
            *_regions(),
            (torch.cuda, "is_available", lambda: True),
            (torch.cuda, "device_count", lambda: 1),
            (torch.cuda, "is_bf16_supported", lambda *_, **__: True),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
            (torch.cuda, "synchronize", lambda _device=None: None),
            (torch.cuda.amp.common, "amp_definitely_not_available", lambda: False),
        ):
            stack.enter_context(patch.object(target, name, new))
        yield


def _backward(tensors: Any, grad_tensors: Any = None, *args: Any, **options: Any) -> None:
    """torch.autograd.backward: of one tensor."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = grad_tensors if isinstance(grad_tensors, Sequence) else [grad_tensors] * len(several)
    if len(several) != 1:
        raise NotModelledError("torch.autograd.backward of several tensors", hint=REHEARSE)
    several[0].backward(given[0], *args, **options)


def _refused(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotModelledError(f"{what} is not traced", hint=REHEARSE)

    return refuse


def _hooks_refused() -> Callable[..., Any]:
    """Refuse hooks on saved tensors (save_on_cpu among them) but those of this package."""
    entered = torch.autograd.graph.saved_tensors_hooks.__enter__

    def enter(self: Any) -> Any:
        if not getattr(self.pack_hook, "__module__", "").startswith("vrambudget."):
            raise NotModelledError("hooks on saved tensors are not traced", hint=REHEARSE)
        return entered(self)

    return enter


def _regions() -> Iterator[tuple[Any, str, Any]]:
    """Yield what refuses a region that torch switched off: it was made where there is no card."""
    made: Any = torch.autocast.__init__
    entered: Any = torch.autocast.__enter__
    no_card, made_here = not torch.cuda.is_available(), weakref.WeakSet[Any]()

    def make(self: Any, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        made_here.add(self)

    def enter(self: Any) -> Any:
        is_off = no_card and self.device == CARD.type and not self._enabled
        if is_off and self not in made_here:
            raise NotModelledError(
                "this torch.autocast('cuda') is off: it was made on a machine without a GPU",
                hint="make it in the step that is traced",
            )
        return entered(self)

    yield torch.autocast, "__init__", make
    yield torch.autocast, "__enter__", enter


def grouped(lists: Any, with_indices: bool = False) -> Any:  # noqa: FBT001, FBT002 - torch's
    """Group tensors by the type of those in the first list; the newest group comes first."""
    places: dict[Any, list[int]] = {}
    for place, x in enumerate(lists[0]):
        places.setdefault((x.device, x.dtype), []).append(place)
    return {
        key: (
            [[given[i] for i in chosen] if given else [] for given in lists],
            chosen if with_indices else [],
        )
        for key, chosen in reversed(places.items())
    }


def _label(mode: Following, optimizer: Any) -> None:
    """Say what an optimizer's states are for."""
    for state in optimizer.state.values():
        for x in state.values() if isinstance(state, dict) else ():
            ours = mode.counted_of(x)
            if ours is not None:
                ours.v.storage.purpose = Purpose.OPTIMIZER_STATES
